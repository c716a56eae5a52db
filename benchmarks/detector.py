"""The success detector on recorded practice, by number of first answers, and practice on its labels.

*recorded*: the supervised policy of the preset `imagined` plays one round. A detector is fitted on the demonstrations
and on the first answers, in several random orders of the episodes, and judges all others. A true answer stands for a
person. *practice*: filtered behavior cloning for two rounds, on true outcomes and on labels (round 1 by hand, then the
detector), from the same supervised policy. *stops*, *shifts*: the recorded attempts, played again (see
`benchmarks.detector_replay`). *lerobot*: its reward classifier on the same answers. *noise*: the preset `alone` on
answers that call 10 % of the failures success. *unattended*: forward-backward practice in a
world that is never reset. *fooled*, *fooled_ppo*: adversaries. True outcomes only score. Finished cells are kept in
OUT/detector/.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import detector_fooled, detector_replay, detector_rival, detector_unattended
from benchmarks.cells import Cells, origin
from benchmarks.detector_fits import ORDERS, fit, in_orders, scores, tracks_of
from benchmarks.outcomes import practice_alone
from benchmarks.runs import evaluations, run_verb
from vla_rl.core.errors import UserError

TASK = "vla_rl/PegInsert-v0"
ANSWERS = (10, 20, 40, 80)
_EPISODES = 150  # of a round
_PARTS = ("recorded", "speed", "practice", "stops", "shifts", "lerobot", "noise", "unattended", "fooled", "fooled_ppo")
_OWN_RUNS = {"noise", "unattended"}  # parts that do not begin with the recorded round
_SHARED = ["task.env=" + TASK, "algorithm=filtered_bc", "workers=0", "torch_threads=1"]
_RECORDED = ["budget.rounds=1", "budget.steps_per_round=1", "budget.evaluation_episodes=1"]
_PRACTICED = ["budget.rounds=2", "budget.steps_per_round=200", "budget.evaluation_episodes=100"]
_LABELS = {"true": [], "detector": ["--outcomes", "simulated_person=true"]}
_BY_HAND = ["--outcomes", "simulated_person=true", "by_hand_episodes=300"]
_NOISE = {"none": _BY_HAND, "10": [*_BY_HAND, "wrong_answers=0.1"]}
_NOISY = ["--config", "alone", "task.env=" + TASK, "workers=0", "torch_threads=1"]
_NOISY += ["budget.rounds=2", "budget.check_episodes=0", "budget.evaluation_episodes=300"]
_SETTINGS = {"orders": ORDERS, "answers": ANSWERS, "shared": _SHARED, "recorded": _RECORDED, "practice": _PRACTICED}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--parts", nargs="+", default=list(_PARTS), choices=_PARTS)
    parser.add_argument("--runs", type=Path, default=Path("runs/bench-detector"), help="where run folders are kept")
    parser.add_argument("--gather", action="store_true", help="run nothing, show what has been measured")


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Measure what is missing, and gather all cells."""
    cells = Cells(options.out / "detector", {"config": practice_alone(), **_SETTINGS})
    for seed in [] if options.gather else options.seeds:
        base = options.runs / f"base-{seed}"
        if {*options.parts} - _OWN_RUNS:
            _run_base(base, seed)
        if "recorded" in options.parts:
            cells.once(f"recorded-{seed}", lambda base=base, seed=seed: _recorded(base, seed))  # type: ignore[misc]
        if "speed" in options.parts:
            cells.once("speed", lambda base=base: _speed(base))  # type: ignore[misc]
        if "lerobot" in options.parts:
            cells.once(f"lerobot-{seed}", lambda base=base, seed=seed: _lerobot(base, seed))  # type: ignore[misc]
        _replay(cells, base, seed, [part for part in ("stops", "shifts") if part in options.parts])
        for part in [part for part in detector_fooled.ADVERSARIES if part in options.parts]:
            if f"{part}-{seed}" not in cells:
                cells.write(f"{part}-{seed}", detector_fooled.fooled(base, options.runs / f"{part}-{seed}", seed, part))
        if "unattended" in options.parts:
            cells.once(f"unattended-{seed}", lambda seed=seed: detector_unattended.practiced(options.runs, seed))  # type: ignore[misc]
        for labels in _LABELS if "practice" in options.parts else ():
            if f"practice-{seed}-{labels}" not in cells:
                cells.write(f"practice-{seed}-{labels}", _practice(options.runs, seed, labels))
        for noise in _NOISE if "noise" in options.parts else ():
            if f"noise-{seed}-{noise}" not in cells:
                cells.write(f"noise-{seed}-{noise}", _noise(options.runs, seed, noise))
    found = cells.read()
    if not found:
        raise UserError(f"{cells.folder} has no cell yet; leave --gather out")
    return {**_figures(found), "cells": found}


def _run_base(base: Path, seed: int) -> None:
    """Play a round of the supervised policy, unless a run of the preset `imagined` of this seed has done so."""
    if not all((base / f"episodes/episodes/round001-{index:05d}.zarr.zip").exists() for index in range(_EPISODES)):
        run_verb(["train", "--config", "imagined", "--seed", str(seed), *_SHARED, *_RECORDED], base)


def _recorded(base: Path, seed: int) -> dict[str, Any]:
    tracks, features = tracks_of(base)
    demonstrations = [track for name, track in tracks if name.startswith("demo")]
    played = [track for name, track in tracks if name.startswith("round001")]
    rows = []
    for answers in ANSWERS:
        for order, mixed in in_orders(played):
            detector = fit([*demonstrations, *mixed[:answers]], features, order)
            rows.append({"answers": answers, "order": order, **scores(detector, mixed[answers:])})
    successes = sum(track.success is True for track in played)
    about = {"task": TASK, "seed": seed, "episodes": len(played), "successes": successes}
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


