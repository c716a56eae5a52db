"""The benchmark of the success detector: scores of judgments, and the table of what there is."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "data"))
from episode_maker import make_episode

import vla_rl as vla
from benchmarks import (
    detector,
    detector_adversaries,
    detector_fits,
    detector_fooled,
    detector_replay,
    detector_unattended,
)
from benchmarks.runs import claim_run, run_verb
from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Observation
from vla_rl.data.store import EpisodeStore
from vla_rl.outcomes.detector import Judgment
from vla_rl.outcomes.ensemble import Track

TINY = ["--config", "tiny", "budget.rounds=1", "takeover.enabled=false", "task.declare.max_episode_steps=60"]


def tracks(outcomes: list[bool]) -> list[Track]:
    return [Track(np.zeros((1, 2), np.float32), outcome) for outcome in outcomes]


def test_scores_count_what_was_called_and_what_was_asked() -> None:
    judgments = [Judgment(True, 0.9), Judgment(None, 0.8), Judgment(True, 0.7), Judgment(False, 0.2)]
    judge: Any = SimpleNamespace(judge_rows=lambda rows: judgments)
    scores = detector_fits.scores(judge, tracks([True, False, False, True]))
    assert scores["false_success"] == pytest.approx(2 / 3)
    assert scores["false_success_asking"] == pytest.approx(1 / 2)
    assert scores["false_failure"] == 1.0
    assert scores["asked"] == 0.25
    assert scores["area"] == pytest.approx(2 / 4)


def test_the_table_shows_what_was_measured() -> None:
    row = {"area": 0.9, "false_success": 0.1, "false_failure": 0.2, "asked": 0.05, "novel": 0.0}
    row |= {"answers": 40, "order": 0, "false_success_asking": 0.02, "false_failure_asking": 0.01}
    measured = {"cpu": "a processor", "commit": "abc"}
    recorded = {"part": "recorded", "seed": 0, "episodes": 150, "successes": 90, "measured": measured}
    other = {**recorded, "task": "robosuite/Lift-v0", "rows": [{**row, "false_success_asking": 0.3}]}
    cells = [{**recorded, "task": detector.TASK, "rows": [row] * 5}, other]
    for labels, after in (("true", 0.8), ("detector", 0.75)):
        rounds = [{"round": 2, "asked": 7.0, "unknown": 0.0, "false_success": 0.01, "false_failure": 0.0}]
        practice = {"part": "practice", "seed": 0, "labels": labels, "success": [0.5, 0.6, after]}
        cells.append({**practice, "rounds": rounds if labels == "detector" else [], "measured": measured})
    figures = detector._figures(cells)
    assert figures["false_success_asking_percent_40"] == pytest.approx(2)
    assert figures["success_against_true_labels_points"] == pytest.approx(-5)
    assert "false_success_asking_percent_80" not in figures
    text = detector.table({**figures, "cells": cells, "command": "python -m benchmarks detector"})
    assert "| 40 | 0.900 | 10.0%, 20.0% | **2.0%**, 1.0% | 5.0% | 2.0% |" in text
    assert "| **robosuite/Lift-v0** (seed 0: 90 of 150 succeed) |" in text
    assert "| 40 (1 of 5 orders have both outcomes) | 0.900 | 10.0%, 20.0% | **30.0%**, 1.0% | 5.0% | 30.0% |" in text
    assert "Of the practice episodes 90 of 150 succeed" in text, "of the default task alone"
    assert "| seed 0, labels: detector | 50%, 60%, 75% | 7 | 1.0% |" in text
    assert figures["false_success_percent"] == pytest.approx(1)
    assert figures["asked_share"] == pytest.approx(7 / 150)


def replay(length: int, end: int, success: bool) -> detector_replay.Replay:
    holds = np.arange(length) >= (end if success else length)
    return detector_replay.Replay(np.zeros((length, 2), np.float32), holds, end, [], "")


def test_a_stop_counts_as_found_late_or_cut_short() -> None:
    attempts = [replay(60, 40, True), replay(60, 40, True), replay(60, 40, True), replay(60, 59, False)]
    scores = detector_replay._stop_scores([45, 46, 39, 10], attempts)
    assert scores == {"found_soon": pytest.approx(1 / 3), "found_later": pytest.approx(2 / 3), "cut_short": 0.5}
    assert detector_replay._stop_scores([None] * 4, attempts)["cut_short"] == 0


def test_a_run_ends_at_its_last_tick() -> None:
    members = np.full((40, 5), 0.99, np.float32)
    members[:10] = members[20] = 0.2
    assert detector_replay._stop(members, np.zeros(40), "median", 8) == 17
    assert detector_replay._stop(members, np.zeros(40), "median", 16) == 36
    assert detector_replay._stop(members, np.full(40, 2.0), "median", 8) is None
    members[:, 0] = 0.8
    assert detector_replay._stop(members, np.zeros(40), "all above 0.9", 8) is None


def test_an_attempt_is_played_again_and_looks_otherwise_in_a_changed_scene() -> None:
    env = vla.make_env("vla_rl/PegInsert-v0", difficulty=0.4, image_size=32).gym.unwrapped
    raw, _ = env.reset(seed=3)
    states, actions = [raw["agent_pos"].copy()], []
    for _ in range(4):
        actions.append(env.rest_action(states[-1]))
        raw, *_ = env.step(actions[-1])
        states.append(raw["agent_pos"].copy())
    recorded = make_episode("e", length=4, success=False, seed=3)
    recorded = replace(recorded, action_sent=np.array(actions), final_state=states[-1])
    features: Any = SimpleNamespace(of=lambda seen: np.stack([each.images["top"].reshape(-1) for each in seen]))
    again = detector_replay._replay(recorded, env, None, features)
    assert (again.end, again.success, len(again.states)) == (4, False, 3)
    played: Any = SimpleNamespace(env=env, features=features)
    ends = {}
    for name, change in detector_replay.SHIFTS.items():
        with change(env) as repaint:
            ends[name] = detector_replay._seen_again(again, played, repaint).features[-1].astype(int)
    np.testing.assert_array_equal(ends["nothing"], again.features[-1])
    changed = {name: np.abs(end - again.features[-1]).mean() for name, end in ends.items() if name != "nothing"}
    assert all(amount > 0.05 for name, amount in changed.items() if "front" not in name), changed
    assert changed["front camera, 4 pixels"] == 0, "the other camera stays"
    recorded = replace(recorded, final_state=states[-1] + 1e-3)
    with pytest.raises(UserError, match="otherwise than it was recorded"):
        detector_replay._replay(recorded, env, None, features)


def first_in_a_process(arguments: list[str], folder: Path) -> float:
    """Run the first verb in a process of its own, the others in this one: a start takes longer than a tiny run."""
    if not folder.parent.exists():
        return run_verb(arguments, folder)
    claim_run(arguments, folder)
    assert main([*arguments, "--out", str(folder)]) == 0
    return 0.0


@pytest.mark.slow
def test_practice_on_wrong_answers_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = [*TINY, "budget.episodes_per_round=2"]
    monkeypatch.setattr(detector, "_NOISY", tiny)
    monkeypatch.setattr(detector, "run_verb", first_in_a_process)
    monkeypatch.setitem(detector._NOISE, "10", [*detector._BY_HAND, "wrong_answers=1"])
    monkeypatch.delitem(detector._NOISE, "detector")
    parser = argparse.ArgumentParser()
    detector.add_arguments(parser)
    options = parser.parse_args(["--seeds", "0", "--parts", "noise", "--runs", str(tmp_path / "runs")])
    options.out = tmp_path
    found = {cell["noise"]: cell for cell in detector.run(options)["cells"]}
    assert [each["false_success"] for each in found["none"]["rounds"]] == [0]
    assert [each["false_success"] for each in found["10"]["rounds"]] == [1], "a tiny policy only fails"
    assert found["none"]["success"][0] == found["10"]["success"][0], "equal weights before practice"
    result = detector.run(argparse.Namespace(**{**vars(options), "gather": True}))
    assert "noise_10_cost_points" in result
    assert "| seed 0, 10 % of failures called success |" in detector.table({**result, "command": ""})


def test_a_part_of_the_default_task_alone_is_refused_for_another(tmp_path: Path) -> None:
    parser = argparse.ArgumentParser()
    detector.add_arguments(parser)
    options = parser.parse_args(["--task", "robosuite/Lift-v0", "--parts", "recorded", "fooled"])
    options.out = tmp_path
    with pytest.raises(UserError, match="--parts fooled: of vla_rl/PegInsert-v0 only"):
        detector.run(options)
    assert "budget.demonstrations=10" in detector._of_task("robosuite/Lift-v0"), "as the known benchmark"


def test_wrong_answers_cost_what_they_take_from_true_ones_on_average() -> None:
    def cell(seed: int, noise: str, *success: float, task: str = detector.TASK) -> dict[str, Any]:
        judged = {"round": 2, "asked": 30.0, "false_success": 0.01, "false_failure": 0.02}
        rounds = [{**judged, "round": 1, "asked": 150.0}, judged]
        return {"part": "noise", "task": task, "seed": seed, "noise": noise, "success": list(success), "rounds": rounds}

    runs = [cell(0, "none", 0.4, 0.8, 0.9), cell(0, "10", 0.4, 0.7, 0.8), cell(1, "none", 0.5, 0.6, 0.7)]
    figures = detector._figures([*runs, cell(1, "10", 0.5, 0.62, 0.6)])
    assert figures["noise_10_cost_points"] == pytest.approx(4)
    assert figures["noise_10_cost_300_points"] == pytest.approx(10)
    assert "noise_10_cost_300_points" not in detector._figures([*runs, cell(1, "10", 0.5, 0.62)]), "a round is missing"
    assert detector._figures(runs[:1]) == {}, "there is nothing to compare with"
    assert detector._figures([runs[0], cell(0, "10", 0.4, 0.7, 0.8, task="vla_rl/Handover-v0")]) == {}, "another task"
    figures = detector._figures([*runs, cell(0, "detector", 0.4, 0.75, 0.95), cell(1, "detector", 0.5, 0.6, 0.7)])
    assert figures["detector_labels_cost_300_points"] == pytest.approx(-2.5)
    assert (figures["alone_asked_share"], figures["alone_false_success_percent"]) == pytest.approx((0.2, 1.0))


def test_resets_by_hand_and_what_freed_the_world_are_counted() -> None:
    forward, backward = detector_unattended.FORWARD, detector_unattended.BACKWARD
    played = [(forward, True), (backward, False), (backward, False), (forward, False), (backward, True)]
    played += [(forward, False)] * 4
    entries: list[dict[str, Any]] = [{"episode": "demo-00000", "task": forward, "success": True}]
    entries += [
        {"episode": f"round001-{place:05d}", "task": each[0], "success": each[1]} for place, each in enumerate(played)
    ]
    entries += [{"hand": "round001-00009"}, {"episode": "round001-00009", "task": forward, "success": True}]
    scores = detector_unattended.scores(entries)
    assert (scores["forward_episodes"], scores["backward_episodes"], scores["hands"]) == (7, 3, 1)
    assert scores["freed"] == {"forward": 0, "backward": 1, "hand": 1}
    assert (scores["longest_without_hand"], scores["longest_failures"]) == (9, 4)
    assert scores["forward_success"] == [pytest.approx(2 / 7)]
    cell = {"part": "unattended", "seed": 0, **scores, "measured": {"cpu": "a processor", "commit": "abc"}}
    assert detector._figures([cell])["unattended_episodes"] == 9
    assert "3 backward, 1 resets by hand" in detector.unattended({"cells": [cell]})
    assert detector.unattended({"cells": []}).startswith("Not measured yet")


def test_an_offset_moves_the_actions_of_its_third_of_an_episode() -> None:
    still = SimpleNamespace(infer=lambda observation, committed: ActionChunk(np.zeros((4, 2)), observation.tick, 0, 0))
    policy = detector_adversaries.Moved(still)
    policy.offset = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    chunk = policy.infer(Observation({}, np.zeros(1, np.float32), "", 38))
    np.testing.assert_array_equal(chunk.actions, np.array([[1, 2], [1, 2], [3, 4], [3, 4]], np.float32))
    assert policy.infer(Observation({}, np.zeros(1, np.float32), "", 300)).actions[0].tolist() == [5, 6]


@pytest.mark.slow
@pytest.mark.parametrize("part", detector_adversaries.ADVERSARIES)
def test_an_adversary_plays_on_the_labels_and_goes_on_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    base, folder = tmp_path / "base", tmp_path / "fooled"
    tiny = [*TINY, "budget.episodes_per_round=4"]
    assert main(["train", *tiny, "algorithm=filtered_bc", "--out", str(base)]) == 0
    monkeypatch.setattr(detector_adversaries.ADVERSARIES[part], "episodes", 3)
    monkeypatch.setattr(detector_adversaries, "_ELITE", 2)
    monkeypatch.setattr(detector_fooled, "ROUNDS", 2)
    first = detector_fooled.fooled(base, folder, 0, part)
    monkeypatch.setattr(detector_fooled, "ROUNDS", 3)
    cell = {**detector_fooled.fooled(base, folder, 0, part), "measured": {"cpu": "a processor", "commit": "abc"}}
    assert cell["rounds"][:2] == first["rounds"]
    assert sum(name.startswith("round") for name in EpisodeStore(folder / "episodes").ids()) == 4 + 3 * 3
    for each in cell["rounds"]:
        assert len(each["rewards"]) == 3
        assert each["called"] + each["asked"] <= 3
        assert each["fooled"] <= each["called"]
    assert detector._figures([cell])[f"{part}_rounds"] == 3
    assert ", 0, 2 |" in detector.fooled({"cells": [cell]})
    assert detector.fooled({"cells": []}).startswith("Not measured yet")
