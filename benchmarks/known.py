"""Known benchmarks from the true state: the preset `alone` and two rivals beside the published figures of other groups.

Per task and seed, all methods start from the same supervised policy and get 450 practice episodes without a person. A
cell is one run, kept in OUT/known/; an interrupted benchmark continues where it was. Run it where the suites are
installed (docs/known_benchmarks.md).
"""

import argparse
import functools
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cells import Cells, origin
from benchmarks.outcomes import against_rivals
from benchmarks.pictures.plotting import axis_labels, new_figure, plain, save_svg, title
from benchmarks.practices import METHODS
from benchmarks.runs import Cell, run_verb, short_name
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.data.store import EpisodeStore
from vla_rl.report.run_files import PARTS, Evaluation, Run, read_run
from vla_rl.report.statistics import normal_quantile, score_interval
from vla_rl.training.evaluation import evaluate_parts

OURS = "alone"
_METHODS = {
    OURS: [],
    "filtered_bc": [
        *METHODS["filtered_bc"],
        "budget.compare_episodes=0",
        "budget.steps_per_round=1600",  # it imitates as long as ours
        "learning.actor.decay_steps=1600",
    ],
    "residual_ppo": [*METHODS["residual_ppo"], "budget.compare_episodes=0", "budget.evaluate_every_round=false"],
}
PICTURE = "images/known.svg"
_IBRL_SAMPLES = 40_000


@dataclass(frozen=True)
class Published:
    """A figure of another group, from its paper.

    Attributes:
        source: Method and paper.
        figure: As the paper states it.
        differs: Every difference to our protocol that matters.
    """

    source: str
    figure: str
    differs: str


@dataclass(frozen=True)
class Protocol:
    """The protocol of a task.

    Attributes:
        demonstrations: Number of scripted demonstrations.
        rounds: Practice rounds of 150 episodes.
        evaluation: Number of held-out starts after each round.
        has_rivals: Whether rivals run without being asked for.
        action_repeat: Simulator steps per sample in the count of the published figures.
        published: Figures of other groups.
    """

    demonstrations: int
    published: tuple[Published, ...] = ()
    rounds: int = 3
    evaluation: int = 100
    has_rivals: bool = False
    action_repeat: int = 1


_MULTI_HUMAN = "300 human demonstrations; robosuite 1.2 to 1.4"
_ROBOMIMIC = "human demonstrations; pixels; robosuite 1.2 to 1.4"
_IBRL = Published(
    "IBRL, arXiv 2311.02198",
    "solved within 40k samples",
    "pixels; as many scripted demonstrations. A sample is two simulator steps (action repeat 2), an episode has 100; "
    "it learns after every step",
)
_METAWORLD = Protocol(3, (_IBRL,), action_repeat=2)
_CAN = (
    Published("IBRL, arXiv 2311.02198", "solved within 200k steps", f"10 {_ROBOMIMIC}; episodes of 200 steps"),
    Published("ResFiT, arXiv 2509.19301", "near perfect at 75k steps", f"{_MULTI_HUMAN}; pixels and joints"),
    Published("Q-chunking, arXiv 2507.07969", "85, 91 % (offline, +500k)", f"{_MULTI_HUMAN}; state; 1M offline steps"),
    Published("BC-RNN, robomimic model zoo", "100 %", f"200 {_ROBOMIMIC}; no practice"),
    Published("Diffusion Policy, arXiv 2303.04137", "97 %", f"200 {_ROBOMIMIC}; no practice; mean of ten checkpoints"),
)
_SQUARE = (
    Published("IBRL, arXiv 2311.02198", "solved within 500k steps", f"50 {_ROBOMIMIC}; episodes of 300 steps"),
    Published("ResFiT, arXiv 2509.19301", "> 90 % within 150k steps", f"{_MULTI_HUMAN}; pixels and joints"),
    Published("Q-chunking, arXiv 2507.07969", "37, 77 % (offline, +500k)", f"{_MULTI_HUMAN}; state; 1M offline steps"),
    Published("BC-RNN, robomimic model zoo", "78 %", f"200 {_ROBOMIMIC}; no practice"),
    Published("Diffusion Policy, arXiv 2303.04137", "92 %", f"200 {_ROBOMIMIC}; no practice; mean of ten checkpoints"),
)
_ORACLE = "1M oracle transitions; one agent per task, as we read it. Ours is one for five, with goals as state"


