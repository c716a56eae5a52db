"""The gain of practice in a world model: whole runs with and without imagination, and without one part of it."""

import argparse
import functools
import json
from dataclasses import asdict
from typing import Any

from benchmarks.cells import Cells
from benchmarks.runs import evaluations, in_float32, run_verb
from vla_rl.core.config import read_yaml
from vla_rl.runs.config import world_preset
from vla_rl.runs.config_files import config_file
from vla_rl.runs.imagination.near_success import PerturbationConfig
from world_model.coevolution import Ledger

DEFAULT_TASKS = ("vla_rl/PegInsert-v0", "vla_rl/LidOnBox-v0")
# Equal real episodes: near successes would be spent in place of practice episodes, and at so small a budget those are
# worth more. A world model of so few episodes is cheap to train and easy to please: success must be sure of itself.
_ROUNDS = 2
_WITH = [
    "imagination.near_success_episodes=0",
    "imagination.env.success_threshold=0.9",
    "imagination.coevolution.mode=continuous",
    "imagination.coevolution.train_cpu_seconds=240",
    "imagination.coevolution.imagined_episodes=50",
    "imagination.coevolution.gap_episodes=40",
]
VARIANTS = {
    "without": [],
    "with": _WITH,
    "minus-coevolution": [*_WITH, "imagination.coevolution.mode=frozen"],
}


def open_cells(options: argparse.Namespace) -> Cells:
    """The cells of whole practice runs with a world model of their own."""
    settings = {
        "preset": read_yaml(world_preset(options.preset)),
        "config": read_yaml(config_file(options.gain_config)),
        "changes": [VARIANTS, _ROUNDS],
        "near_success": asdict(PerturbationConfig()),
    }
    return Cells(options.out / "world-model" / "gain", settings)


def measure(options: argparse.Namespace, cells: Cells) -> None:
    for task in options.tasks:
        for seed in options.seeds:
            for variant in options.variants:
                run = functools.partial(_measure_variant, options, task, seed, variant)
                cells.once(f"{_short(task)}-{seed}-{variant}", run)


def _measure_variant(options: argparse.Namespace, task: str, seed: int, variant: str) -> dict[str, Any]:
    """One practice run. Those of a task and seed share demonstrations and supervised policy."""
    common = ["--config", options.gain_config, "--seed", str(seed), f"task.env={task}"]
    common += [*in_float32(options.gain_config), f"budget.rounds={_ROUNDS}"]
    base = options.runs / f"{_short(task)}-{seed}"
    run_verb(["train", *common[:-1], "budget.rounds=0"], base)
    own = base.with_name(f"{base.name}-{variant}")
    changes = [*VARIANTS[variant], "budget.evaluate_every_round=false"]
    first = base.with_name(f"{base.name}-with") / "imagination" / "model_0000"
    if variant not in ("without", "with") and (first / "config.json").exists():
        changes.append(f"imagination.begin_with={first.resolve()}")
    run_verb(["train", *common, "--from", str(base), *changes], own)
    supervised, *_, last = evaluations(own)
    rounds = [asdict(entry) for entry in Ledger.open(own / "imagination" / "ledger.json").entries]
    return {
        "task": task,
        "seed": seed,
        "variant": variant,
        "supervised_successes": supervised["successes"],
        "successes": last["successes"],
        "episodes": last["episodes"],
        "real_episodes": last["real_episodes"] + sum(entry["near_success_episodes"] for entry in rounds),
        "wall_s": json.loads((own / "summary.json").read_text())["wall_s"],
        "ledger": rounds,
    }


def _short(task: str) -> str:
    """``vla_rl/PegInsert-v0`` -> ``PegInsert``, for files."""
    return task.partition("/")[2].partition("-")[0]


def gain_points(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Success with minus without imagination in percentage points, over tasks and seeds that have both, and the same
    for every variant; intervals are bootstraps over those pairs.
    """
    import numpy as np

    from benchmarks.statistics import bootstrap_interval

    rate = {(cell["task"], cell["seed"], cell["variant"]): cell["successes"] / cell["episodes"] for cell in cells}
    result: dict[str, Any] = {}
    for variant in VARIANTS:
        points = [
            100 * (own - rate[task, seed, "without"])
            for (task, seed, name), own in rate.items()
            if name == variant != "without" and (task, seed, "without") in rate
        ]
        if points:
            key = "imagination_gain_points" if variant == "with" else f"gain_points_{variant.replace('-', '_')}"
            result[key] = float(np.mean(points))
            result[f"{key}_interval"] = list(bootstrap_interval(np.array(points), np.mean, seed=0))
            result[f"{key}_pairs"] = len(points)
    wall_s = {(cell["task"], cell["seed"], cell["variant"]): cell["wall_s"] for cell in cells}
    ratios = [
        own / wall_s[task, seed, "without"]
        for (task, seed, name), own in wall_s.items()
        if name == "with" and (task, seed, "without") in wall_s
    ]
    if ratios:
        result["gain_wall_ratio"] = float(np.median(ratios))
    rounds = [entry for cell in cells if cell["variant"] == "with" for entry in cell["ledger"] if entry["round"]]
    if rounds:
        result["gain_rounds_used"] = float(np.mean([entry["used"] > 0 for entry in rounds]))
    return result
