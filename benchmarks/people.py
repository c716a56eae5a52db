"""Imperfect people: algorithms with slow, late and hesitant demonstrators and supervisors, at equal budget.

Per condition (who demonstrates and takes over), task and seed, all methods start from the same demonstrations and the
same supervised policy. A cell is one run; finished cells are kept in OUT/people/, so that the table fills up bit by
bit. Cells that have not been run are left out.
"""

import argparse
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import people_habits
from benchmarks.algorithms import ALGORITHMS
from benchmarks.cells import Cells, origin
from benchmarks.practices import WHOLE_EDITS, as_measured
from benchmarks.runs import Cell, evaluations, in_float32, run_verb
from benchmarks.statistics import paired_p
from sim.operators import OPERATORS
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.data.store import EpisodeStore
from vla_rl.report.sinks import read_records

DEFAULT_TASK = "vla_rl/PegInsert-v0"
LIMITS = {DEFAULT_TASK: 300, "vla_rl/LidOnBox-v0": 300, "vla_rl/Handover-v0": 360}
"""Steps of an episode: the tasks' own limits are made for the expert."""
CONDITIONS = {
    "better": ["better_1", "better_2"],
    "worse": ["worse_1", "worse_2"],
    "mixed": list(OPERATORS),
}
_CUT = ["learning.credit.idle_steps=4"]
_OURS = [  # as many gradient steps of the policy as the others; those of the critic of chunks come on top
    "algorithm=imagined_edit",
    "exploration=0.1",
    "budget.steps_per_round=650",
    "learning.distill_steps=250",
    *_CUT,
    "learning.discount=0.997",
]
_BY_PEOPLE = [*_OURS, "learning.mixture.rollouts=0"]  # imitates people's steps only, as HG-DAgger does
_MARKS_OFF = ["takeover.options.mark_jitter_s=0.5"]  # by up to ten steps, for every person
_SELDOM = ["takeover.options.rescue_probability=0.2"]
_FOR_PEOPLE = [
    *_CUT,
    "learning.credit.takeover_lead_steps=10",
    "learning.advantage.weighs_people=true",
]
METHODS = {
    **{name: ALGORITHMS[name] for name in ("sft", "hg_dagger", "filtered_bc", "recap", "awr", "habc_paper", "no_ve")},
    "sft_smooth_half": ALGORITHMS["sft"],
    "hg_dagger_idle_cut": [*ALGORITHMS["hg_dagger"], *_CUT],
    "filtered_bc_idle_cut": [*ALGORITHMS["filtered_bc"], *_CUT],
    "hg_dagger_retimed": [*ALGORITHMS["hg_dagger"], *_CUT, "task.demonstration_speed=1.5"],
    "recap_guided": [*ALGORITHMS["recap"], "policy.guidance_scale=2"],  # the middle of the recommended 1.5 to 2.5
    "habc_for_people": _FOR_PEOPLE,
    "ours": _OURS,
    "ours_marks_off": [*_OURS, *_MARKS_OFF],
    # How many of those in trouble are rescued, in place of a half.
    "ours_seldom": [*_OURS, *_SELDOM],
    "ours_always": [*_OURS, "takeover.options.rescue_probability=1"],
    "ours_alone": [*_OURS, "takeover.enabled=false"],
    "ours_bold": [*_OURS, *WHOLE_EDITS],
    "by_people": _BY_PEOPLE,
    "by_people_marks_off": [*_BY_PEOPLE, *_MARKS_OFF],
    "by_people_seldom": [*_BY_PEOPLE, *_SELDOM],
    # After how long without progress people take over, in place of 1 s.
    "by_people_early": [*_BY_PEOPLE, "takeover.options.stall_s=0.4"],
    "by_people_late": [*_BY_PEOPLE, "takeover.options.stall_s=3"],
}
_CLUMSY = ("mixed", "worse")
_RIVALS = ("hg_dagger", "hg_dagger_idle_cut", "filtered_bc")
_RESET_S = 10.0  # from the end of an episode to the start of the next, also after failures
_LEVELS = (80, 90, 95)
_PICTURE, _FILM = "images/operators.png", "images/operators.gif"


