"""One policy for three tasks of one scene: does the sentence decide, and what does practice without a person add?

Three cubes, and a sentence that names the one that belongs in the tray. Every start of the evaluation is played under
all three sentences. A policy that does not read makes at most one of three. Per seed a supervised policy practices all
three tasks at once. Finished cells are kept in OUT/sentences/.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cells import Cells, origin
from benchmarks.outcomes import practice_alone
from benchmarks.practices import BOLD, as_measured
from benchmarks.runs import evaluations, in_float32, run_verb
from sim.registration import COLOR_TASKS
from vla_rl.core.config_files import read_yaml
from vla_rl.core.errors import UserError
from vla_rl.report.statistics import wilson_interval

KINDS = ("deaf", "supervised", "practised")
_STARTS = 100  # of the evaluation
CHANGES = [
    f"task.env={next(iter(COLOR_TASKS))}",
    f"task.also=[{','.join(list(COLOR_TASKS)[1:])}]",
    "task.difficulty=0.5",
    "budget.demonstrations=24",
    "budget.supervised_steps=1000",
    "supervised.actor.decay_steps=1000",
    f"budget.evaluation_episodes={_STARTS * len(COLOR_TASKS)}",
    "workers=0",
    "environments_per_worker=64",
]
FILM = "policy.text.film=true"
PRACTICE = [
    "budget.episodes_per_round=300",
    "budget.steps_per_round=1400",
    "learning.distill_steps=1000",
    "learning.actor.decay_steps=1000",
    "learning.actor.learning_rate=1e-3",
    *BOLD,
]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-sentences"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing and gather all cells."""
    settings = {"config": practice_alone(), "changes": as_measured([*CHANGES, FILM, *PRACTICE])}
    cells = Cells(options.out / "sentences", settings)
    runs = options.runs / cells.digest
    missing = [] if options.gather else [seed for seed in options.seeds if str(seed) not in cells]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda seed: cells.write(str(seed), _measure(seed, runs)), missing))
    return summary(cells.read())


def summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the seeds that have been measured.

    Raises:
        UserError: if there are none.
    """
    if not cells:
        raise UserError("no seed has been measured yet; leave --gather out")
    gains = 100 * (_successes(cells, "practised") - _successes(cells, "supervised"))  # [seeds, tasks] points
    return {
        "least_gain_points": float(gains.mean(0).min()),
        "mean_gain_points": float(gains.mean()),
        **{f"{kind}_success": float(_successes(cells, kind).mean()) for kind in KINDS},
        "seeds": len(cells),
        "cells": cells,
    }


def _successes(cells: list[dict[str, Any]], kind: str) -> NDArray[np.float64]:
    """[seeds, tasks]."""
    return np.array([[cell[kind][task] for task in COLOR_TASKS] for cell in cells])


def _measure(seed: int, runs: Path) -> dict[str, Any]:
    begun = ["train", "--config", "imagined", "--seed", str(seed)]
    arguments = [*begun, *CHANGES, "torch_threads=1", *in_float32("imagined")]
    deaf, base, practiced = (runs / f"{seed}-{kind}" for kind in KINDS)
    cpu_s = 0.0
    for folder, changes in (
        (deaf, ["budget.rounds=0"]),
        (base, [FILM, "budget.rounds=0"]),
        (practiced, [FILM, "--from", str(base), *PRACTICE]),
    ):
        cpu_s = run_verb([*arguments, *changes], folder)
    budget = read_yaml(practiced / "config.yaml")["budget"]
    return {
        "seed": seed,
        **{kind: _by_task(folder) for kind, folder in zip(KINDS, (deaf, base, practiced), strict=True)},
        "starts": _STARTS,
        "practice_episodes": budget["rounds"] * budget["episodes_per_round"],
        "cpu_s": round(cpu_s, 1),  # of the practice
    }


def _by_task(folder: Path) -> dict[str, float]:
    """Success of a run's last policy under each sentence."""
    tasks: dict[str, Any] = evaluations(folder)[-1]["tasks"]
    return {task: found["successes"] / found["episodes"] for task, found in tasks.items()}


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per policy, one column per sentence."""
    cells = result["cells"]
    rows = [
        f"| policy | {' | '.join(f'the {color} cube' for color in COLOR_TASKS.values())} | seeds |",
        "|---|---|---|---|---|",
    ]
    names = {
        "deaf": "supervised, `policy.text.film=false`",
        "supervised": "supervised, `policy.text.film=true`",
        "practised": f"the same after {cells[0]['practice_episodes']} episodes of practice alone, bold",
    }
    for kind in KINDS:
        shown = []
        for successes in _successes(cells, kind).T:
            starts = _STARTS * len(cells)
            low, high = wilson_interval(round(successes.sum() * _STARTS), starts)
            shown.append(f"{successes.mean():.0%} [{100 * low:.0f}, {100 * high:.0f}]")
        rows.append(f"| {names[kind]} | {' | '.join(shown)} | {len(cells)} |")
    note = (
        f"Success [95 % Wilson interval], {_STARTS} starts, each under all three sentences. The pictures are the same, "
        f"and a policy that does not read them makes one of three. 24 demonstrations. {origin(cells)} Command: "
        f"`{result['command']}`."
    )
    return "\n".join([*rows, "", note])
