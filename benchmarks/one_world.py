"""One world model for practice, films and driving: what it shows, what it detects, and what practice in it adds.

``films`` compares predicted pictures of a practice run's newest episodes with real ones. ``broken`` damages the newest
episodes of a run and asks the out-of-distribution check about them. ``cost`` practices the round of such episodes
again, with imagination and without, and evaluates both. All take folders of ``vla-rl train --config imagined``. The
rest is gathered from the results of `imagination`, `world-model` and `any_policy`.
"""

import argparse
import functools
import json
import tempfile
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.cells import Cells, origin
from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.chunk_critic import ChunkCriticLearning
from vla_rl.algorithms.imagined_edit import ImaginedEdit, frames_of
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.capabilities import require
from vla_rl.core.errors import UserError
from vla_rl.data.cache import FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.training.algorithms import save_learned
from vla_rl.training.branch_film import world_without
from vla_rl.training.config import RunConfig
from vla_rl.training.evaluation import evaluation_jobs, run_missing
from vla_rl.training.practice import learner_of_run, make_pool
from world_model.check import out_of_distribution
from world_model.protocol import Observations

_PARTS = ("films", "broken", "cost")
_UNSEEN = 40  # newest episodes, which a film's model has not seen
_CHUNKS = (1, 3, 6)
_PIXELS = 4  # of the moved camera
_STARTS = 200  # held-out ones that measure what a damage costs

