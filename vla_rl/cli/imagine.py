"""World models: train one on a run's episodes, compare it with the real future, or predict the success of policies.

Example: vla-rl imagine train runs/demo --out runs/world
         vla-rl imagine rollout runs/world --out future.webp
         vla-rl imagine branches runs/alone
         vla-rl imagine rank runs/alone --policies runs/other runs/third/policies/version_0001
"""

import argparse
import logging
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vla_rl.cli.parser import add_settings
from vla_rl.core.cache_keys import cache_key, claim
from vla_rl.core.config import load_config, save_config
from vla_rl.core.errors import UserError, did_you_mean

ACTIONS = ("train", "rollout", "branches", "rank")
_FUTURES = 4
logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", help=f"one of {', '.join(ACTIONS)}")
    parser.add_argument("folder", type=Path, help="train, branches, rank: a run folder; else the world model's folder")
    parser.add_argument("--out", type=Path, help="train: the world model's folder; else the clip (.mp4, .webp, .png)")
    parser.add_argument("--preset", default="cpu-tiny", help="train: cpu-tiny, gpu-small, gpu-base or a YAML file")
    add_settings(parser, "train: changes to it")
    parser.add_argument("--near-success", type=int, default=300, help="train: scripted episodes beside the run's")
    parser.add_argument("--device", default="cpu", help="train: where to compute")
    parser.add_argument(
        "--policies", type=Path, nargs="+", help="rank: policies, or runs: their newest (all of the run)"
    )
    parser.add_argument("--episodes", type=int, help="rollout, branches: futures in the clip (4); rank: of each (200)")
    parser.add_argument("--start", type=int, default=10, help="rollout, branches: step that imagination begins at")
    parser.add_argument("--steps", type=int, help="rollout: steps of imagination (40); branches: chunks (7)")


def run(arguments: argparse.Namespace) -> int:
    if arguments.action not in ACTIONS:
        raise UserError(f"imagine cannot {arguments.action!r}.{did_you_mean(arguments.action, ACTIONS)}")
    for name, least in (("near_success", 0), ("episodes", 1), ("start", 0), ("steps", 1)):
        given = getattr(arguments, name)
        if given is not None and given < least:
            raise UserError(f"--{name.replace('_', '-')} is {given}; it must be at least {least}")
    actions = {"train": _train, "rollout": _rollout, "branches": _branches, "rank": _rank}
    return actions[arguments.action](arguments)