def _act(scripted: int, human: int) -> Published:
    words = "50 demonstrations, scripted (by another script) or human; pixels; no practice"
    return Published("ACT, arXiv 2304.13705, table I", f"{scripted} % scripted, {human} % human", words)


TASKS = {
    **{f"vla_rl/MetaWorld{name}-v0": _METAWORLD for name in ("Assembly", "BoxClose", "CoffeePush", "StickPull")},
    "robosuite/Lift-v0": Protocol(10, rounds=1),
    "robosuite/PickPlaceCan-v0": Protocol(10, _CAN, has_rivals=True),
    "robosuite/NutAssemblySquare-v0": Protocol(50, _SQUARE, has_rivals=True),
    "aloha/TransferCube-v0": Protocol(50, (_act(86, 50),), evaluation=50),
    "aloha/Insertion-v0": Protocol(50, (_act(32, 20),), evaluation=50),
    "ogbench/CubeSingle-v0": Protocol(
        100,
        (Published("FQL, arXiv 2502.02538", "96 % (ReBRAC 91, IQL 83)", f"{_ORACLE}; offline, no practice"),),
    ),
    "ogbench/CubeDouble-v0": Protocol(
        100,
        (
            Published("FQL, arXiv 2502.02538", "40 -> 92 % (task 2)", f"{_ORACLE}; then 1M practice steps"),
            Published("Q-chunking, arXiv 2507.07969", "66 -> 98 %", f"{_ORACLE}; then 1M practice steps"),
        ),
    ),
}
_NAMES = {short_name(task): task for task in TASKS}
_KEYS = {  # tasks of one figure
    "robosuite_lift": "Lift",
    "robosuite_can": "PickPlaceCan",
    "robosuite_square": "NutAssemblySquare",
    "aloha_transfer": "TransferCube",
    "aloha_insertion": "Insertion",
    "ogbench_cube_single": "CubeSingle",
    "ogbench_cube_double": "CubeDouble",
}
_LONG = [task for task in TASKS if "MetaWorld" in task]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", nargs="+", default=list(_NAMES), choices=list(_NAMES), metavar="NAME")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--methods", nargs="+", choices=list(_METHODS), help="default: rivals on Can and Square only")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-known"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")
    parser.add_argument("--changes", nargs="+", default=[], metavar="KEY=VALUE", help="for a trial in another --out")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, seed by seed, and gather all cells."""
    os.environ.setdefault("MUJOCO_GL", "egl")
    cells = open_cells(options.out, options.changes)
    for seed, name in itertools.product([] if options.gather else options.seeds, options.task):
        protocol = TASKS[_NAMES[name]]
        for method in options.methods or (_METHODS if protocol.has_rivals else [OURS]):
            cell = Cell(_NAMES[name], seed, method)
            cells.once(cell.name, functools.partial(_measure, cell, options.runs / cells.digest, options.changes))
    measured = cells.read()
    if any(cell["method"] == OURS for cell in measured):
        _save_curves(measured, options.out.parent / PICTURE)
    return {**figures(measured), "cells": measured}


def open_cells(out: Path, changes: Sequence[str] = ()) -> Cells:
    """Open the cells that have been measured.

    Raises:
        UserError: If one was measured with another preset or protocol.
    """
    cells = Cells(out / "known", {"config": read_yaml(config_file("alone")), "changes": [*changes]})
    for name, found in cells.by_name().items():
        if found["arguments"] != _arguments(Cell(found["task"], found["seed"], found["method"]), changes):
            raise UserError(f"{cells.folder / name}.json was measured with another protocol; move it away")
    return cells


def _arguments(cell: Cell, changes: Sequence[str], base: bool = False) -> list[str]:
    protocol, method = TASKS[cell.task], [] if base else _METHODS[cell.method]
    return [
        *("train", "--config", "alone", "--seed", str(cell.seed), f"task.env={cell.task}"),
        f"budget.demonstrations={protocol.demonstrations}",
        f"budget.evaluation_episodes={protocol.evaluation}",
        f"budget.rounds={protocol.rounds}",
        *("workers=2", "environments_per_worker=8"),  # a robosuite environment takes 300 MB
        "task.kwargs.pictures=false",
        *method,
        *changes,
        *(["budget.rounds=0"] if base else []),
    ]


def _measure(cell: Cell, runs: Path, changes: Sequence[str]) -> dict[str, Any]:
    """Run a cell to its end, or what is left of it, and read its figures."""
    base, own = runs / cell.base, runs / cell.name
    run_verb(_arguments(cell, changes, base=True), base)
    run_verb([*_arguments(cell, changes), "--from", str(base)], own)
    parts = evaluate_parts(own) if cell.method == OURS else {}
    found, protocol = read_run(own), TASKS[cell.task]
    first, last = found.policies[0], found.policies[-1]
    return {
        "task": cell.task,
        "seed": cell.seed,
        "method": cell.method,
        "arguments": _arguments(cell, changes),
        "demonstrations": protocol.demonstrations,
        "evaluation_episodes": last.episodes,
        "supervised": {"success": first.rate},
        "practised": {"success": last.rate},
        "parts": {name: entry["successes"] / entry["episodes"] for name, entry in parts.items()},
        "curve": _curve(found, protocol.action_repeat),
        "films": {"before": _telling(own, first), "after": _telling(own, last)},
        "wall_s": sum(seconds for each in (read_run(base), found) for _, seconds in each.stages),
    }


def _curve(run: Run, action_repeat: int) -> list[dict[str, Any]]:
    """Success after each evaluated round, and what practice had taken until then."""
    practice = [each for kind in ("collect", "compare") for each in run.records(kind) if each["round"]]
    curve = []
    for policy in run.policies:
        played = [record for record in practice if record["round"] <= policy.round]
        steps = round(sum(record["episodes"] * record["mean_length"] for record in played))
        curve.append(
            {
                "practice_episodes": sum(int(record["episodes"]) for record in played),
                "environment_steps": steps,
                "samples": steps // action_repeat,
                "success": policy.rate,
                "steps_to_success": policy.mean_success_length,
            }
        )
    return curve


def _telling(run: Path, policy: Evaluation) -> dict[str, str]:
    """Ids of one success and one failure of a policy in the run's evaluation; `vla-rl report` films them."""
    store = EpisodeStore(run / "evaluation", create=False)
    found: dict[str, str] = {}
    for name in store.ids():
        if name.startswith(f"v{policy.round:04d}-"):
            found.setdefault("success" if store.read_header(name).success else "failure", name)
    return found


