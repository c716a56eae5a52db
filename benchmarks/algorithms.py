"""All algorithms at an equal budget of episodes and gradient steps, over several seeds.

Per task and seed, demonstrations, supervised policy and evaluation seeds are shared. A cell is one run; finished cells
are kept in OUT/algorithms/, so the grid can be filled bit by bit. Cells that have not been run are left out.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.algorithm_plots import save_algorithm_plot
from benchmarks.cells import Cells, origin
from benchmarks.practices import WHOLE_EDITS, as_measured
from benchmarks.runs import Cell, evaluations, in_float32, run_verb
from benchmarks.statistics import bootstrap_interval, paired_p, stratified_p
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.data.episode_header import EpisodeHeader
from vla_rl.data.store import EpisodeStore
from vla_rl.report.statistics import wilson_interval

DEFAULT_TASK = "vla_rl/PegInsert-v0"
OTHER_TASKS = ("vla_rl/LidOnBox-v0", "vla_rl/Handover-v0")
# One step of temporal difference moves V_e by about a step an update: with a slow target it would stay near 0.
_PAPER = ["critic.efficiency_return_steps=1", "critic.efficiency_unit_steps=1", "critic.target_tau=null"]
_PAPER += ["advantage.advantage_horizon=1", "advantage.efficiency_scale=1"]
_PAPER += ["credit.rule=paper", "credit.endings_are_takeovers=false"]
ALGORITHMS = {
    "habc": [],
    "habc_paper": ["algorithm=habc", *(f"learning.{change}" for change in _PAPER)],
    "no_ve": ["algorithm=no_ve"],
    "filtered_bc": ["algorithm=filtered_bc"],
    "hg_dagger": ["algorithm=hg_dagger"],
    "awr": ["algorithm=awr"],
    "threshold": ["algorithm=threshold"],
    "recap": ["algorithm=recap", "learning.recap.warmup_steps=0"],
    "sft": ["algorithm=sft", "budget.episodes_per_round=0"],
    "imagined_edit": [  # as many gradient steps of the policy; those of the critic of chunks come on top
        "algorithm=imagined_edit",
        "exploration=0.1",
        "budget.steps_per_round=650",
        "learning.distill_steps=250",
        "environments_per_worker=32",
        *WHOLE_EDITS,
    ],
}
# Beside the folder of the results, where the pages find them: all tasks, and the default one.
PICTURE, FIRST_PICTURE = "images/algorithms.svg", "images/who_wins.svg"
ENOUGH = 0.8  # the success rate of "episodes to 80 %"
_OF_A_ROUND = ("round", "real_episodes", "gradient_steps", "successes", "episodes", "mean_success_length")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tasks", nargs="+", default=[DEFAULT_TASK], help=f"also: {', '.join(OTHER_TASKS)}")
    parser.add_argument("--algorithms", nargs="+", default=list(ALGORITHMS))
    parser.add_argument("--gather", action="store_true", help="run nothing; gather and draw the cells that there are")
    parser.add_argument("--jobs", type=int, default=2, help="cells at a time, one core each")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/bench-algorithms"), help="where the run folders are kept"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure the cells that are asked for and missing, and gather all that there are."""
    for name in options.algorithms:
        if name not in ALGORITHMS:
            raise UserError(f"there is no algorithm {name!r} in this benchmark.{did_you_mean(name, ALGORITHMS)}")
    if options.jobs < 1:
        raise UserError(f"--jobs is {options.jobs}; it must be at least 1")
    cells = open_cells(options.out)
    for name, cell in cells.by_name().items():
        now = as_measured(ALGORITHMS.get(cell["algorithm"], []))
        if cell["settings"] != now:
            raise UserError(
                f"{cells.folder / name}.json was measured with {cell['settings']}, now {cell['algorithm']} is {now}; "
                "move it away to measure anew, or give another --out"
            )
    runs = options.runs / cells.digest
    grid = [Cell(task, seed, name) for seed in options.seeds for task in options.tasks for name in options.algorithms]
    missing = [cell for cell in grid if cell.name not in cells and not options.gather]
    bases = {cell.base: cell for cell in missing}.values()
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda cell: _run_base(cell, runs), bases))
        list(pool.map(lambda cell: cells.write(cell.name, _run_cell(cell, runs)), missing))
    found = cells.read()
    if not found:
        raise UserError(f"there are no cells in {cells.folder} to gather; leave --gather out to measure them")
    save_algorithm_plot(found, options.out.parent / PICTURE)
    if first := [cell for cell in found if cell["task"] == DEFAULT_TASK]:
        save_algorithm_plot(first, options.out.parent / FIRST_PICTURE)
    return {
        "cells": found,
        "pooled_p_vs_habc": _pooled_p(found),
        "minus_habc": _minus(found, "habc"),
        "minus_hg_dagger": _minus(found, "hg_dagger"),
        "length_minus_sft": _length_minus_sft(found),
    }


