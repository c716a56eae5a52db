"""Meta-World tasks with a state dimension that hardly moves in the demonstrations and moves in practice. Success with
and without the least scale and the input limit of `vla_rl.core.normalization`.

Cells are kept in OUT/scale-floor/: an interrupted benchmark goes on where it was.

Example: python -m benchmarks scale-floor
"""

import argparse
import itertools
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cells import Cells, origin
from benchmarks.runs import claim_run, evaluations, in_float32
from vla_rl.cli.main import main
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.core.normalization import VectorStatistics
from vla_rl.core.validation import LARGEST_NUMBER
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.folders import load_model
from vla_rl.policies.layers import Normalizer
from vla_rl.report.statistics import wilson_interval

TASKS = ("ButtonPress", "ReachWall")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-scale-floor"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, seed by seed, and gather all cells."""
    cells = Cells(options.out / "scale-floor", {"config": read_yaml(config_file("metaworld"))})
    for seed, task, floored in itertools.product(options.seeds, TASKS, (False, True)):
        name = f"{task}-seed-{seed}-{'floored' if floored else 'bare'}"
        if not (options.gather or name in cells):
            folder = options.runs / cells.digest / name
            _train(["train", "--config", "metaworld", *_changes(task, seed)], folder, floored)
            cells.write(name, {"task": task, "seed": seed, "floored": floored, **_gather(folder)})
    found = cells.read()
    return {
        "input_max": max(cell["input_max"] for cell in found if cell["floored"]),
        "input_max_before": max(cell["input_max"] for cell in found if not cell["floored"]),
        "runs": found,
    }


def table(result: dict[str, Any]) -> str:
    """Return Markdown: one row per task and variant."""
    rows = [
        "| task | least scale and input limit | seeds | supervised | after practice | largest normalized input |",
        "|---|---|---|---|---|---|",
    ]
    for task, floored in itertools.product(TASKS, (False, True)):
        cells = [cell for cell in result["runs"] if (cell["task"], cell["floored"]) == (task, floored)]
        if cells:
            columns = [_success(cells, name) for name in ("supervised", "practised")]
            columns.append(f"{max(cell['input_max'] for cell in cells):.1f}")
            rows.append(f"| {task} | {'with' if floored else 'without'} | {len(cells)} | {' | '.join(columns)} |")
    note = (
        "Success pooled over the seeds, each with its own supervised policy, on the same held-out seeds "
        "[95 % Wilson interval of these very policies]. The largest input is of all practice episodes, as the policy's "
        f"network reads its state. {origin(result['runs'])} Command: `{result['command']}`."
    )
    return "\n".join([*rows, "", note])


def _success(cells: list[dict[str, Any]], name: str) -> str:
    successes, episodes = (sum(cell[name][key] for cell in cells) for key in ("successes", "episodes"))
    low, high = wilson_interval(successes, episodes)
    return f"{100 * successes / episodes:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"


def _changes(task: str, seed: int) -> list[str]:
    changes = [f"task.env=vla_rl/MetaWorld{task}-v0", "budget.evaluation_pictures=planned", *in_float32("metaworld")]
    return [*changes, f"seed={seed}"]


def _train(arguments: list[str], folder: Path, floored: bool) -> None:
    """Make a run, or go on with it, in a process of its own."""
    claim_run([*arguments, f"floored={floored}"], folder)
    where = (
        ["train", "--resume", str(folder)] if (folder / "config.yaml").exists() else [*arguments, "--out", str(folder)]
    )
    process = multiprocessing.get_context("spawn").Process(target=_verb, args=(where, floored))
    process.start()
    process.join()
    if process.exitcode or not RunFolder(folder).is_finished():
        raise UserError(f"a run of the benchmark ended with code {process.exitcode}; call again to go on with {folder}")


def _verb(arguments: list[str], floored: bool) -> None:
    if not floored:
        VectorStatistics.with_floor = _without_floor  # type: ignore[method-assign, assignment]
    raise SystemExit(main(arguments))


def _without_floor(statistics: VectorStatistics, *_: object) -> VectorStatistics:
    return replace(statistics, floor=(0.0,) * statistics.size, limit=(LARGEST_NUMBER,) * statistics.size)


def _gather(folder: Path) -> dict[str, Any]:
    """Return the figures of a run from its folder."""
    first, last = (evaluations(folder)[index] for index in (0, -1))
    made = RunFolder(folder)
    model, _ = load_model(made.policy(made.policy_versions()[-1]))
    normalizer: Normalizer = model.state_normalizer  # type: ignore[assignment]
    store = EpisodeStore(made.episodes, create=False)
    practice = [store.read(name).state for name in store.ids() if not name.startswith("demo-")]
    inputs = normalizer.network_input(torch.from_numpy(np.concatenate(practice)))
    figures = {
        name: {"successes": entry["successes"], "episodes": entry["episodes"]}
        for name, entry in (("supervised", first), ("practised", last))
    }
    return {**figures, "input_max": float(inputs.abs().max())}