@dataclass(frozen=True)
class PeopleCell(Cell):
    """One run with certain people."""

    condition: str

    @property
    def base(self) -> str:
        """The run that the cells of a condition, task and seed start from."""
        return f"{self.condition}-{super().base}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--conditions", nargs="+", default=list(CONDITIONS), choices=list(CONDITIONS))
    parser.add_argument("--tasks", nargs="+", default=[DEFAULT_TASK], choices=list(LIMITS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time, one core each")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-people"), help="where run folders are kept")
    parser.add_argument("--habits", action="store_true", help="run nothing; measure and draw the operators themselves")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, seed by seed, and gather all cells."""
    people = {name: asdict(habits) for name, habits in OPERATORS.items()}
    cells = Cells(options.out / "people", {"config": read_yaml(config_file("algorithms")), "operators": people})
    runs = options.runs / cells.digest
    if options.habits and not options.gather:
        people_habits.picture(options.out.parent / _PICTURE, options.out.parent / _FILM)
        for task in people_habits.TASKS:
            cells.once(f"habits-{task.partition('/')[2]}", functools.partial(people_habits.measure, task))
    grid = [
        PeopleCell(task, seed, method, condition)
        for seed in options.seeds
        for condition in options.conditions
        for task in options.tasks
        for method in options.methods
    ]
    found = cells.by_name()
    for cell in grid:
        if cell.name in found and found[cell.name]["options"] != as_measured(METHODS[cell.method]):
            raise UserError(f"{cells.folder / cell.name}.json was measured with other options; move it away")
    missing = [] if options.gather or options.habits else [cell for cell in grid if cell.name not in found]
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda cell: _run_base(cell, runs), {cell.base: cell for cell in missing}.values()))
        list(pool.map(lambda cell: cells.write(cell.name, _run_cell(cell, runs)), missing))
    measured = cells.read()
    done = [cell for cell in measured if "method" in cell]
    return {**summary(done), "habits": [cell for cell in measured if "people" in cell], "runs": done}


def successes_per_hour(lengths: list[int], successes: int, control_hz: float) -> float:
    """Successes in an hour of episodes of these lengths, failures in full, with a reset after each."""
    return 3600 * successes / (sum(lengths) / control_hz + _RESET_S * len(lengths))


def minutes_to(rounds: list[dict[str, Any]], level: int) -> float | None:
    """The person-minutes spent when a success rate of ``level`` % was first reached; None if it never was."""
    reached = [entry["person_minutes"] for entry in rounds if 100 * entry["success"] >= level]
    return reached[0] if reached else None


def summary(runs: list[dict[str, Any]]) -> dict[str, float]:
    """The figures that compare ours with its rivals, over the runs that both have; those measured. Ratios are those of
    the worse one of the conditions with clumsy people.
    """
    grid: dict[tuple[str, str], dict[tuple[str, int], dict[str, Any]]] = {}
    for cell in runs:
        grid.setdefault((cell["condition"], cell["method"]), {})[cell["task"], cell["seed"]] = cell

    def pairs(
        condition: str, rival: str, figure: Callable[[dict[str, Any]], float], who: str = "ours"
    ) -> NDArray[np.float64]:
        """Ours and the rival's, [2, runs]."""
        ours, theirs = (grid.get((condition, method), {}) for method in (who, rival))
        shared = [key for key in ours if key in theirs]
        return np.array([[figure(side[key]) for key in shared] for side in (ours, theirs)])

    speed, rate, minutes = [], [], []
    for condition in _CLUMSY:
        if paces := _paces(list(grid.get((condition, "ours"), {}).values())):
            speed.append(float(np.mean(paces)))
        rates = [pairs(condition, rival, _rate) for rival in _RIVALS]
        if all(both.size for both in rates):
            rate.append(min(float(ours.mean() / theirs.mean()) for ours, theirs in rates))
        if (both := pairs(condition, "hg_dagger", _minutes)).size:
            minutes.append(float(both[0].mean() / both[1].mean()))
    ratios = {
        "successes_per_hour_ratio": min(rate, default=None),
        "steps_ratio_to_teacher": max(speed, default=None),
        "person_minutes_ratio": max(minutes, default=None),
    }
    found = {name: value for name, value in ratios.items() if value is not None}
    off = np.concatenate(
        [
            pairs(condition, f"{who}_marks_off", _success, who)
            for condition in CONDITIONS
            for who in ("ours", "by_people")
        ],
        axis=1,
    )
    if off.size:
        found["marks_off_cost_points"] = 100 * float((off[0] - off[1]).mean())
    for rival in ("hg_dagger", "filtered_bc"):
        both = np.concatenate([pairs(condition, rival, _rate) for condition in _CLUMSY], axis=1)
        if (p := paired_p(both[0] - both[1])) is not None:
            found[f"p_against_{rival}"] = p
    return found


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per condition, task and method."""
    runs: list[dict[str, Any]] = result["runs"]
    if not runs:
        return "No run has been measured yet: `python -m benchmarks people`."
    head = [
        "| operators | task | method | seeds | success | steps to success | of the teachers' | successes an hour "
        "| person-minutes | until 80, 90, 95 % | effective samples |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    groups = sorted({(cell["condition"], cell["task"], list(METHODS).index(cell["method"])) for cell in runs})
    rows = [
        _row([c for c in runs if (c["condition"], c["task"], c["method"]) == (condition, task, list(METHODS)[number])])
        for condition, task, number in groups
    ]
    note = (
        f"After {runs[0]['practice_episodes']} practice episodes (`sft`: none), {runs[0]['evaluation_episodes']} "
        f"held-out evaluation seeds, means over seeds. One core a run. {origin(runs)} "
        f"Command: `{result['command']}`."
    )
    return "\n".join([*head, *rows, "", note])


def habits(result: dict[str, Any]) -> str:
    """Markdown: the operators themselves."""
    found: list[dict[str, Any]] = result["habits"]
    note = (
        f"{people_habits.EPISODES} demonstrations each, the same starts, difficulty {people_habits.DIFFICULTY}. Steps: "
        "mean ± standard deviation of successes. Without motion: the reaction at the start too, of which half a second "
        "is 10 steps of our tasks and 40 of Meta-World. "
        f"{origin(found)} Command: `python -m benchmarks people --habits`."
    )
    return f"{people_habits.table(found)}\n\n{note}" if found else "Not measured yet."


def _row(cells: list[dict[str, Any]]) -> str:
    last = [cell["rounds"][-1] for cell in cells]
    steps = [entry["steps"] for entry in last if entry["steps"] is not None]
    minutes = ", ".join(
        "/".join("-" if (spent := minutes_to(cell["rounds"], level)) is None else f"{spent:.0f}" for cell in cells)
        for level in _LEVELS
    )
    effective = [cell["effective_samples"] for cell in cells if cell["effective_samples"] is not None]
    return (
        f"| {cells[0]['condition']} | {cells[0]['task']} | `{cells[0]['method']}` | {len(cells)} "
        f"| {np.mean([entry['success'] for entry in last]):.1%} "
        f"| {f'{np.mean(steps):.0f} | {np.mean(_paces(cells)):.0%}' if steps else '- | -'} "
        f"| {np.mean([_rate(cell) for cell in cells]):.0f} "
        f"| {np.mean([entry['person_minutes'] for entry in last]):.1f} | {minutes} "
        f"| {f'{np.mean(effective):.0%}' if effective else ''} |"
    )


def _paces(cells: list[dict[str, Any]]) -> list[float]:
    """Steps to success over the teachers', of the runs that end with any success."""
    return [
        last["steps"] / cell["teacher_steps"] for cell in cells if (last := cell["rounds"][-1])["steps"] is not None
    ]


