"""World models: train one on a run's episodes, and compare it with the real future.

Example: vla-rl imagine train runs/demo --out runs/world
         vla-rl imagine rollout runs/world --out future.webp
         vla-rl imagine branches runs/imagined
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.cli.parser import add_settings
from vla_rl.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from vla_rl.training.branch_film import Film

ACTIONS = ("train", "rollout", "branches")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", help=f"one of {', '.join(ACTIONS)}")
    parser.add_argument("folder", type=Path, help="train, branches: a run folder; else the world model's folder")
    parser.add_argument("--out", type=Path, help="train: the world model's folder; else the clip (.mp4, .webp, .png)")
    add_settings(parser, "train: changes to it, such as dynamics.steps=8000")
    parser.add_argument(
        "--near-success", type=int, help="train: number of scripted episodes to add (300 if the task has an expert)"
    )
    parser.add_argument("--device", default="cpu", help="train: where to compute")
    parser.add_argument("--episodes", type=int, default=4, help="rollout, branches: futures in the clip")
    parser.add_argument("--start", type=int, default=10, help="rollout, branches: step that imagination begins at")
    parser.add_argument("--steps", type=int, help="rollout: steps of the film (40); branches: chunks (7)")
    parser.add_argument("--every-round", action="store_true", help="branches: film each round, the first one first")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action not in ACTIONS:
        raise UserError(f"imagine cannot {arguments.action!r}.{did_you_mean(arguments.action, ACTIONS)}")
    for name, least in (("near_success", 0), ("episodes", 1), ("start", 0), ("steps", 1)):
        given = getattr(arguments, name)
        if given is not None and given < least:
            raise UserError(f"--{name.replace('_', '-')} is {given}; it must be at least {least}")
    import torch

    torch.set_num_threads(1)
    actions = {"train": _train, "rollout": _rollout, "branches": _branches}
    return actions[arguments.action](arguments)


def _train(arguments: argparse.Namespace) -> int:
    from vla_rl.training.world_model import train_on_run

    if arguments.out is None:
        raise UserError("imagine train needs --out, the folder of the world model")
    count = train_on_run(
        arguments.folder,
        arguments.out,
        arguments.overrides,
        arguments.near_success,
        arguments.device,
    )
    print(f"world model of {count} episodes: {arguments.out / 'model'}")
    return 0


def _rollout(arguments: argparse.Namespace) -> int:
    from vla_rl.training.world_model import film_world

    out = _clip_file(arguments, "future.webp")
    _save(film_world(arguments.folder, arguments.episodes, arguments.start, arguments.steps or 40), out)
    return 0


def _branches(arguments: argparse.Namespace) -> int:
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.branch_film import CHUNKS, film_branches

    out = _clip_file(arguments, RunFolder(arguments.folder).film.name)  # there, the report shows it
    steps = arguments.steps or CHUNKS
    film = film_branches(arguments.folder, arguments.episodes, arguments.start, steps, arguments.every_round)
    _save(film, out)
    if film.unexplained is not None:
        which = "the newest" if arguments.every_round else "these"
        print(f"of the change within a chunk of {which} episodes, {1 - film.unexplained:.0%} is predicted")
    return 0


def _clip_file(arguments: argparse.Namespace, name: str) -> Path:
    """Return where the clip goes. Raises UserError for a name that is neither a clip's nor a picture's."""
    out: Path = arguments.out or arguments.folder / name
    if out.suffix not in (".mp4", ".webp", ".png"):
        raise UserError(f"{out} is neither .mp4 or .webp (a clip) nor .png (a contact sheet)")
    return out


def _save(film: "Film", out: Path) -> None:
    from vla_rl.report.media import save_clips

    save_clips(film.clips, out, film.frames_per_s)
    print(f"reality above, predictions below: {out}")