def figures(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The figures of the cells that have been measured. A figure that lacks a task is left out."""
    ours = {task: [cell for cell in cells if (cell["task"], cell["method"]) == (task, OURS)] for task in TASKS}
    found: dict[str, Any] = {}

    def mean(tasks: Sequence[str], of_cell: Callable[[dict[str, Any]], float]) -> float | None:
        if not all(ours[task] for task in tasks):
            return None
        return float(np.mean([np.mean([of_cell(cell) for cell in ours[task]]) for task in tasks]))

    found["metaworld_ibrl_four_mean"] = mean(_LONG, _within_samples)
    for key, name in _KEYS.items():
        found[key] = mean([_NAMES[name]], _last)
    rivals = against_rivals([cell for cell in cells if TASKS[cell["task"]].has_rivals], OURS, list(_METHODS)[1:])
    found["points_over_best_rival"] = rivals.get("points_more_than_best_rival")
    found["p_against_best_rival"] = rivals.get("p_against_best_rival")
    found["critic_gain_points_long"] = mean([*_LONG, _NAMES["NutAssemblySquare"]], _critic_gain)
    each = [task for task in TASKS if ours[task]]
    if each:
        found["critic_harm_points_max"] = max(-(mean([task], _critic_gain) or 0.0) for task in each)
        found["tasks_made_worse"] = sum((mean([task], _gain) or 0.0) < 0 for task in each)
        found["hours_per_seed_max"] = max(cell["wall_s"] for task in each for cell in ours[task]) / 3600
    return {key: value for key, value in found.items() if value is not None}


def _last(cell: dict[str, Any]) -> float:
    return float(cell["practised"]["success"])


def _gain(cell: dict[str, Any]) -> float:
    return float(cell["practised"]["success"] - cell["supervised"]["success"])


def _critic_gain(cell: dict[str, Any]) -> float:
    """Points that residual and critic add to the last policy."""
    return 100 * (_last(cell) - float(cell["parts"].get(PARTS[0], _last(cell))))


def _within_samples(cell: dict[str, Any]) -> float:
    """Success of the last policy that took at most 40,000 samples in IBRL's count."""
    return float([point["success"] for point in cell["curve"] if point["samples"] <= _IBRL_SAMPLES][-1])


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per task and method, then one row per published figure."""
    cells = result["cells"]
    if not cells:
        return "Not measured yet."
    head = [
        "| task | demonstrations | method | seeds | supervised | success after practice episodes "
        "| plain, + residual, full | simulator steps of practice (samples) | hours |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    groups = [[c for c in cells if (c["task"], c["method"]) == key] for key in itertools.product(TASKS, _METHODS)]
    published = [row for group in groups if group and group[0]["method"] == OURS for row in _published_rows(group)]
    if published:
        columns = "| task | ours | published | figure | differences to ours |"
        published = [columns, "|---|---|---|---|---|", *published, ""]
    note = (
        "Success is a mean over seeds; in brackets, the 95 % Wilson interval of these very policies. "
        "It counts each held-out start once, because all seeds share the starts. "
        "Held-out starts: 100, aloha 50. A sample is a simulator step; Meta-World: two steps, as IBRL counts. "
        "The gain of the critic is measured on the last policy. Where it acts without a residual, all parts are equal. "
        f"Hours are wall-clock time with two workers. {origin(cells)} Command: `{result['command']}`."
    )
    picture = f"![Success against practice episodes and against simulator steps](../{PICTURE})"
    return "\n".join([*head, *(_row(group) for group in groups if group), "", *published, picture, "", note])


def _row(cells: list[dict[str, Any]]) -> str:
    first = cells[0]
    curves = list(zip(*(cell["curve"] for cell in cells), strict=True))[1:]
    shown = [f"{at[0]['practice_episodes']}: {np.mean([point['success'] for point in at]):.0%}" for at in curves]
    named = [name for name in PARTS if any(name in cell["parts"] for cell in cells)]
    parts = [f"{np.mean([cell['parts'].get(name, _last(cell)) for cell in cells]):.0%}" for name in named]
    steps, samples = (np.mean([c["curve"][-1][key] for c in cells]) / 1e3 for key in ("environment_steps", "samples"))
    whole = ", ".join([*parts, f"{np.mean([_last(cell) for cell in cells]):.0%}"])
    without = "the plain policy acts" if first["method"] == OURS else "-"
    return (
        f"| {first['task']} | {first['demonstrations']} | `{first['method']}` | {len(cells)} "
        f"| {_pooled(cells, 'supervised')} | {', '.join([*shown[:-1], ''])}**{_pooled(cells, 'practised')}** "
        f"| {whole if parts else without} "
        f"| {steps:.0f}k ({samples:.0f}k) | {np.mean([cell['wall_s'] for cell in cells]) / 3600:.1f} |"
    )


def _pooled(cells: list[dict[str, Any]], key: str) -> str:
    """The mean over seeds and its interval. Seeds share their starts, so further seeds do not narrow it."""
    rate = float(np.mean([cell[key]["success"] for cell in cells]))
    low, high = score_interval(rate, cells[0]["evaluation_episodes"], normal_quantile(0.95))
    return f"{rate:.0%} [{low * 100:.0f}, {high * 100:.0f}]"


def _published_rows(cells: list[dict[str, Any]]) -> list[str]:
    task, ours = cells[0]["task"], f"{np.mean([_last(cell) for cell in cells]):.0%}"
    row = f"| {task} | {ours} |"
    return [f"{row} {each.source} | {each.figure} | {each.differs} |" for each in TASKS[task].published]


def _save_curves(cells: list[dict[str, Any]], file: Path) -> None:
    """Draw success of the preset against practice episodes and against simulator steps, one line per task."""
    figure = new_figure(10.6, 3.6)
    for index, (key, words) in enumerate((("practice_episodes", "practice episodes"), ("environment_steps", "steps"))):
        axes = figure.add_axes((0.05 + 0.41 * index, 0.15, 0.36, 0.75))
        for task in TASKS:
            curves = [cell["curve"] for cell in cells if (cell["task"], cell["method"]) == (task, OURS)]
            at = list(zip(*curves, strict=True))
            x, y = ([np.mean([point[name] for point in each]) for each in at] for name in (key, "success"))
            if curves:
                axes.plot(x, y, marker="o", markersize=3, label=short_name(task))
        axes.set_ylim(0, 1.02)
        axes.yaxis.set_major_formatter(lambda rate, _: f"{rate:.0%}")
        axis_labels(axes, words)
        plain(axes, "y")
        title(axes, "success, mean over seeds")
    axes.legend(fontsize=7.5, frameon=False, loc="center left", bbox_to_anchor=(1.02, 0.5))
    save_svg(figure, file)