def _success(cell: dict[str, Any]) -> float:
    success: float = cell["rounds"][-1]["success"]
    return success


def _rate(cell: dict[str, Any]) -> float:
    rate: float = cell["rounds"][-1]["successes_per_hour"]
    return rate


def _minutes(cell: dict[str, Any]) -> float:
    """Person-minutes to 90 %, or all that were spent."""
    spent = minutes_to(cell["rounds"], 90)
    return cell["rounds"][-1]["person_minutes"] if spent is None else spent


def _arguments(cell: PeopleCell) -> list[str]:
    people = ",".join(CONDITIONS[cell.condition])
    return [
        "train",
        *("--config", "algorithms", "--seed", str(cell.seed)),
        f"task.env={cell.task}",
        f"task.difficulty={people_habits.DIFFICULTY}",
        f"task.operators=[{people}]",
        f"task.declare.max_episode_steps={LIMITS[cell.task]}",
        f"takeover.options.operators=[{people}]",
        "takeover.options.rescue_probability=0.5",
        "budget.demonstrations=12",  # two of each of six
        "budget.episodes_per_round=100",
        "workers=0",
        "environments_per_worker=64",
    ]


def _run_base(cell: PeopleCell, runs: Path) -> None:
    """Demonstrations, supervised policy and its evaluation."""
    run_verb([*_arguments(cell), *in_float32("algorithms"), "budget.rounds=0"], runs / cell.base)