Frames = NDArray[np.int64]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=[], choices=_PARTS, help="what to measure")
    parser.add_argument("--runs", nargs="+", type=Path, default=[], help="practice runs with algorithm=imagined_edit")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the parts that were asked for, and gather what has been measured."""
    measures = {"films": _films, "broken": _broken, "cost": _cost}
    settings = {"films": [_UNSEEN, *_CHUNKS], "broken": [_PIXELS, *_DAMAGES], "cost": [_PIXELS, *_DAMAGES, _STARTS]}
    found: dict[str, list[dict[str, Any]]] = {}
    for part in _PARTS:
        cells = Cells(options.out / "one_world" / part, settings[part])
        if part in options.parts:
            torch.set_num_threads(1)
            for folder in options.runs:
                cells.once(_name(folder), functools.partial(measures[part], folder))
        found[part] = cells.read()
    return {
        **_gathered(options.out),
        "world_model_lines": _lines(),
        **_of_films(found["films"]),
        **_of_broken(found["broken"]),
        **_of_cost(found["cost"]),
    }


def _name(run: Path) -> str:
    """Name a run by task, seed and newest policy: a cell of another run is never taken for it."""
    _, config = RunFolder.open(run, RunConfig)
    policy = cache_key(_newest_policy(run))
    return f"{config.task.env.rpartition('/')[2].removesuffix('-v0')}-{config.seed}-{policy}"


def _newest_policy(run: Path) -> Path:
    return max((run / "policies").glob("version_*"), default=run / "policies" / "version_0000")


def _learner(run: Path) -> tuple[ImaginedEdit, RunConfig]:
    """Return the learner of a run with its newest policy, on all of its episodes."""
    learner, config, _ = learner_of_run(run, policy=_newest_policy(run))
    require(f"a world model of {run} with algorithm={config.algorithm}", frozenset({"branches"}), learner.provides)
    return cast(ImaginedEdit, learner), config


def _films(run: Path) -> dict[str, Any]:
    """Peak signal-to-noise ratios of pictures some chunks ahead, and of the real picture where the chunks begin."""
    learner, config = _learner(run)
    cache, ticks = learner.data.cache, learner.config.critic.chunk_ticks
    own = sorted((e for e in cache.episodes if e.policy_version >= 0), key=lambda e: (e.policy_version, e.episode_id))
    world, cameras = world_without(learner, own[-_UNSEEN:], config.seed), tuple(cache.images)
    found = []
    for chunks in _CHUNKS:
        begin = frames_of(own[-_UNSEEN:], end=-chunks * ticks)[::ticks]
        state = world.encode(Observations(cache, begin))
        for passed in range(chunks):
            sent, _ = learner.data.sent_chunks(begin + passed * ticks, ticks)
            state = world.predict(state, learner.data.tensor(sent)).state
        end = Observations(cache, begin + chunks * ticks)
        real = end.pictures(cameras)
        drawn = {
            "predicted": world.decode(state).cpu(),
            "persistence": Observations(cache, begin).pictures(cameras),
            "decoded": world.decode(world.encode(end)).cpu(),
        }
        ratios = {f"{name}_db": psnr(pictures, real) for name, pictures in drawn.items()}
        found.append({"chunks": chunks, "pictures": len(begin), **ratios})
    return {"seed": config.seed, "films": found}


def psnr(pictures: Tensor, real: Tensor) -> float:
    """Return the peak signal-to-noise ratio in dB of pictures uint8 [...], from the mean squared error over all."""
    error = (pictures.float() - real.float()).square().mean()
    return float(10 * torch.log10(255**2 / error))


def _permute_colors(cache: FrameCache, frames: Frames) -> None:
    for camera, images in cache.images.items():
        changed = np.array(images)
        changed[frames] = changed[frames][..., [1, 2, 0]]
        cache.images[camera] = changed


def _move_camera(cache: FrameCache, frames: Frames) -> None:
    for camera, images in cache.images.items():
        changed = np.array(images)
        wide = np.pad(changed[frames], ((0, 0), (0, 0), (_PIXELS, 0), (0, 0)), mode="edge")
        changed[frames] = wide[:, :, :-_PIXELS]
        cache.images[camera] = changed


def _shift_actions(ticks: int, cache: FrameCache, frames: Frames) -> None:
    """Record actions ``ticks`` later than they were sent, within these frames."""
    changed = np.array(cache.action_sent)
    changed[frames] = changed[np.clip(frames - ticks, frames[0], frames[-1])]
    cache.action_sent = changed


def _leave(cache: FrameCache, frames: Frames) -> None:
    del cache, frames


_DAMAGES: dict[str, Callable[[FrameCache, Frames], None]] = {
    "unchanged": _leave,
    "colors permuted": _permute_colors,
    f"pictures moved by {_PIXELS} pixels": _move_camera,
    "actions a tick later": functools.partial(_shift_actions, 1),
    "actions a tick earlier": functools.partial(_shift_actions, -1),
}


def _broken(run: Path) -> dict[str, Any]:
    """What the check says if the episodes of the newest policy were damaged in one way."""
    found = []
    for name, damage in _DAMAGES.items():
        learner, config = _learner(run)
        for episode in _newest(learner.data.cache):
            damage(learner.data.cache, episode)
        errors = learner.errors_of_unseen_chunks()
        if errors is None:
            raise UserError(
                f"{run} has too few episodes for the out-of-distribution check; practice two rounds or more"
            )
        reason = out_of_distribution(*errors, learner.config.branches.ood_ratio)
        found.append({"damage": name, "reason": reason, "ratio": errors[0][0] / errors[1][0]})
    return {"seed": config.seed, "broken": found}


def _cost(run: Path) -> dict[str, Any]:
    """Success after a round of damaged episodes, with imagination and its check, and without imagination."""
    versions = sorted((run / "policies").glob("version_*"))
    if len(versions) < 3:
        raise UserError(f"{run} has fewer than two rounds of practice, and a damage is found in the second one")
    practicing, config = _learner(run)
    shared = [each.name for each in fields(ChunkCriticLearning) if each.name != "best_of_n"]
    alone = {name: getattr(practicing.config, name) for name in shared}
    found = []
    for name, damage in _DAMAGES.items():
        practiced: dict[str, Any] = {}
        for side, algorithm in {"imagined": None, "unimagined": "chunk_critic"}.items():
            learner, _, _ = learner_of_run(run, algorithm, alone, policy=versions[-2])
            for episode in _newest(learner.data.cache):
                damage(learner.data.cache, episode)
            logs: dict[str, float] = {}
            for step in range(config.budget.steps_per_round):
                logs |= learner.update(step)
            practiced[side] = _successes(learner, config, len(versions) - 1)
            practiced.setdefault("stopped", int(logs.get("imagined_stopped", 0)))
        found.append({"damage": name, **practiced})
    return {"seed": config.seed, "episodes": _STARTS, "cost": found}


def _successes(learner: Algorithm, config: RunConfig, version: int) -> int:
    """Play the held-out starts of a run with what a learner has made."""
    with tempfile.TemporaryDirectory() as scratch, make_pool(config) as pool:
        path = Path(scratch, "policy")
        save_learned(learner, path, version)
        jobs = evaluation_jobs(config, path, Path(scratch, "episodes"), _STARTS)
        return sum(bool(header.success) for header in run_missing(pool, jobs, "evaluate"))


def _newest(cache: FrameCache) -> list[Frames]:
    """Frames of each episode of the newest policy."""
    newest = max(episode.policy_version for episode in cache.episodes)
    return [frames_of([episode]) for episode in cache.episodes if episode.policy_version == newest]


def _gathered(out: Path) -> dict[str, Any]:
    """Figures of other benchmarks under this one's names; what was not measured is left out."""
    names = {
        "imagination": {
            "gain_158": "gain_150_points",
            "gain_p": "gain_150_p",
            "gain_458": "gain_450_points",
            "gain_458_p": "gain_450_p",
            "real_episodes_ratio_to_80": "real_episodes_ratio_to_80",
            "agreement_within_starts": "pairs_in_order",
        },
        "world-model": {
            "action_error_ratio_h10": "state_error_ratio_10",
            "counterfactual_agreement": "counterfactual_agreement",
            "frames_per_s_b1": "frames_per_s",
            "late_latency_ratio": "latency_step_1000_over_10",
        },
        "any_policy": {"works_with_black_box_points": "works_with_black_box_points"},
    }
    found: dict[str, Any] = {}
    read = {name: json.loads(file.read_text()) for name in names if (file := out / f"{name}.json").exists()}
    for name, result in read.items():
        found |= {new: result[old] for old, new in names[name].items() if old in result}
    of_practice = read.get("imagination", {})
    if values := of_practice.get("branch_values"):
        found["branch_correlation_3"] = float(np.mean([cell["learnt"]["within"][-1] for cell in values]))
    true = [cell["practised"] for cell in of_practice.get("ladder", []) if cell["rung"] == "true_td"]
    if true:
        found["oracle_one_round"] = float(np.mean(true))
    return found


