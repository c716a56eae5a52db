"""Practice without a person: what sparse outcomes alone make of a supervised policy, by several methods.

Per task and seed all methods start from the same supervised policy and get the same number of real episodes. A cell is
one run; finished cells are kept in OUT/outcomes/, so that the table fills up bit by bit. Cells that have not been run
are left out. A run of 1,200 episodes begins with the rounds of its paired run of 450, where that exists.
"""

import argparse
import functools
import shutil
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml

from benchmarks.cells import Cells, origin
from benchmarks.practices import METHODS, OURS, as_measured
from benchmarks.runs import Cell, claim_run, evaluations, gain_columns, in_float32, run_verb, short_name
from benchmarks.statistics import paired_p
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.run_files import PARTS
from vla_rl.training.config import RunConfig
from vla_rl.training.evaluation import evaluate_parts

TASKS = ("vla_rl/PegInsert-v0",)
_PLAIN = {  # whose last policies are judged without critic and edit, too, and under which name
    "imagined_edit_1200": "without_search_1200",
    "bold": "bold_without_search_450",
    "bold_1200": "bold_without_search_1200",
}
_TWINS = {"imagined_edit_1200": "imagined_edit", "bold_1200": "bold"}  # of 450 episodes, and else the same
_EVALUATION_EPISODES = 200
_AT_ONCE = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-outcomes"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, seed by seed, and gather all cells."""
    cells = open_cells(options.out)
    runs = options.runs / cells.digest
    grid = [Cell(task, seed, name) for seed in options.seeds for task in options.tasks for name in options.methods]
    found = cells.by_name()
    for cell in grid:
        if cell.name in found and found[cell.name]["options"] != as_measured(METHODS[cell.method]):
            raise UserError(f"{cells.folder / cell.name}.json was measured with other options; move it away")
    missing = [] if options.gather else [cell for cell in grid if cell.name not in found]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(functools.partial(run_base, runs=runs), {cell.base: cell for cell in missing}.values()))
        list(pool.map(lambda cell: cells.write(cell.name, _run_cell(cell, runs, found)), missing))
    if missing and "speed" not in cells:
        cells.write("speed", _speed(runs / missing[0].base))
    for cell in grid:
        if not options.gather and cell.method in _PLAIN and RunFolder(runs / cell.name).is_finished():
            cells.once(f"{cell.name}-plain", functools.partial(_without_search, runs / cell.name))
    measured = cells.by_name()
    speed = measured.get("speed", {})
    return {
        **{name: value for name, value in speed.items() if name != "measured"},
        **_plain_policies(measured),
        **summary([cell for cell in cells.read() if "method" in cell]),
    }


def _plain_policies(measured: dict[str, dict[str, Any]]) -> dict[str, float]:
    """What the last policies of the default task make without critic and edit."""
    found: dict[str, float] = {}
    for method, key in _PLAIN.items():
        ends = f"-{method}-plain"
        plain = [
            float(cell["success"])
            for name, cell in measured.items()
            if name.startswith(f"{short_name(TASKS[0])}-") and name.endswith(ends)
        ]
        if plain:
            found |= {key: float(np.mean(plain)), f"{key}_runs": len(plain)}
    return found


def open_cells(out: Path) -> Cells:
    """The runs that have been measured."""
    return Cells(out / "outcomes", {"config": practice_alone()})