def open_cells(out: Path) -> Cells:
    """The cells of the present configuration. What an algorithm changes in it stands in its own cells, so that a new
    algorithm leaves the others' alone.
    """
    return Cells(out / "algorithms", {"config": read_yaml(config_file("algorithms"))})


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per task and algorithm, pooled over seeds."""
    head = [
        "| task | algorithm | seeds | success | steps to success, supervised -> last | the same, where both solve "
        "| steps of all episodes | episodes to 80 % | points more than habc | steps more than habc |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    tasks = sorted({cell["task"] for cell in result["cells"]})
    rows = [
        _row([cell for cell in result["cells"] if cell["task"] == task], task, name)
        for task in tasks
        for name in ALGORITHMS
    ]
    note = (
        "Pooled over seeds [95 % Wilson interval, of these very policies]. Points and steps more than habc: means over "
        "the seeds that both have; p of a paired t test over seeds. All episodes: failures with all their steps."
    )
    machine = f"{origin(result['cells'])} Command: `{result['command']}`."
    picture = f"![Learning curves, final success and steps to success of all algorithms](../{PICTURE})"
    return "\n".join([*head, *filter(None, rows), "", picture, "", f"{note} {machine}"])


def summary(result: dict[str, Any]) -> str:
    """Markdown: success alone, the best on the default task first."""
    tasks = sorted({cell["task"] for cell in result["cells"]}, key=lambda task: (task != DEFAULT_TASK, task))
    pooled = {
        (task, name): _pooled([cell for cell in result["cells"] if (cell["task"], cell["algorithm"]) == (task, name)])
        for task in tasks
        for name in ALGORITHMS
    }
    names = sorted(ALGORITHMS, key=lambda name: -pooled[tasks[0], name][0])
    rows = [f"| `{name}` | {' | '.join(pooled[task, name][1] for task in tasks)} |" for name in names]
    return "\n".join([f"| algorithm | {' | '.join(tasks)} |", "|---|" + "---|" * len(tasks), *rows])


def _pooled(cells: list[dict[str, Any]]) -> tuple[float, str]:
    """The success of cells, as a number and in words with its interval."""
    if not cells:
        return 0.0, ""
    successes, episodes = sum(cell["successes"] for cell in cells), sum(cell["episodes"] for cell in cells)
    low, high = wilson_interval(successes, episodes)
    return successes / episodes, f"{successes / episodes:.1%} [{low * 100:.0f}, {high * 100:.0f}]"


def _run_base(cell: Cell, runs: Path) -> None:
    """Demonstrations, supervised policy and its evaluation."""
    run_verb(["train", *_common(cell), *in_float32("algorithms"), "budget.rounds=0"], runs / cell.base)


def _run_cell(cell: Cell, runs: Path) -> dict[str, Any]:
    start = ["--from", str(runs / cell.base)]
    changes = ALGORITHMS[cell.method]
    own = runs / f"{cell.name}-{cache_key(changes)}"
    run_verb(["train", *_common(cell), *in_float32("algorithms", changes), *start, *changes], own)
    rounds = evaluations(own)
    last = rounds[-1]
    reached = [entry["real_episodes"] for entry in rounds if entry["successes"] >= ENOUGH * entry["episodes"]]
    return {
        "task": cell.task,
        "seed": cell.seed,
        "algorithm": cell.method,
        "settings": as_measured(ALGORITHMS[cell.method]),
        "successes": last["successes"],
        "episodes": last["episodes"],
        "success": last["successes"] / last["episodes"],
        "success_interval": wilson_interval(last["successes"], last["episodes"]),
        "length_given_success": last["mean_success_length"],
        **_lengths(own, last["policy_version"]),
        "sft_success": rounds[0]["successes"] / rounds[0]["episodes"],
        "sft_length_given_success": rounds[0]["mean_success_length"],
        "episodes_to_80": reached[0] if reached else None,
        "real_episodes": last["real_episodes"],
        "gradient_steps": last["gradient_steps"],
        "rounds": [{name: entry[name] for name in _OF_A_ROUND} for entry in rounds],
    }


def _lengths(run: Path, version: int) -> dict[str, Any]:
    """Steps of a policy's evaluation episodes and of the supervised policy's, on the same seeds.

    Steps to success are those of different seeds for different policies: who solves more solves harder ones too. So
    they are also compared on the seeds that both solve, and over all episodes, failures with all their steps.
    """
    store = EpisodeStore(run / "evaluation", create=False)
    first, last = (_evaluated(store, own) for own in (0, version))
    solved = np.array([header.length for header in last if header.success], dtype=np.float64)
    both = [
        ours.length - theirs.length for ours, theirs in zip(last, first, strict=True) if ours.success and theirs.success
    ]
    return {
        "length_interval": bootstrap_interval(solved, np.mean, seed=0) if len(solved) else None,
        "length_minus_sft_where_both_solve": float(np.mean(both)) if both else None,
        "length_of_all": float(np.mean([header.length for header in last])),
        "sft_length_of_all": float(np.mean([header.length for header in first])),
    }


def _evaluated(store: EpisodeStore, version: int) -> list[EpisodeHeader]:
    """The evaluation episodes of a policy version, by seed."""
    headers = [store.read_header(name) for name in store.ids() if name.startswith(f"v{version:04d}-")]
    return sorted(headers, key=lambda header: header.seed or 0)


def _common(cell: Cell) -> list[str]:
    return ["--config", "algorithms", "--seed", str(cell.seed), f"task.env={cell.task}"]


def _pooled_p(cells: list[dict[str, Any]]) -> dict[str, float]:
    """p of each rival's difference to habc, of these very policies, stratified by tasks and seeds that both have."""
    return {
        rival: stratified_p(
            [(ours["successes"], ours["episodes"], own["successes"], own["episodes"]) for ours, own in pairs]
        )
        for rival, pairs in _beside(cells, "habc").items()
    }