def _lines() -> int:
    """Lines of the world model, and of the files of the package that import it."""
    users = [file for file in Path("vla_rl").rglob("*.py") if "from world_model" in file.read_text()]
    return sum(len(file.read_text().splitlines()) for file in [*Path("world_model").glob("*.py"), *users])


def _of_films(cells: list[dict[str, Any]]) -> dict[str, Any]:
    if not cells:
        return {}
    ahead = [film for cell in cells for film in cell["films"] if film["chunks"] == 3]
    gain = float(np.mean([film["predicted_db"] - film["persistence_db"] for film in ahead]))
    return {"film_psnr_gain_db": gain, "film_cells": cells}


def _of_broken(cells: list[dict[str, Any]]) -> dict[str, Any]:
    if not cells:
        return {}
    answers = [(each["damage"] != "unchanged", bool(each["reason"])) for cell in cells for each in cell["broken"]]
    damaged = [found for is_damaged, found in answers if is_damaged]
    return {
        "broken_worlds": len(damaged),
        "broken_worlds_found": sum(damaged),
        "false_alarms": sum(found for is_damaged, found in answers if not is_damaged),
        "broken_cells": cells,
    }


def _of_cost(cells: list[dict[str, Any]]) -> dict[str, Any]:
    if not cells:
        return {}
    damaged = [(cell["episodes"], each) for cell in cells for each in cell["cost"] if each["damage"] != "unchanged"]
    points = [100 * (each["imagined"] - each["unimagined"]) / episodes for episodes, each in damaged]
    return {"broken_worlds_points": float(np.mean(points)), "cost_cells": cells}


def table(result: dict[str, Any]) -> str:
    """Markdown: the figures beside what is wanted."""
    rows = ["| figure | measured | wanted |", "|---|---|---|"]
    for name, wanted in _WANTED.items():
        if name in result:
            value = result[name]
            rows.append(f"| `{name}` | {value if isinstance(value, int) else f'{value:.3g}'} | {wanted} |")
    return "\n".join([*rows, "", "`gain_*`, the ladder and driving: the cells of their own pages."])


_WANTED = {
    "oracle_one_round": ">= 0.85",
    "gain_150_points": ">= 18",
    "gain_450_points": ">= 7",
    "real_episodes_ratio_to_80": "<= 0.6",
    "works_with_black_box_points": ">= 8",
    "pairs_in_order": ">= 0.65",
    "branch_correlation_3": ">= 0.25",
    "film_psnr_gain_db": ">= 6",
    "counterfactual_agreement": ">= 0.9",
    "state_error_ratio_10": "<= 0.34",
    "frames_per_s": ">= 100",
    "latency_step_1000_over_10": "about 1",
    "broken_worlds_found": "all",
    "false_alarms": "0",
    "broken_worlds_points": ">= 0",
    "world_model_lines": "<= 2804",
}


def of_films(result: dict[str, Any]) -> str:
    """Markdown: pictures some chunks ahead."""
    rows = [
        "| seed | chunks ahead | pictures | real picture of the start | predicted | drawn from the real features |",
        "|---|---|---|---|---|---|",
    ]
    for cell in result["film_cells"]:
        for film in cell["films"]:
            ratios = " | ".join(f"{film[f'{name}_db']:.1f} dB" for name in ("persistence", "predicted", "decoded"))
            rows.append(f"| {cell['seed']} | {film['chunks']} | {film['pictures']} | {ratios} |")
    return "\n".join([*rows, "", origin(result["film_cells"])])


def of_broken(result: dict[str, Any]) -> str:
    """Markdown: what the check says of damaged episodes."""
    rows = ["| seed | the newest episodes | unexplained, newest over older | the check says |", "|---|---|---|---|"]
    for cell in result["broken_cells"]:
        for each in cell["broken"]:
            says = each["reason"] or "passes"
            rows.append(f"| {cell['seed']} | {each['damage']} | {each['ratio']:.2f} | {says} |")
    return "\n".join([*rows, "", origin(result["broken_cells"])])


def of_cost(result: dict[str, Any]) -> str:
    """Markdown: success after a round of damaged episodes."""
    rows = ["| seed | the newest episodes | imagination | with imagination | without |", "|---|---|---|---|---|"]
    for cell in result["cost_cells"]:
        for each in cell["cost"]:
            shares = " | ".join(f"{each[side] / cell['episodes']:.1%}" for side in ("imagined", "unimagined"))
            rows.append(
                f"| {cell['seed']} | {each['damage']} | {'stopped' if each['stopped'] else 'runs'} | {shares} |"
            )
    return "\n".join([*rows, "", origin(result["cost_cells"])])