def practice_alone() -> dict[str, Any]:
    """The config of practice alone, one core a run, in float32 as all published runs are."""
    config = read_yaml(config_file("imagined"))
    del config["supervised"]["actor"]["precision"]
    return {**config, "torch_threads": 1}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the runs that have been measured."""
    of_default_task = {
        name: [cell for cell in runs if (cell["method"], cell["task"]) == (name, TASKS[0])] for name in METHODS
    }
    ours = of_default_task[OURS[0]]
    if not ours:
        raise UserError(f"no run of {OURS[0]} has been measured yet; leave --gather out")
    longer = of_default_task[OURS[1]]
    return {
        "without_person_450": fmean(cell["practised"]["success"] for cell in ours),
        "without_person_450_runs": len(ours),
        "steps_ratio": float(np.mean([_steps_ratio(cell) for cell in ours])),
        **_longer(longer),
        **_beside(ours, of_default_task["bold"], "bold_450"),
        **_beside(ours, of_default_task["bold_hurried"], "bold_hurried_450"),
        **_beside(longer, of_default_task["bold_1200"], "bold_1200"),
        **_other_tasks(runs),
        **against_rivals(runs, OURS[0], [name for name in METHODS if name not in OURS]),
        "runs": runs,
    }


def _longer(cells: list[dict[str, Any]]) -> dict[str, float]:
    """Success and steps after 1,200 episodes."""
    if not cells:
        return {}
    return {
        "without_person_1200": fmean(cell["practised"]["success"] for cell in cells),
        "without_person_1200_runs": len(cells),
        "steps_ratio_1200": float(np.mean([_steps_ratio(cell) for cell in cells])),
    }


def _beside(ours: list[dict[str, Any]], others: list[dict[str, Any]], key: str) -> dict[str, float]:
    """What another row makes of success and steps, and p of the difference to ours, paired over shared seeds."""
    if not others:
        return {}
    own = {cell["seed"]: cell["practised"] for cell in ours}
    both = [(cell["practised"], own[cell["seed"]]) for cell in others if cell["seed"] in own]
    found = {
        key: float(np.mean([cell["practised"]["success"] for cell in others])),
        f"{key}_steps_ratio": float(np.mean([_steps_ratio(cell) for cell in others])),
    }
    for name in ("success", "steps"):
        if (p := paired_p([other[name] - mine[name] for other, mine in both])) is not None:
            found[f"{key}_{name}_p"] = p
    return found


def _other_tasks(runs: list[dict[str, Any]]) -> dict[str, float]:
    """What practice adds on tasks other than the default one, the mean over them and the least, each of its seeds."""
    found: dict[str, float] = {}
    for method, prefix, suffix in (
        (OURS[1], "", "points"),
        (OURS[0], "", "450_points"),
        ("bold_1200", "bold_", "points"),
        ("bold", "bold_", "450_points"),
    ):
        gains: dict[str, list[float]] = {}
        for cell in runs:
            if cell["method"] == method and cell["task"] != TASKS[0]:
                gain = 100 * (cell["practised"]["success"] - cell["supervised"]["success"])
                gains.setdefault(cell["task"], []).append(gain)
        if gains:
            each = [float(np.mean(of_task)) for of_task in gains.values()]
            found[f"{prefix}mean_gain_other_tasks_{suffix}"] = float(np.mean(each))
            found[f"{prefix}least_gain_other_tasks_{suffix}"] = min(each)
    return found


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per task and method."""
    cells: list[dict[str, Any]] = result["runs"]
    head = [
        "| task | method | real episodes | seeds | supervised | after each third, mean over seeds | after practice "
        "| gain, points | steps to success, first -> last | processor minutes |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups = sorted({(cell["task"], list(METHODS).index(cell["method"])) for cell in cells})
    rows = [
        _row([cell for cell in cells if (cell["task"], cell["method"]) == (task, list(METHODS)[method])])
        for task, method in groups
    ]
    plain = "".join(
        f"Without critic and edit, one draw at a time, the last policies of `{method}` make "
        f"{result[key]:.0%} ({result[f'{key}_runs']} seeds). "
        for method, key in _PLAIN.items()
        if key in result
    )
    note = (
        f"{plain}Practice without a person (`sft`: no episodes, more steps on the "
        f"demonstrations), {cells[0]['evaluation_episodes']} held-out evaluation seeds. Success pooled over seeds [95 "
        "% Wilson interval of these very policies]; the gain is the mean over seeds [95 % bootstrap interval over "
        f"seeds]. One core a run. {origin(cells)} Command: `{result['command']}`."
    )
    return "\n".join([*head, *rows, "", note])


def _row(cells: list[dict[str, Any]]) -> str:
    curve = np.mean([cell["curve"] for cell in cells], 0) if all(cell["curve"] for cell in cells) else []
    thirds = ", ".join(f"{success:.0%}" for success in curve) or "-"
    supervised, *rest = gain_columns(cells).removeprefix("|").split("|")
    first = cells[0]
    head = f"| {first['task']} | `{first['method']}` | {first['practice_episodes']} | {len(cells)} "
    return f"{head}|{supervised}| {thirds} |{'|'.join(rest)}"


def _steps_ratio(cell: dict[str, Any]) -> float:
    return float(cell["practised"]["steps"] / cell["supervised"]["steps"])


def against_rivals(cells: Sequence[dict[str, Any]], ours: str, rivals: Sequence[str]) -> dict[str, Any]:
    """The best rival by its mean over the runs that both have, and p of the paired difference over these."""
    by_run = {(cell["task"], cell["seed"], cell["method"]): cell["practised"]["success"] for cell in cells}
    our_runs = {key[:2]: success for key, success in by_run.items() if key[2] == ours}
    differences = {}
    for rival in rivals:
        shared = [run for run in our_runs if (*run, rival) in by_run]
        if len(shared) > 1:
            differences[rival] = np.array([our_runs[run] - by_run[*run, rival] for run in shared])
    if not differences:
        return {}
    best = min(differences, key=lambda rival: float(differences[rival].mean()))
    return {
        "best_rival": best,
        "points_more_than_best_rival": float(100 * differences[best].mean()),
        "p_against_best_rival": paired_p(differences[best]),
    }


def _arguments(cell: Cell) -> list[str]:
    one_core = ["workers=0", f"environments_per_worker={_AT_ONCE}", "torch_threads=1"]
    harder = [] if cell.task == TASKS[0] else ["task.difficulty=0.5"]
    judged = f"budget.evaluation_episodes={_EVALUATION_EPISODES}"
    begun = ["train", "--config", "imagined", "--seed", str(cell.seed)]
    return [*begun, f"task.env={cell.task}", *harder, judged, *one_core]


def run_base(cell: Cell, runs: Path, changes: Sequence[str] = ()) -> None:
    """Make the supervised policy of a task and seed and evaluate it, if that has not been done."""
    run_verb([*_arguments(cell), *in_float32("imagined"), "budget.rounds=0", *changes], runs / cell.base)


def _run_cell(cell: Cell, runs: Path, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    folder, base = runs / cell.name, runs / cell.base
    before_s = _begin_with_twin(cell, runs, found)
    cpu_s = before_s + practise_from(cell, runs, METHODS[cell.method])
    first, played = evaluations(base)[-1], evaluations(folder)[1:]
    last = played[-1]
    budget = read_yaml(folder / "config.yaml")["budget"]
    return {
        "task": cell.task,
        "seed": cell.seed,
        "method": cell.method,
        "options": as_measured(METHODS[cell.method]),
        "curve": [entry["successes"] / entry["episodes"] for entry in after_each_third(played)],
        **{
            name: {"success": entry["successes"] / entry["episodes"], "steps": entry["mean_success_length"]}
            for name, entry in (("supervised", first), ("practised", last))
        },
        "evaluation_episodes": last["episodes"],
        "practice_episodes": budget["rounds"] * budget["episodes_per_round"],
        "cpu_s": round(cpu_s, 1),
    }


def _begin_with_twin(cell: Cell, runs: Path, twins: dict[str, dict[str, Any]]) -> float:
    """Copy the run of the fewer rounds that this one would begin with; returns the processor seconds that it took."""
    folder, twin = runs / cell.name, runs / f"{cell.base}-{_TWINS.get(cell.method, '')}"
    if cell.method not in _TWINS or twin.name not in twins or not RunFolder(twin).is_finished():
        return 0.0
    if not folder.exists():
        claim_run(_practice(cell, runs, METHODS[cell.method]), folder)
        unfinished = runs / f".{folder.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        shutil.copytree(twin, unfinished)
        config = read_yaml(unfinished / "config.yaml")
        config["budget"]["rounds"] = load_config(RunConfig, config_file("imagined"), METHODS[cell.method]).budget.rounds
        (unfinished / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        RunFolder(unfinished).write_summary({**RunFolder(unfinished).read_summary(), "finished": False})
        unfinished.replace(folder)
    return float(twins[twin.name]["cpu_s"])


def after_each_third(played: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of the evaluations after each round, those after a third, two thirds and all of the rounds."""
    return [played[len(played) * third // 3 - 1] for third in (1, 2, 3)]


def practise_from(cell: Cell, runs: Path, changes: list[str]) -> float:
    """Practice from the supervised policy of a cell's task and seed, with changes to the config of practice alone, or
    continue that run. Return the seconds of processor time of this call.
    """
    return run_verb(_practice(cell, runs, changes), runs / cell.name)


def _practice(cell: Cell, runs: Path, changes: list[str]) -> list[str]:
    return [*_arguments(cell), *in_float32("imagined", changes), "--from", str(runs / cell.base), *changes]


def _without_search(run: Path) -> dict[str, float]:
    """What the last policy of a run makes on the evaluation's seeds without critic and edit: its first draw acts."""
    plain = evaluate_parts(run)[PARTS[0]]
    return {"success": plain["successes"] / plain["episodes"]}


def _speed(base: Path) -> dict[str, float]:
    """Return the speed-up of episodes that take turns, with pictures only where a chunk is planned, over one after the
    other. On this core, in this process.
    """
    import torch

    from vla_rl.training.evaluation import evaluation_jobs
    from vla_rl.training.simulator import SimulatorWorker

    torch.set_num_threads(1)
    config = load_config(RunConfig, base / "config.yaml")
    took = {}
    with tempfile.TemporaryDirectory() as folder:
        for at_once in (1, _AT_ONCE):
            worker = SimulatorWorker(replace(config, environments_per_worker=at_once))
            store = Path(folder) / str(at_once)
            jobs = evaluation_jobs(config, base / "policies" / "version_0000", store, 2 * _AT_ONCE)
            jobs = [replace(job, pictures=at_once == 1) for job in jobs]
            list(worker.run(jobs[:_AT_ONCE]))  # builds the environments
            started_s = time.process_time()
            list(worker.run(jobs[_AT_ONCE:]))
            took[at_once] = time.process_time() - started_s
            worker.close()
    return {"acting_speedup_batched": took[1] / took[_AT_ONCE], "episodes_per_cpu_s": _AT_ONCE / took[_AT_ONCE]}
