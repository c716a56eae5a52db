"""Six tasks of Meta-World, from the expert's demonstrations to practice under a supervisor, over several seeds.

Nothing in the package knows these tasks: they come in as any environment does. Cells are kept in OUT/metaworld/ and in
the run folders: an interrupted benchmark goes on where it was.
"""

import argparse
import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.cells import Cells, origin
from benchmarks.runs import evaluations, gain_columns, in_float32, run_verb
from vla_rl.core.config_files import config_file, read_yaml

TASKS = ("ButtonPressTopdown", "CoffeeButton", "DoorClose", "FaucetOpen", "PlateSlide", "WindowOpen")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS, metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, one core each")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-metaworld"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, seed by seed, and gather all cells."""
    cells = Cells(options.out / "metaworld", {"config": read_yaml(config_file("metaworld"))})
    wanted = [(task, seed) for seed, task in itertools.product(options.seeds, options.tasks)]
    missing = [] if options.gather else [cell for cell in wanted if _name(*cell) not in cells]
    folders = [options.runs / cells.digest / _name(*cell) for cell in missing]
    with ThreadPoolExecutor(options.jobs) as pool:
        done = pool.map(_run, missing, folders)
        for (task, seed), folder, _ in zip(missing, folders, done, strict=True):
            cells.write(_name(task, seed), _gather(task, seed, folder))
    return {"runs": cells.read()}


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per task."""
    head = [
        "| task | seeds | supervised | after practice | gain, points | steps to success, first -> last policy "
        "| processor minutes a run |",
        "|---|---|---|---|---|---|---|",
    ]
    cells: list[dict[str, Any]] = result["runs"]
    rows = [_row([cell for cell in cells if cell["task"] == task]) for task in sorted({cell["task"] for cell in cells})]
    note = (
        "Success pooled over the seeds, each with a supervised policy of its own, on "
        f"{cells[0]['evaluation_episodes']} fixed held-out seeds [95 % Wilson interval of these very policies]. The "
        "gain is the mean over seeds [95 % bootstrap interval over seeds]. "
        f"{cells[0]['demonstrations']} demonstrations and {cells[0]['practice_episodes']} practice episodes a run. "
        f"One core a run, no GPU. {origin(cells)} Command: `{result['command']}`."
    )
    return "\n".join([*head, *rows, "", note])


def _row(cells: list[dict[str, Any]]) -> str:
    return f"| {cells[0]['task']} | {len(cells)} {gain_columns(cells)}"


def _name(task: str, seed: int) -> str:
    return f"{task}-seed-{seed}"


def _run(cell: tuple[str, int], folder: Path) -> None:
    task, seed = cell
    changes = [f"task.env=vla_rl/MetaWorld{task}-v0", "budget.evaluation_pictures=planned", *in_float32("metaworld")]
    cpu_s = run_verb(["train", "--config", "metaworld", "--seed", str(seed), *changes], folder)
    note = folder.with_suffix(".cpu_s")  # a run that was interrupted has several lines
    note.write_text(f"{note.read_text() if note.exists() else ''}{cpu_s:.1f}\n")


def _gather(task: str, seed: int, folder: Path) -> dict[str, Any]:
    """The figures of a run from its folder."""
    first, last = (evaluations(folder)[index] for index in (0, -1))
    budget = read_yaml(folder / "config.yaml")["budget"]
    return {
        "task": task,
        "seed": seed,
        **{
            name: {"success": entry["successes"] / entry["episodes"], "steps": entry["mean_success_length"]}
            for name, entry in (("supervised", first), ("practised", last))
        },
        "evaluation_episodes": last["episodes"],
        "demonstrations": budget["demonstrations"],
        "practice_episodes": budget["rounds"] * budget["episodes_per_round"],
        "cpu_s": round(sum(map(float, folder.with_suffix(".cpu_s").read_text().split())), 1),
    }