def _noise(runs: Path, seed: int, noise: str) -> dict[str, Any]:
    """Practice as the preset does, on answers of which a share is wrong. Runs of a seed have equal first weights."""
    folder = runs / f"noise-{seed}-{noise}"
    run_verb(["train", "--seed", str(seed), *_NOISY, *_NOISE[noise]], folder)
    success = [entry["successes"] / entry["episodes"] for entry in evaluations(folder)]
    return {"part": "noise", "task": TASK, "seed": seed, "noise": noise, "success": success, "rounds": _rounds(folder)}


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
    arguments = ["train", "--config", "imagined", "--seed", str(seed), "--from", str(base), *_SHARED, *_PRACTICED]
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
    pairs = [(practiced[seed, "true"], practiced[seed, "detector"]) for seed, _ in practiced if _both(practiced, seed)]
    if pairs:
        gaps = [100 * (ours["success"][-1] - true["success"][-1]) for true, ours in pairs]
        figures["success_against_true_labels_points"] = float(np.mean(gaps))
        rounds = [each for _, ours in pairs for each in ours["rounds"]]
        judged = [each for each in rounds if each["round"] > 1]
        figures["false_success_percent"] = 100 * float(np.mean([each["false_success"] for each in judged]))
        figures["false_failure_percent"] = 100 * float(np.mean([each["false_failure"] for each in judged]))
        figures["asked_share"] = float(np.mean([each["asked"] for each in judged])) / _EPISODES
        figures["labels_ratio"] = float(np.mean([each["asked"] for each in rounds])) / _EPISODES
    noisy = {(cell["seed"], cell["noise"]): cell["success"] for cell in cells if cell["part"] == "noise"}
    both = [
        (noisy[seed, "none"], noisy[seed, "10"]) for seed, noise in noisy if noise == "10" and (seed, "none") in noisy
    ]
    if both:
        every = [[a - b for a, b in zip(*pair, strict=False)] for pair in both]  # by round, from 0
        for passed, name in ((1, "noise_10_cost_points"), (2, "noise_10_cost_300_points")):
            if all(len(cost) > passed for cost in every):
                figures[name] = 100 * float(np.mean([cost[passed] for cost in every]))
    rivals = _rows(cells, ANSWERS[-1], "lerobot")
    for name in ("false_success", "false_failure") if rivals else ():
        figures[f"lerobot_{name}_percent_{ANSWERS[-1]}"] = 100 * float(np.mean([row[name] for row in rivals]))
    return figures | {
        name: value
        for part in (detector_replay, detector_unattended, detector_fooled)
        for name, value in part.figures(cells).items()
    }


def _both(practiced: dict[tuple[int, str], Any], seed: int) -> bool:
    return all((seed, labels) in practiced for labels in _LABELS)


def _rows(cells: list[dict[str, Any]], answers: int, part: str = "recorded") -> list[dict[str, Any]]:
    every = [row for cell in cells if cell["part"] == part for row in cell["rows"]]
    return [row for row in every if row["answers"] == answers]


def table(result: dict[str, Any]) -> str:
    """Markdown: one row per number of first answers, then the practice runs."""
    cells: list[dict[str, Any]] = result["cells"]
    recorded = [cell for cell in cells if cell["part"] == "recorded"]
    lines = [
        "| first answers | area under the curve | never asks: false successes, failures "
        "| asks where unsure: false successes, failures | asked of the others | largest share of false successes |",
        "|---|---|---|---|---|---|",
    ]
    for answers in ANSWERS:
        rows = _rows(cells, answers)
        if not rows:
            continue
        mean = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        lines.append(
            f"| {answers} | {mean['area']:.3f} | {mean['false_success']:.1%}, {mean['false_failure']:.1%} "
            f"| **{mean['false_success_asking']:.1%}**, {mean['false_failure_asking']:.1%} | {mean['asked']:.1%} "
            f"| {max(row['false_success_asking'] for row in rows):.1%} |"
        )
    if rivals := _rows(cells, ANSWERS[-1], "lerobot"):
        wrong = ", ".join(
            f"{np.mean([row[name] for row in rivals]):.1%}" for name in ("false_success", "false_failure")
        )
        most = max(row["false_success"] for row in rivals)
        seeds = ", ".join(str(cell["seed"]) for cell in cells if cell["part"] == "lerobot")
        lines.append(f"| {ANSWERS[-1]}, lerobot's reward classifier (seed {seeds}) |  | {wrong} |  | 0 | {most:.1%} |")
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
    """Return the lines of practice on answers that are wrong for 10 % of the failures."""
    noisy = [cell for cell in cells if cell["part"] == "noise"]
    if not noisy:
        return []
    lines = ["", "| practice alone | success before and after each round | false successes by round |", "|---|---|---|"]
    for cell in noisy:
        success = ", ".join(f"{each:.0%}" for each in cell["success"])
        wrong = ", ".join(f"{each['false_success']:.1%}" for each in cell["rounds"])
        name = {"none": "true answers", "10": "10 % of failures called success"}[cell["noise"]]
        lines.append(f"| seed {cell['seed']}, {name} | {success} | {wrong} |")
    return lines


def _speed_note(result: dict[str, Any]) -> str:
    if "judge_ms" not in result:
        return ""
    return f"One tick of the exported detector takes {result['judge_ms']:.2f} ms on one core (median). "