def _minus(cells: list[dict[str, Any]], one: str) -> dict[str, dict[str, Any]]:
    """Subtract one algorithm from each rival on the tasks and seeds that both have: success in points, and steps of all
    episodes. Failures count with all their steps, so the second figure covers how often and how soon a policy succeeds.
    Means
    over training runs, and p of a paired t test over these: what is repeated is the run, not the episode.
    """
    found: dict[str, dict[str, Any]] = {}
    for rival, pairs in _beside(cells, one).items():
        differences = {
            "success_points": np.array([100 * (own["success"] - ours["success"]) for ours, own in pairs]),
            "steps": np.array([own["length_of_all"] - ours["length_of_all"] for ours, own in pairs]),
        }
        found[rival] = {"runs": len(pairs)} | {
            name: {"mean": float(values.mean()), "p": paired_p(values)} for name, values in differences.items()
        }
    return found


def _beside(cells: list[dict[str, Any]], one: str) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """Rival -> the cell of one algorithm and its own, for every task and seed that both have."""
    ours = {(cell["task"], cell["seed"]): cell for cell in cells if cell["algorithm"] == one}
    pairs: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {}
    for cell in cells:
        if cell["algorithm"] != one and (cell["task"], cell["seed"]) in ours:
            pairs.setdefault(cell["algorithm"], []).append((ours[cell["task"], cell["seed"]], cell))
    return pairs


def _length_minus_sft(cells: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return by algorithm how many more steps its last policy takes than its supervised one. Means over cells, with 95
    % bootstrap intervals over cells, since seeds are repeated. Given success, on the seeds that both solve, and over
    all episodes.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in dict.fromkeys(cell["algorithm"] for cell in cells):
        own = [cell for cell in cells if cell["algorithm"] == name]
        changes = {
            "given_success": [_change(cell, "length_given_success") for cell in own],
            "where_both_solve": [cell["length_minus_sft_where_both_solve"] for cell in own],
            "all_episodes": [_change(cell, "length_of_all") for cell in own],
        }
        found[name] = {kind: _mean_with_interval(values) for kind, values in changes.items()}
    return found


def _change(cell: dict[str, Any], key: str) -> float | None:
    last, first = cell[key], cell[f"sft_{key}"]
    return last - first if last and first else None


def _mean_with_interval(values: list[float | None]) -> dict[str, Any] | None:
    known = np.array([value for value in values if value is not None])
    if not len(known):
        return None
    return {"mean": float(known.mean()), "interval": bootstrap_interval(known, np.mean, seed=0)}


def _row(of_task: list[dict[str, Any]], task: str, name: str) -> str:
    cells = [cell for cell in of_task if cell["algorithm"] == name]
    if not cells:
        return ""
    given, overall = (
        " -> ".join(_mean_length(cells, key) for key in (f"sft_{length}", length))
        for length in ("length_given_success", "length_of_all")
    )
    both = [cell["length_minus_sft_where_both_solve"] for cell in cells]
    change = (
        f"{np.mean([own for own in both if own is not None]):+.1f}" if any(own is not None for own in both) else "-"
    )
    reached = ", ".join(str(cell["episodes_to_80"] or "-") for cell in cells)
    more = _minus(of_task, "habc").get(name)
    points, steps = ("", "") if more is None else (_difference(more["success_points"]), _difference(more["steps"]))
    return (
        f"| {task} | {name} | {len(cells)} | {_pooled(cells)[1]} | {given} | {change} | {overall} | {reached} "
        f"| {points} | {steps} |"
    )


def _difference(found: dict[str, Any]) -> str:
    return f"{found['mean']:+.1f}" if found["p"] is None else f"{found['mean']:+.1f} (p = {found['p']:.2g})"


def _mean_length(cells: list[dict[str, Any]], key: str) -> str:
    lengths = [cell[key] for cell in cells if cell[key]]
    return f"{np.mean(lengths):.0f}" if lengths else "-"