def _train(arguments: argparse.Namespace) -> int:
    """Gather episodes and train; called again, it goes on where it stopped."""
    import torch

    from vla_rl.acting.world_folder import (
        NEAR_SUCCESS_SEED,
        WorldFolder,
        collect_near_success,
        episodes_of,
        gather_episodes,
        open_cache,
        world_spec,
    )
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.data.store import EpisodeStore
    from vla_rl.training.config import RunConfig, world_preset
    from vla_rl.training.practice import check_device
    from world_model.config import WorldModelConfig
    from world_model.training import train_world_model

    if arguments.out is None:
        raise UserError("imagine train needs --out, the folder of the world model")
    torch.set_num_threads(1)
    source, config = RunFolder.open(arguments.folder, RunConfig)
    world = load_config(WorldModelConfig, world_preset(arguments.preset), arguments.overrides)
    check_device(arguments.device)
    folder = WorldFolder(arguments.out)
    episodes = [episodes_of(EpisodeStore(path, create=False)) for path in (source.episodes, source.evaluation)]
    claim(
        folder.path / "key",
        cache_key([config.task, config.gate, world, arguments.near_success, episodes]),
        f"{folder.path} holds a world model of another task, of other episodes or with other settings; choose another "
        "--out",
        made=(folder.model / "config.json").exists(),
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    save_config(config.task, folder.task_file)
    near = EpisodeStore(folder.near)
    collect_near_success(config.task, config.gate, near, arguments.near_success, NEAR_SUCCESS_SEED)
    if arguments.near_success:
        succeeded = [near.read_header(name).success is True for name in near.ids()]
        logger.info("near successes: %.0f %% succeed", 100 * np.mean(succeeded))
    gather_episodes(EpisodeStore(folder.episodes), {"run": source.episodes, "near": folder.near}, config.task.env)
    gather_episodes(EpisodeStore(folder.held_out), {"run": source.evaluation}, config.task.env)
    cache = open_cache(folder.episodes, folder.cache)
    train_world_model(world, world_spec(config.task, cache), cache, folder.model, arguments.device)
    print(f"world model of {len(cache.episodes)} episodes: {folder.model}")
    return 0


def _rollout(arguments: argparse.Namespace) -> int:
    """Reality in the upper rows, imagination in the lower ones, from the same moment with the same actions."""
    import torch

    from vla_rl.acting.world_folder import WorldFolder, open_cache
    from world_model.model import load_world_model
    from world_model.open_loop import imagine
    from world_model.windows import LatentEpisodes, pictures

    out, first, steps = _clip_file(arguments, "future.webp"), arguments.start, arguments.steps or 40
    torch.set_num_threads(1)
    folder = WorldFolder(arguments.folder)
    folder.task()  # refuses a folder without a world model
    model, cache = load_world_model(folder.model), open_cache(folder.held_out, folder.held_out_cache)
    data = LatentEpisodes(cache, model.autoencoder)
    long_enough = (data.length > first + steps).nonzero()[:, 0]
    if len(long_enough) == 0:
        raise UserError(f"no held-out episode has more than {first + steps} steps; choose a smaller --start or --steps")
    order = np.random.default_rng(0).permutation(len(long_enough))
    episode = long_enough[order[: arguments.episodes or _FUTURES]]
    frame = (data.start[episode] + first)[:, None] + torch.arange(steps)
    future = imagine(model, data, episode, torch.full((len(episode),), first), data.action[frame])
    clips = []
    for row, index in enumerate(episode.tolist()):
        cached = data.episodes[index]
        real = pictures(cache, cached.start + first + 1 + np.arange(steps), model.spec.cameras)
        with torch.no_grad():
            imagined = model.autoencoder.decode(future.latents[row].to(model.device)).cpu()
        clips.append(np.concatenate([_side_by_side(real.numpy()), _side_by_side(imagined.numpy())], axis=1))
    _save(clips, out, model.spec.control_hz)
    return 0


def _branches(arguments: argparse.Namespace) -> int:
    """Reality in the upper rows; below it what the model that a policy practices in foretold, chunk by chunk.

    In its place in the run folder, the report shows it.
    """
    import torch

    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.branch_film import CHUNKS, film_branches

    out = _clip_file(arguments, RunFolder(arguments.folder).film.name)
    torch.set_num_threads(1)
    film = film_branches(arguments.folder, arguments.episodes or _FUTURES, arguments.start, arguments.steps or CHUNKS)
    _save(film.clips, out, film.frames_per_s)
    print(f"of what a chunk of these episodes changed, {1 - film.unexplained:.0%} was foretold")
    return 0


def _rank(arguments: argparse.Namespace) -> int:
    """How often policies would succeed, foretold from a run's real episodes; the best one first."""
    import torch

    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.config import RunConfig
    from vla_rl.training.policy_ranking import EPISODES, predict_success

    torch.set_num_threads(1)
    folder, _ = RunFolder.open(arguments.folder, RunConfig)
    policies = [find_policy(path).path for path in arguments.policies or []]
    policies = policies or [folder.policy(version) for version in folder.policy_versions()]
    found = {policy: predict_success(folder.path, policy, arguments.episodes or EPISODES) for policy in policies}
    print("| policy | success foretold | in each of the model's worlds, from .. to |")
    print("|---|---|---|")
    for policy, told in sorted(found.items(), key=lambda each: -each[1].success):
        print(f"| {policy} | {told.success:.0%} | {min(told.worlds):.0%} .. {max(told.worlds):.0%} |")
    return 0


def _clip_file(arguments: argparse.Namespace, name: str) -> Path:
    """Where the clip goes. Raises UserError for a name that is neither a clip's nor a picture's."""
    out: Path = arguments.out or arguments.folder / name
    if out.suffix not in (".mp4", ".webp", ".png"):
        raise UserError(f"{out} is neither .mp4 or .webp (a clip) nor .png (a contact sheet)")
    return out


def _save(clips: list[NDArray[np.uint8]], out: Path, frames_per_s: float) -> None:
    from vla_rl.report.media import save_clips

    save_clips(clips, out, frames_per_s)
    print(f"reality above, imagination below: {out}")


def _side_by_side(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[T, cameras, H, W, 3] -> [T, H, cameras W, 3]."""
    return np.concatenate(list(images.swapaxes(0, 1)), axis=2)
