"""The success detector on recorded practice, by number of first answers, and practice on its labels.

*recorded*: the supervised policy of the preset `imagined` plays one round. A detector is fitted on the demonstrations
and on the first answers, in several random orders of the episodes, and judges all others. A true answer stands for a
person. *practice*: filtered behavior cloning for two rounds, on true outcomes and on labels (round 1 by hand, then the
detector), from the same supervised policy. *stops*, *shifts*: the recorded attempts, played again (see
`benchmarks.detector_replay`). *lerobot*: its reward classifier on the same answers. *noise*: the preset `alone` on
answers that call 10 % of the failures success, and on labels of the detector. *unattended*: forward-backward practice
in a world that is never reset. *fooled*, *fooled_ppo*: adversaries. True outcomes only score. Finished cells are
kept in OUT/detector/.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import detector_fooled, detector_replay, detector_rival, detector_unattended, known
from benchmarks.cells import Cells, origin
from benchmarks.detector_fits import ORDERS, fit, in_orders, scores, tracks_of
from benchmarks.outcomes import practice_alone
from benchmarks.practices import EARLIER_BUDGET, EARLIER_IMITATION
from benchmarks.runs import evaluations, run_verb, short_name
from vla_rl.core.errors import UserError

TASK = "vla_rl/PegInsert-v0"
ANSWERS = (10, 20, 40, 80)
_EPISODES = 150  # of a round
_PARTS = ("recorded", "speed", "practice", "stops", "shifts", "lerobot", "noise", "unattended", "fooled", "fooled_ppo")
_OWN_RUNS = {"noise", "unattended"}  # parts that do not begin with the recorded round
_SHARED = ["algorithm=filtered_bc", "workers=0", "torch_threads=1"]
_RECORDED = ["budget.rounds=1", "budget.steps_per_round=1", "budget.evaluation_episodes=1"]
_PRACTICED = ["budget.rounds=2", "budget.steps_per_round=200", "budget.evaluation_episodes=100"]
_LABELS = {"true": [], "detector": ["--outcomes", "simulated_person=true"]}
_BY_HAND = ["--outcomes", "simulated_person=true", "by_hand_episodes=300"]
_NOISE = {"none": _BY_HAND, "10": [*_BY_HAND, "wrong_answers=0.1"], "detector": _LABELS["detector"]}
_NOISY = ["--config", "alone", "workers=0", "torch_threads=1", "budget.rounds=2", "budget.evaluation_episodes=300"]
_NOISY += [*EARLIER_BUDGET, *EARLIER_IMITATION]
_SETTINGS = {"orders": ORDERS, "answers": ANSWERS, "shared": ["task.env=" + TASK, *_SHARED]}
_SETTINGS |= {"recorded": _RECORDED, "practice": _PRACTICED}
_OF_TASKS = ("recorded", "noise")  # parts that run on other tasks as well


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--task", default=TASK, help="another one: only the parts recorded and noise")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parts", nargs="+", choices=_PARTS, help="default: all of the task")
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-detector"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, and gather all cells."""
    cells = Cells(options.out / "detector", {"config": practice_alone(), **_SETTINGS})
    task, possible = options.task, _PARTS if options.task == TASK else _OF_TASKS
    parts = options.parts or possible
    if other := [part for part in parts if part not in possible]:
        raise UserError(f"--parts {' '.join(other)}: of {TASK} only; with --task {task}, name {' or '.join(possible)}")
    for seed in [] if options.gather else options.seeds:
        of = f"{seed}" if task == TASK else f"{short_name(task)}-{seed}"
        base = options.runs / f"base-{of}"
        if {*parts} - _OWN_RUNS:
            _run_base(base, task, seed)
        if "recorded" in parts:
            cells.once(f"recorded-{of}", lambda base=base, seed=seed: _recorded(base, task, seed))  # type: ignore[misc]
        if "speed" in parts:
            cells.once("speed", lambda base=base: _speed(base))  # type: ignore[misc]
        if "lerobot" in parts:
            cells.once(f"lerobot-{seed}", lambda base=base, seed=seed: _lerobot(base, seed))  # type: ignore[misc]
        _replay(cells, base, seed, [part for part in ("stops", "shifts") if part in parts])
        for part in [part for part in detector_fooled.ADVERSARIES if part in parts]:
            if f"{part}-{seed}" not in cells:
                cells.write(f"{part}-{seed}", detector_fooled.fooled(base, options.runs / f"{part}-{seed}", seed, part))
        if "unattended" in parts:
            cells.once(f"unattended-{seed}", lambda seed=seed: detector_unattended.practiced(options.runs, seed))  # type: ignore[misc]
        for labels in _LABELS if "practice" in parts else ():
            if f"practice-{seed}-{labels}" not in cells:
                cells.write(f"practice-{seed}-{labels}", _practice(options.runs, seed, labels))
        for noise in _NOISE if "noise" in parts else ():
            if f"noise-{of}-{noise}" not in cells:
                cells.write(f"noise-{of}-{noise}", _noise(options.runs / f"noise-{of}-{noise}", task, seed, noise))
    found = cells.read()
    if not found:
        raise UserError(f"{cells.folder} has no cell yet; leave --gather out")
    return {**_figures(found), "cells": found}