def _run_cell(cell: PeopleCell, runs: Path) -> dict[str, Any]:
    folder, base = runs / cell.name, runs / cell.base
    changes, start = METHODS[cell.method], ["--from", str(base)]
    if cell.method == "sft_smooth_half":
        start = [f"task.demonstrations={smooth_half(base / 'episodes', runs / f'{cell.base}-smooth-half')}"]
    elif cell.method in ("hg_dagger_retimed", "recap_guided"):  # whose supervised policies are others
        start = [f"task.demonstrations={base}"]
    cpu_s = run_verb([*_arguments(cell), *in_float32("algorithms", changes), *start, *changes], folder)
    shown = EpisodeStore(base / "episodes", create=False)
    demonstrations = [shown.read_header(name).length for name in shown.ids()]
    trained = [record for record in read_records(folder / "metrics.jsonl") if "effective_samples" in record]
    return {
        "condition": cell.condition,
        "task": cell.task,
        "seed": cell.seed,
        "method": cell.method,
        "options": as_measured(changes),
        "rounds": _rounds(folder, demonstrations),
        "teacher_steps": float(np.mean(demonstrations)),
        "effective_samples": float(np.mean([r["effective_samples"] for r in trained])) if trained else None,
        "evaluation_episodes": evaluations(folder)[-1]["episodes"],
        "practice_episodes": evaluations(folder)[-1]["round"]
        * read_yaml(folder / "config.yaml")["budget"]["episodes_per_round"],
        "cpu_s": round(cpu_s, 1),
    }


def _rounds(folder: Path, demonstrations: list[int]) -> list[dict[str, Any]]:
    """Success, speed and what it had cost people, after every round."""
    played, collected = (EpisodeStore(folder / name, create=False) for name in ("evaluation", "episodes"))
    headers = [played.read_header(name) for name in played.ids()]
    driven = {name: collected.read_header(name).human_steps for name in collected.ids()}
    found = []
    for entry in evaluations(folder):
        own = [header for header in headers if header.policy_version == entry["policy_version"]]
        rounds = tuple(f"round{number:03d}-" for number in range(1, entry["round"] + 1))
        by_person = sum(demonstrations) + sum(n for name, n in driven.items() if name.startswith(rounds))
        found.append(
            {
                "success": entry["successes"] / entry["episodes"],
                "steps": entry["mean_success_length"],
                "successes_per_hour": successes_per_hour(
                    [header.length for header in own], entry["successes"], own[0].control_hz
                ),
                "person_minutes": by_person / own[0].control_hz / 60,
            }
        )
    return found


def smooth_half(episodes: Path, out: Path) -> Path:
    """A store of the smoother half of the demonstrations of a run, by dimensionless jerk of the commands."""
    source, chosen = EpisodeStore(episodes, create=False), EpisodeStore(out)
    shown = [source.read(name) for name in source.ids() if name.startswith("demo-")]
    shown.sort(key=lambda episode: dimensionless_jerk(episode.action_sent))
    for episode in shown[: (len(shown) + 1) // 2]:
        if episode.episode_id not in chosen:
            chosen.add(episode)
    return out


def dimensionless_jerk(positions: Any) -> float:
    """Return the dimensionless jerk of a path [T, A]: the integral of squared jerk, times duration to the fifth over
    length squared. It is the same for a slower or larger motion, and larger for one with stops.
    """
    path = np.asarray(positions, np.float64)
    length = np.linalg.norm(np.diff(path, axis=0), axis=1).sum()
    return float((np.diff(path, n=3, axis=0) ** 2).sum() * len(path) ** 5 / max(length, 1e-9) ** 2)
