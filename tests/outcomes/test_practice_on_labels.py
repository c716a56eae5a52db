"""Practice that never sees the outcomes of its environment."""

import itertools
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from seen_success import played

from vla_rl.acting.question_page import QuestionQueue
from vla_rl.cli.main import main
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Origin
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.outcomes.detector import Judgment
from vla_rl.outcomes.ensemble import SuccessDetector, Track
from vla_rl.outcomes.labeling import DETECTOR, HIDDEN, FooledError, LabelConfig, Labeling
from vla_rl.policies.base import BasePolicy
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.training.plan import BudgetConfig
from vla_rl.training.round_labels import RoundLabels, choose_labels

TINY = ["--config", "tiny", "budget.episodes_per_round=4", "budget.rounds=1", "takeover.enabled=false"]


def train(*arguments: str) -> int:
    return main(["train", *arguments])


@pytest.mark.slow
def test_round_one_is_labeled_by_hand_and_the_detector_takes_over(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert (
        train(*TINY, "--out", str(run), "--outcomes", "by_hand_episodes=1", "simulated_person=true", "audit_share=0")
        == 0
    )
    store = EpisodeStore(run / "episodes", create=False)
    first = [name for name in store.ids() if name.startswith("round001")]
    assert {store.edit_log(name).labeler for name in first} == {"simulated person"}
    assert {store.edit_log(name).entries[0].user for name in first} == {HIDDEN}
    assert train("--resume", str(run), "budget.rounds=2") == 0
    second = [name for name in store.ids() if name.startswith("round002")]
    assert len(second) == 4
    for name in second:
        entries = store.edit_log(name).entries
        assert entries[0].user == HIDDEN, "hidden before anything can learn from it"
        assert any(entry.user.startswith(DETECTOR) for entry in entries)
    assert (run / "detector" / "detector.json").exists()
    demonstrations = [name for name in store.ids() if store.read_header(name).origin is Origin.DEMO]
    assert not any(store.edit_log(name).entries for name in demonstrations)
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    scores = {record["round"]: record for record in metrics if record["kind"] == "outcomes"}
    assert scores[1]["asked"] == 4
    assert scores[2]["asked"] == sum(store.edit_log(name).labeler == "simulated person" for name in second)
    assert scores[2]["unknown"] == 0, "the simulated person answers at once"
    evaluation = EpisodeStore(run / "evaluation", create=False)
    assert not any(evaluation.edit_log(name).entries for name in evaluation.ids())


@pytest.mark.slow
def test_late_answers_are_used_from_the_next_round_on(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert train(*TINY, "--out", str(run), "--outcomes", "by_hand_episodes=1", "audit_share=0", "most_asked=1") == 0
    store = EpisodeStore(run / "episodes", create=False)
    queue = QuestionQueue(store)
    assert queue.next()["left"] == 4, "nothing has waited for the answers"
    for key in "fffn":
        queue.answer(queue.next()["name"], key)
    assert train("--resume", str(run), "budget.rounds=2") == 0
    assert (run / "detector" / "detector.json").exists(), "it has learned from the answers"
    first = [store.read_header(name).success for name in store.ids() if name.startswith("round001")]
    assert first == [False, False, False, None], "no detector labels what a person was not sure of"


@pytest.mark.slow
def test_practice_stops_where_the_scene_is_unlike_every_known_one(
    tmp_path: Path, policy: Path, fill: Callable[[EpisodeStore, int], None]
) -> None:
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(policy, folder.policy(0))
    store, random = EpisodeStore(folder.episodes), np.random.default_rng(0)
    choose_labels(folder, LabelConfig(by_hand_episodes=1, simulated_person=True), BudgetConfig())
    fill(store, 20)
    labels = RoundLabels(folder, store)
    labels.label(1, [name for name in store.ids() if name.startswith("round001")])
    strange = [played(f"round002-{index:05d}", False, 100 + index) for index in range(6)]
    for episode in strange:
        noise = {name: random.integers(0, 256, each.shape, np.uint8) for name, each in episode.images.items()}
        ends = {name: each[-1] for name, each in noise.items()}
        store.add(replace(episode, images=noise, final_images=ends if episode.final_images else {}))
    names = [episode.episode_id for episode in strange]
    with pytest.raises(FooledError, match="asks about 6 of 6 episodes"):
        labels.label(2, names)
    assert [store.read_header(name).success for name in names] == [False] * 6, "every question has its answer"
    assert labels.label(2, names)["false_success"] == 0, "a resumed run goes on"


def practiced(folder: RunFolder, number: int, count: int) -> list[str]:
    """Return the new episodes of a round. Every second one is a success."""
    store = EpisodeStore(folder.episodes)
    names = [f"round{number:03d}-{index:05d}" for index in range(count)]
    for index, name in enumerate(names):
        store.add(played(name, index % 2 == 0, 100 * number + index))
    return names


@pytest.fixture
def run(tmp_path: Path, policy: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(policy, folder.policy(0))
    return folder


@pytest.mark.slow
def test_questions_that_nobody_has_answered_yet_do_not_stop_later_rounds(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The detector is unsure of 2 of the 8 episodes of each round. Nothing waits for an answer."""
    judge, read = SuccessDetector.judge_track, Labeling._track
    numbers: dict[int, int] = {}

    def numbered(self: Labeling, name: str) -> Track:
        track = read(self, name)
        numbers[id(track.features)] = int(name[-5:])
        return track

    def unsure_of_two(self: SuccessDetector, track: Track) -> Judgment:
        return replace(judge(self, track), success=None if numbers[id(track.features)] < 2 else False)

    monkeypatch.setattr(Labeling, "_track", numbered)
    choose_labels(run, LabelConfig(by_hand_episodes=1, audit_share=0), BudgetConfig())
    store = EpisodeStore(run.episodes)
    first = practiced(run, 1, 8)
    RoundLabels(run, store).label(1, first)
    for index, name in enumerate(first):
        store.label(name, index % 2 == 0, "ana")
    monkeypatch.setattr(SuccessDetector, "judge_track", unsure_of_two)
    for number in range(2, 7):
        assert RoundLabels(run, store).label(number, practiced(run, number, 8))["unknown"] == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "kill_at"), [(1, 0), (1, 3), (1, 9), (1, 11), (2, 0), (2, 3), (2, 9), (2, 10), (2, 13)]
)
def test_what_was_killed_while_it_labeled_is_done_again(
    run: RunFolder, number: int, kill_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any label: while outcomes are hidden, at an answer, a judgment, an audit. At 0 it is not killed."""
    choose_labels(run, LabelConfig(by_hand_episodes=1, audit_share=0.3, simulated_person=True), BudgetConfig())
    store, label, calls = EpisodeStore(run.episodes), EpisodeStore.label, itertools.count(1)
    if number == 2:
        RoundLabels(run, store).label(1, practiced(run, 1, 8))
    names = practiced(run, number, 8)

    def killed(self: EpisodeStore, *arguments: Any) -> bool:
        if next(calls) == kill_at:
            raise KeyboardInterrupt
        return label(self, *arguments)

    monkeypatch.setattr(EpisodeStore, "label", killed)
    with pytest.raises(KeyboardInterrupt) if kill_at else nullcontext():
        RoundLabels(run, store).label(number, names)
    monkeypatch.setattr(EpisodeStore, "label", label)
    labels = RoundLabels(run, store)
    scores = labels.label(number, names)
    assert (scores["unknown"], scores["false_success"]) == (0, 0)
    by_person = [name for name in names if store.edit_log(name).labeler == "simulated person"]
    assert (len(by_person), labels._labeling.audit()["audited"]) == {1: (8, 0), 2: (6, 2)}[number]
    assert labels.label(number, names) == scores
    assert not (run.path / "outcomes_begun").exists()


@pytest.mark.parametrize(("count", "by_hand"), [(4, False), (5, True)])
def test_a_person_labels_whole_rounds_until_enough_episodes_have_been_asked(
    tmp_path: Path, policy: Path, fill: Callable[[EpisodeStore, int], None], count: int, by_hand: bool
) -> None:
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(policy, folder.policy(0))
    store = EpisodeStore(folder.episodes)
    choose_labels(
        folder, LabelConfig(audit_share=0, by_hand_episodes=count, simulated_person=True, most_asked=1), BudgetConfig()
    )
    labels = RoundLabels(folder, store)
    for number in (1, 2):
        names = [f"round{number:03d}-{index:05d}" for index in range(4)]
        for index, name in enumerate(names):
            store.add(played(name, index % 2 == 0, 10 * number + index))
        labels.label(number, names)
    assert (folder.path / "detector").exists() is not by_hand


def test_a_question_that_waits_counts_as_asked(tmp_path: Path, fill: Callable[[EpisodeStore, int], None]) -> None:
    (tmp_path / "run").mkdir()
    folder, store = RunFolder(tmp_path / "run"), EpisodeStore(tmp_path / "store")
    choose_labels(folder, LabelConfig(by_hand_episodes=1), BudgetConfig())
    fill(store, 2)
    names = ["round001-00000", "round001-00001"]
    for name, judged in zip(names, (None, False), strict=True):
        store.label(name, judged, f"{DETECTOR}ensemble-6")
    scores = RoundLabels(folder, store).score(names)
    assert (scores["asked"], scores["unknown"]) == (1, 1)


@pytest.mark.slow
def test_practice_goes_on_with_a_new_detector_after_a_stop(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four episodes a round: all successes of the round that stops are audited, so none of them is open."""
    choose_labels(run, LabelConfig(by_hand_episodes=1, simulated_person=True), BudgetConfig())
    store, judge = EpisodeStore(run.episodes), SuccessDetector.judge_track
    RoundLabels(run, store).label(1, practiced(run, 1, 4))
    monkeypatch.setattr(SuccessDetector, "judge_track", lambda self, track: Judgment(True, 1.0))
    with pytest.raises(FooledError, match="2 of the last 4 audited successes were failures"):
        RoundLabels(run, store).label(2, practiced(run, 2, 4))
    monkeypatch.setattr(SuccessDetector, "judge_track", judge)
    assert RoundLabels(run, store).label(3, practiced(run, 3, 4))["false_success"] == 0


def test_an_exported_detector_in_a_run_is_refused_before_a_person_answers(run: RunFolder) -> None:
    choose_labels(run, LabelConfig(by_hand_episodes=1, simulated_person=True), BudgetConfig())
    store, names = EpisodeStore(run.episodes), practiced(run, 1, 4)
    (run.path / "detector").mkdir()
    (run.path / "detector" / "detector.onnx").touch()
    with pytest.raises(UserError, match="move it away"):
        RoundLabels(run, store).label(1, names)


def test_a_policy_without_features_is_refused_before_a_person_answers(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    choose_labels(run, LabelConfig(by_hand_episodes=1, simulated_person=True), BudgetConfig())
    store, names = EpisodeStore(run.episodes), practiced(run, 1, 4)
    monkeypatch.setattr(FlowVLA, "features", BasePolicy.features)
    with pytest.raises(UserError, match="gives no features"):
        RoundLabels(run, store).label(1, names)
    assert not any(store.edit_log(name).entries for name in names)


def test_a_run_that_has_practiced_on_outcomes_of_the_environment_takes_no_labels(run: RunFolder) -> None:
    practiced(run, 1, 4)
    with pytest.raises(ConfigError, match="has practiced on outcomes of its environment"):
        choose_labels(run, LabelConfig(), BudgetConfig())
    assert RoundLabels.of(run, EpisodeStore(run.episodes)) is None


def test_what_needs_outcomes_of_the_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(UserError, match=r"budget\.check_episodes=0"):
        choose_labels(folder, LabelConfig(), BudgetConfig(check_episodes=4))
    with pytest.raises(UserError, match=r"budget\.compare_episodes=0"):
        choose_labels(folder, LabelConfig(), BudgetConfig(compare_episodes=4))
    choose_labels(folder, LabelConfig(answers=20), BudgetConfig())
    with pytest.raises(UserError, match="other label settings"):
        choose_labels(folder, LabelConfig(answers=30), BudgetConfig())