def _of_task(task: str) -> list[str]:
    """Return the options of a task; known benchmarks have demonstrations of their own."""
    options = [f"task.env={task}"]
    return [*options, f"budget.demonstrations={known.TASKS[task].demonstrations}"] if task in known.TASKS else options


def _run_base(base: Path, task: str, seed: int) -> None:
    """Play a round of the supervised policy, unless a run of the preset `imagined` of this seed has done so."""
    if not all((base / f"episodes/episodes/round001-{index:05d}.zarr.zip").exists() for index in range(_EPISODES)):
        run_verb(["train", "--config", "imagined", "--seed", str(seed), *_of_task(task), *_SHARED, *_RECORDED], base)


def _recorded(base: Path, task: str, seed: int) -> dict[str, Any]:
    from vla_rl.outcomes.ensemble import TooFewLabels

    tracks, features = tracks_of(base)
    demonstrations = [track for name, track in tracks if name.startswith("demo")]
    played = [track for name, track in tracks if name.startswith("round001")]
    rows = []
    for answers in ANSWERS:
        for order, mixed in in_orders(played):
            try:
                detector = fit([*demonstrations, *mixed[:answers]], features, order)
            except TooFewLabels:  # a few answers may hold one outcome only
                continue
            rows.append({"answers": answers, "order": order, **scores(detector, mixed[answers:])})
    successes = sum(track.success is True for track in played)
    about = {"task": task, "seed": seed, "episodes": len(played), "successes": successes}
    return {"part": "recorded", **about, "rows": rows}


def _replay(cells: Cells, base: Path, seed: int, parts: list[str]) -> None:
    """Play a round again for the cells of stops and changed scenes that are missing."""
    missing = [part for part in parts if f"{part}-{seed}" not in cells]
    played = detector_replay.replayed(base) if missing else None
    for part in missing:
        rows = getattr(detector_replay, part)(played)
        cells.write(f"{part}-{seed}", {"part": part, "task": TASK, "seed": seed, "rows": rows})


def _lerobot(base: Path, seed: int) -> dict[str, Any]:
    return {"part": "lerobot", "task": TASK, "seed": seed, "rows": detector_rival.judged(base, ANSWERS[-1])}


def _noise(folder: Path, task: str, seed: int, noise: str) -> dict[str, Any]:
    """Practice as the preset does, on answers of which a share is wrong, or on the detector's labels. Runs of a seed
    have equal first weights on one processor.
    """
    run_verb(["train", "--seed", str(seed), *_of_task(task), *_NOISY, *_NOISE[noise]], folder)
    success = [entry["successes"] / entry["episodes"] for entry in evaluations(folder)]
    return {"part": "noise", "task": task, "seed": seed, "noise": noise, "success": success, "rounds": _rounds(folder)}


def _rounds(folder: Path) -> list[dict[str, float]]:
    """Return how the labels of each round compare with the truth."""
    metrics = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("round", "asked", "unknown", "false_success", "false_failure")
    return [{name: each[name] for name in kept} for each in metrics if each["kind"] == "outcomes"]


def _speed(base: Path) -> dict[str, Any]:
    """Time one tick of the exported detector, from pictures to judgment, on one core."""
    from vla_rl.data.store import EpisodeStore
    from vla_rl.outcomes.deployed import DeployedDetector
    from vla_rl.outcomes.detector import observation_at

    tracks, features = tracks_of(base)
    detector = fit([track for _, track in tracks], features, 0)
    episode = EpisodeStore(base / "episodes", create=False).read("round001-00000")
    observations = [observation_at(episode, tick) for tick in range(len(episode))]
    with tempfile.TemporaryDirectory() as name:
        detector.export(name)
        deployed, times_s = DeployedDetector(name), []
        for observation in observations * 5:
            start = time.perf_counter()
            deployed.step(observation)
            times_s.append(time.perf_counter() - start)
    median, late = np.quantile(times_s, [0.5, 0.99]) * 1e3
    return {"part": "speed", "judge_ms": float(median), "judge_p99_ms": float(late), "ticks": len(times_s)}


