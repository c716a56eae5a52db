"""Practice without a person on a real robot's budget: is a policy ever worse than the one that it began with?

Per task, seed and budget one round of `vla-rl train --config imagined`: two thirds of the episodes are practice, one
third the check of the new policy (`budget.check_episodes`). Both policies are then evaluated on many held-out seeds.
Finished cells are kept in OUT/few/; cells that have not been run are left out.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cells, origin
from benchmarks.outcomes import TASKS, practice_alone, practise_from, run_base
from benchmarks.practices import BOLD, as_measured
from benchmarks.runs import Cell, evaluations
from vla_rl.core.errors import UserError
from vla_rl.data.run_folder import RunFolder

_EPISODES = (30, 60, 120)
_EVALUATION_EPISODES = 1000
_EVALUATED = f"budget.evaluation_episodes={_EVALUATION_EPISODES}"
PRACTICES = {"alone": [], "bold": BOLD}  # the unchanged preset, and full-step residuals without a time discount
_WORSE = 0.03  # what counts as worse than the start


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--budgets", type=int, nargs="+", default=list(_EPISODES), help="real episodes of a run")
    parser.add_argument("--practices", nargs="+", default=["alone"], choices=list(PRACTICES))
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-few"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing and gather all cells."""
    cells = Cells(options.out / "few", {"config": practice_alone(), "episodes": _EVALUATION_EPISODES})
    runs = options.runs / cells.digest
    grid = [
        (Cell(task, seed, f"{budget}-{practice}"), budget, practice)
        for seed in options.seeds
        for budget in options.budgets
        for task in options.tasks
        for practice in options.practices
    ]
    for name, cell in cells.by_name().items():
        expected = as_measured(PRACTICES[cell["practice"]])
        if cell.get("options", expected) != expected:
            raise UserError(f"{cells.folder / name}.json was measured with other options; move it away")
    missing = [] if options.gather else [entry for entry in grid if entry[0].name not in cells]
    with ThreadPoolExecutor(options.jobs) as pool:
        bases = {cell.base: cell for cell, *_ in missing}.values()
        list(pool.map(lambda cell: run_base(cell, runs, [_EVALUATED]), bases))
        list(pool.map(lambda entry: cells.write(entry[0].name, _measure(entry[0], entry[1], entry[2], runs)), missing))
    found = cells.read()
    kinds = {practice: [cell for cell in found if cell["practice"] == practice] for practice in PRACTICES}
    return {
        name if practice == "alone" else f"{practice}_{name}": value
        for practice, own in kinds.items()
        if own
        for name, value in _figures(own).items()
    } | {"cells": found}


def _figures(cells: list[dict[str, Any]]) -> dict[str, float]:
    gains = [cell["practised"] - cell["start"] for cell in cells]
    return {
        "never_worse_violations": sum(gain < -_WORSE for gain in gains),
        "better": sum(gain > 0 for gain in gains),
        "runs": len(cells),
        "stepped_back": sum(not cell["passed"] for cell in cells),
        "mean_gain_points": 100 * float(np.mean(gains)),
    }


def _measure(cell: Cell, budget: int, practice: str, runs: Path) -> dict[str, Any]:
    check = budget // 3
    folder = runs / cell.name
    changes = [
        *PRACTICES[practice],
        "budget.rounds=1",
        f"budget.episodes_per_round={budget - check}",
        f"budget.check_episodes={check}",
        _EVALUATED,
    ]
    cpu_s = practise_from(cell, runs, changes)
    first, last = (entry["successes"] / entry["episodes"] for entry in evaluations(folder))
    (checked,) = RunFolder(folder).read_summary()["checks"].values()
    return {
        "task": cell.task,
        "seed": cell.seed,
        "budget": budget,
        "practice": practice,
        "options": as_measured(PRACTICES[practice]),
        "start": first,
        "practised": last,
        "passed": checked["passes"],
        "cpu_s": round(cpu_s, 1),
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per budget."""
    head = [
        "| practice | real episodes | runs | success before -> after, each run | steps back "
        "| worse by more than 3 points |",
        "|---|---|---|---|---|---|",
    ]
    cells = result["cells"]
    kinds = sorted({(cell["practice"], cell["budget"]) for cell in cells})
    rows = [_row([cell for cell in cells if (cell["practice"], cell["budget"]) == kind]) for kind in kinds]
    note = (
        f"One round, a third of the episodes for the check; {_EVALUATION_EPISODES} held-out seeds (95 % interval about "
        f"3 points either way). One core a run. {origin(cells)} Command: "
        f"`{result['command']}`."
    )
    return "\n".join([*head, *rows, "", note])


def _row(cells: list[dict[str, Any]]) -> str:
    runs = ", ".join(f"{cell['start']:.1%} -> {cell['practised']:.1%}" for cell in cells)
    back = sum(not cell["passed"] for cell in cells)
    worse = sum(cell["practised"] < cell["start"] - _WORSE for cell in cells)
    return f"| `{cells[0]['practice']}` | {cells[0]['budget']} | {len(cells)} | {runs} | {back} | {worse} |"