def _practice(runs: Path, seed: int, labels: str) -> dict[str, Any]:
    folder = runs / f"practice-{seed}-{labels}"
    base = runs / f"base-{seed}"
    arguments = ["train", "--config", "imagined", "--seed", str(seed), "--from", str(base)]
    arguments += [*_of_task(TASK), *_SHARED, *_PRACTICED]
    run_verb([*arguments, *_LABELS[labels]], folder)
    success = [entry["successes"] / entry["episodes"] for entry in evaluations(folder)]
    about = {"part": "practice", "task": TASK, "seed": seed, "labels": labels}
    return {**about, "success": success, "rounds": _rounds(folder)}


def _figures(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the headline figures of the cells that there are."""
    figures: dict[str, Any] = {}
    for answers in ANSWERS:
        rows = _rows(cells, answers)
        for name in ("false_success_asking", "false_failure_asking", "asked") if rows else ():
            figures[f"{name}_percent_{answers}"] = 100 * float(np.mean([row[name] for row in rows]))
    for cell in cells:
        if cell["part"] == "speed":
            figures |= {"judge_ms": cell["judge_ms"], "judge_p99_ms": cell["judge_p99_ms"]}
    practiced = {(cell["seed"], cell["labels"]): cell for cell in cells if cell["part"] == "practice"}
    seeds = sorted({seed for seed, _ in practiced if _both(practiced, seed)})
    pairs = [(practiced[seed, "true"], practiced[seed, "detector"]) for seed in seeds]
    if pairs:
        gaps = [100 * (ours["success"][-1] - true["success"][-1]) for true, ours in pairs]
        figures["success_against_true_labels_points"] = float(np.mean(gaps))
        rounds = [each for _, ours in pairs for each in ours["rounds"]]
        figures |= _judged(rounds)
        figures["labels_ratio"] = float(np.mean([each["asked"] for each in rounds])) / _EPISODES
    noisy = {(cell["seed"], cell["noise"]): cell["success"] for cell in cells if _is_noise(cell)}
    for worse, title in (("10", "noise_10_cost"), ("detector", "detector_labels_cost")):
        seeds = sorted({seed for seed, _ in noisy if _both(noisy, seed, ("none", worse))})
        both = [(noisy[seed, "none"], noisy[seed, worse]) for seed in seeds]
        every = [[a - b for a, b in zip(*pair, strict=False)] for pair in both]  # by round, from 0
        for passed, name in ((1, f"{title}_points"), (2, f"{title}_300_points")):
            if every and all(len(cost) > passed for cost in every):
                figures[name] = 100 * float(np.mean([cost[passed] for cost in every]))
    labeled = [cell for cell in cells if _is_noise(cell) and cell["noise"] == "detector"]
    if labeled:
        figures |= _judged([each for cell in labeled for each in cell["rounds"]], "alone_")
    rivals = _rows(cells, ANSWERS[-1], "lerobot")
    for name in ("false_success", "false_failure") if rivals else ():
        figures[f"lerobot_{name}_percent_{ANSWERS[-1]}"] = 100 * float(np.mean([row[name] for row in rivals]))
    return figures | {
        name: value
        for part in (detector_replay, detector_unattended, detector_fooled)
        for name, value in part.figures(cells).items()
    }


def _judged(rounds: list[dict[str, float]], of: str = "") -> dict[str, float]:
    """Return the errors and the questions of the rounds after the first, which the detector judged."""
    mean = {name: float(np.mean([each[name] for each in rounds if each["round"] > 1])) for name in rounds[0]}
    wrong = {f"{of}{name}_percent": 100 * mean[name] for name in ("false_success", "false_failure")}
    return {**wrong, f"{of}asked_share": mean["asked"] / _EPISODES}


def _both(practiced: dict[tuple[int, str], Any], seed: int, names: Iterable[str] = _LABELS) -> bool:
    return all((seed, name) in practiced for name in names)


def _is_noise(cell: dict[str, Any]) -> bool:
    """Return whether a cell is practice of the preset on the default task."""
    return cell["part"] == "noise" and cell["task"] == TASK


def _rows(cells: list[dict[str, Any]], answers: int, part: str = "recorded", task: str = TASK) -> list[dict[str, Any]]:
    every = [row for cell in cells if cell["part"] == part and cell["task"] == task for row in cell["rows"]]
    return [row for row in every if row["answers"] == answers]


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per number of first answers, then the practice runs."""
    cells: list[dict[str, Any]] = result["cells"]
    recorded = [cell for cell in cells if cell["part"] == "recorded"]
    lines = [
        "| first answers | area under the curve | never asks: false successes, failures "
        "| asks where unsure: false successes, failures | asked of the others | largest share of false successes |",
        "|---|---|---|---|---|---|",
        *_recorded_lines(cells, TASK),
    ]
    if rivals := _rows(cells, ANSWERS[-1], "lerobot"):
        wrong = ", ".join(
            f"{np.mean([row[name] for row in rivals]):.1%}" for name in ("false_success", "false_failure")
        )
        most = max(row["false_success"] for row in rivals)
        seeds = ", ".join(str(cell["seed"]) for cell in cells if cell["part"] == "lerobot")
        lines.append(f"| {ANSWERS[-1]}, lerobot's reward classifier (seed {seeds}) |  | {wrong} |  | 0 | {most:.1%} |")
    others = sorted({cell["task"] for cell in recorded} - {TASK})
    for task in others:
        own = [cell for cell in recorded if cell["task"] == task]
        of = ", ".join(f"seed {cell['seed']}: {cell['successes']} of {cell['episodes']} succeed" for cell in own)
        lines.append(f"| **{task}** ({of}) |  |  |  |  |  |")
        lines += _recorded_lines(cells, task)
    recorded = [cell for cell in recorded if cell["task"] == TASK]
    episodes = ", ".join(f"{cell['successes']} of {cell['episodes']}" for cell in recorded)
    lines += [
        "",
        f"Means of {ORDERS} random orders of the episodes, default task, seeds "
        f"{', '.join(str(cell['seed']) for cell in recorded)}. Of the practice episodes {episodes} succeed.",
        *_practice_table(cells),
        *_noise_table(cells),
        "",
        f"{_speed_note(result)}{origin(cells)} Command: `{result['command']}`.",
    ]
    return "\n".join(lines)


def _recorded_lines(cells: list[dict[str, Any]], task: str) -> list[str]:
    """Return a line per number of first answers on the recorded round of a task."""
    lines = []
    for answers in ANSWERS:
        rows = _rows(cells, answers, task=task)
        if not rows:
            continue
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        most = ORDERS * len([cell for cell in cells if cell["part"] == "recorded" and cell["task"] == task])
        lacking = f" ({len(rows)} of {most} orders have both outcomes)" if len(rows) < most else ""
        lines.append(
            f"| {answers}{lacking} | {mean['area']:.3f} | {mean['false_success']:.1%}, {mean['false_failure']:.1%} "
            f"| **{mean['false_success_asking']:.1%}**, {mean['false_failure_asking']:.1%} | {mean['asked']:.1%} "
            f"| {max(row['false_success_asking'] for row in rows):.1%} |"
        )
    return lines


def replayed(result: dict[str, Any]) -> str:
    """Markdown: when a run of ticks ends attempts, then what the detector says of changed scenes."""
    cells = [cell for cell in result["cells"] if cell["part"] in ("stops", "shifts")]
    about = f"{origin(cells)} Command: `python -m benchmarks detector --parts stops shifts`."
    return "\n".join([*detector_replay.stop_lines(cells), *detector_replay.shift_lines(cells), "", about]).strip()


unattended = detector_unattended.table
fooled = detector_fooled.table


def _practice_table(cells: list[dict[str, Any]]) -> list[str]:
    """Return the lines of practice by filtered cloning: success before and after each round."""
    practiced = [cell for cell in cells if cell["part"] == "practice"]
    if not practiced:
        return []
    lines = [
        "",
        "| practice by filtered cloning | success before and after each round | questions | false successes later |",
        "|---|---|---|---|",
    ]
    for cell in practiced:
        success = ", ".join(f"{each:.0%}" for each in cell["success"])
        asked = f"{sum(each['asked'] for each in cell['rounds']):.0f}" if cell["rounds"] else ""
        wrong = ", ".join(f"{each['false_success']:.1%}" for each in cell["rounds"] if each["round"] > 1)
        lines.append(f"| seed {cell['seed']}, labels: {cell['labels']} | {success} | {asked} | {wrong} |")
    return lines


def _noise_table(cells: list[dict[str, Any]]) -> list[str]:
    """Return the lines of practice by the preset `alone`, on true answers, wrong ones and the detector's labels."""
    noisy = [cell for cell in cells if cell["part"] == "noise"]
    if not noisy:
        return []
    lines = ["", "| practice alone | success before and after each round | questions | false successes by round |"]
    lines += ["|---|---|---|---|"]
    names = {"none": "true answers", "10": "10 % of failures called success", "detector": "labels of the detector"}
    for cell in noisy:
        success = ", ".join(f"{each:.0%}" for each in cell["success"])
        wrong = ", ".join(f"{each['false_success']:.1%}" for each in cell["rounds"])
        asked = f"{sum(each['asked'] for each in cell['rounds']):.0f}"
        task = "" if cell["task"] == TASK else f"{short_name(cell['task'])}, "
        lines.append(f"| {task}seed {cell['seed']}, {names[cell['noise']]} | {success} | {asked} | {wrong} |")
    return lines


def _speed_note(result: dict[str, Any]) -> str:
    if "judge_ms" not in result:
        return ""
    return f"One tick of the exported detector takes {result['judge_ms']:.2f} ms on one core (median). "
