"""Who labels what: a person where it matters, a detector elsewhere, and both stay in the log."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from episode_maker import make_episode
from seen_success import played

from vla_rl.acting.question_page import QuestionQueue
from vla_rl.cli.main import main
from vla_rl.core.errors import ConfigError, StoreError
from vla_rl.core.types import Origin
from vla_rl.data import edits
from vla_rl.data.lerobot_export import export_lerobot
from vla_rl.data.store import EpisodeStore
from vla_rl.outcomes.ensemble import SuccessDetector, Track
from vla_rl.outcomes.labeling import (
    DETECTOR,
    FooledError,
    LabelConfig,
    Labeled,
    Labeling,
    open_questions,
    recorded_outcome,
)

Fill = Callable[[EpisodeStore, int], None]


@pytest.fixture
def store(tmp_path: Path, fill: Fill) -> EpisodeStore:
    """40 practice episodes whose recorded outcome is hidden from every reader."""
    store = EpisodeStore(tmp_path / "store")
    fill(store, 40)
    for name in names_of(store):
        store.label(name, None, "hidden")
    return store


def names_of(store: EpisodeStore) -> list[str]:
    return [name for name in store.ids() if store.read_header(name).origin is not Origin.DEMO]


@pytest.mark.slow
def test_few_answers_label_a_store(store: EpisodeStore, policy: Path) -> None:
    config = LabelConfig(answers=12, audit_share=0.2)
    labeling = Labeling(store, policy, config, answer=recorded_outcome(store))
    names = names_of(store)
    first = labeling.first_questions(names)
    assert len(first) == 12
    assert (first[0], first[-1]) == (names[0], names[-1])
    labeling.ask(first, "hidden")
    assert labeling.first_questions(names) == []
    found = labeling.judge_rest(names)
    assert found.detector is not None
    authors = {name: labeling.labeler(name) for name in names}
    by_detector = [name for name, author in authors.items() if author.startswith(DETECTOR)]
    assert len(by_detector) >= 10
    truth = {name: store.recording(name).values["success"] for name in names}
    assert all(store.read_header(name).success is truth[name] for name in names)
    assert {authors[name] for name in (*first, *found.asked)} == {"simulated person"}
    audit = labeling.audit()
    assert audit["audited"] > 0
    assert (audit["false_success"], audit["false_failure"]) == (0.0, 0.0)


def test_a_simulated_person_may_call_some_failures_successes(store: EpisodeStore) -> None:
    names, right, wrong = names_of(store), recorded_outcome(store), recorded_outcome(store, wrong_answers=0.3)
    failures = [name for name in names if right(name) is False]
    assert all(wrong(name) for name in names if right(name))
    assert 0 < sum(wrong(name) is True for name in failures) < len(failures)
    assert all(recorded_outcome(store, wrong_answers=1)(name) for name in names)
    with pytest.raises(ConfigError, match="simulated_person=true"):
        LabelConfig(wrong_answers=0.1)


@pytest.mark.slow
def test_a_newer_detector_renews_its_own_labels_and_no_persons(store: EpisodeStore, policy: Path) -> None:
    labeling = Labeling(store, policy, LabelConfig(answers=12, audit_share=0.0), answer=recorded_outcome(store))
    names = names_of(store)
    labeling.ask(labeling.first_questions(names), "hidden")
    labeling.judge_rest(names)
    detectors = [name for name in names if labeling.labeler(name).startswith(DETECTOR)]
    wrong_by_detector, wrong_by_person = detectors[:2]
    for name, author in ((wrong_by_detector, DETECTOR + "ensemble-4"), (wrong_by_person, "ana")):
        store.label(name, not store.recording(name).values["success"], author)
    # One wrong answer among many may cost a judgment, so only the labels of these two episodes count.
    labeling.judge_rest([])
    assert store.read_header(wrong_by_person).success is not store.recording(wrong_by_person).values["success"]
    assert labeling.labeler(wrong_by_person) == "ana"
    renewed = store.read_header(wrong_by_detector).success
    assert renewed in (store.recording(wrong_by_detector).values["success"], None)
    users = [entry.user for entry in store.edit_log(wrong_by_detector).entries]
    assert users[0] == "hidden"
    assert DETECTOR + "ensemble-4" in users
    assert labeling.labeler(wrong_by_detector) != DETECTOR + "ensemble-4"


def test_an_undone_label_has_no_author(store: EpisodeStore) -> None:
    name = names_of(store)[0]
    store.label(name, True, "ana")
    assert store.edit_log(name).labeler == "ana"
    store.undo(name)
    assert store.edit_log(name).labeler == "hidden"


def test_questions_wait_for_a_person(store: EpisodeStore, policy: Path) -> None:
    labeling = Labeling(store, policy, LabelConfig(answers=12))
    names = names_of(store)
    labeling.ask(labeling.first_questions(names), "hidden")
    assert labeling.judge_rest(names).detector is None, "no question is answered yet"
    assert open_questions(store) == names


def audited(store: EpisodeStore, name: str, answer: bool | None) -> None:
    """Ask about a success of a detector, and let a person answer."""
    store.label(name, True, DETECTOR + "ensemble-40")
    store.label(name, None, f"{DETECTOR}audit")
    store.label(name, answer, "ana")


def test_audited_successes_that_were_failures_stop_practice(store: EpisodeStore, policy: Path) -> None:
    labeling, names = Labeling(store, policy, LabelConfig()), names_of(store)
    for name in names[10:20]:
        store.label(name, True, DETECTOR + "ensemble-40")
    for name in names[:10]:  # every second one is a failure
        audited(store, name, recorded_outcome(store)(name))
    assert labeling.audit() == {"audited": 10, "false_success": 0.5, "false_failure": 0.0}
    with pytest.raises(FooledError, match="5 of the last 10 audited successes were failures"):
        labeling.check(Labeled(judged=tuple(names[10:15]), unsure=tuple(names[:3])), 40)
    labels = [store.read_header(name).success for name in names[10:20]]
    assert labels == [None] * 5 + [True] * 5, "its newest successes are questions"
    Labeling(store, policy, LabelConfig(most_wrong=0.6)).check(Labeled(unsure=tuple(names[:20])), 40)
    with pytest.raises(FooledError, match="asks about 21 of 40 episodes, more than"):
        labeling.check(Labeled(unsure=tuple(names[:21])), 40)


def test_a_few_successes_are_always_audited(store: EpisodeStore, policy: Path) -> None:
    names = names_of(store)
    for index, name in enumerate(names):
        store.label(name, index % 3 == 0, DETECTOR + "ensemble-40")
    audited = Labeling(store, policy, LabelConfig(audit_share=1e-9))._audits(names)
    assert len(audited) == 5
    assert all(store.read_header(name).success for name in audited)
    assert set(audited) < set(Labeling(store, policy, LabelConfig(audit_share=0.5))._audits(names))
    assert Labeling(store, policy, LabelConfig(audit_share=0.0))._audits(names) == []


def test_one_wrong_success_is_no_reason_to_stop(store: EpisodeStore, policy: Path) -> None:
    audited(store, names_of(store)[1], False)
    labeling = Labeling(store, policy, LabelConfig())
    assert labeling.audit()["false_success"] == 1
    labeling.check(Labeled(), 40)


def test_only_answers_to_an_audit_say_how_often_the_detector_is_wrong(store: EpisodeStore, policy: Path) -> None:
    first, second, third, fourth = names_of(store)[:4]
    store.label(first, True, DETECTOR + "ensemble-40")
    store.label(first, None, DETECTOR + "ensemble-60")  # a newer one is unsure, and asks
    store.label(first, False, "ana")
    store.label(second, True, DETECTOR + "ensemble-40")
    store.label(second, False, "ana")  # a correction without an audit
    audited(store, third, False)
    store.undo(third)
    audited(store, fourth, None)
    assert Labeling(store, policy).audit()["audited"] == 0


def test_the_newest_audits_count_in_the_order_of_their_answers(
    store: EpisodeStore, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = (datetime(2026, 1, 1, microsecond=moment, tzinfo=UTC) for moment in itertools.count())
    monkeypatch.setattr(edits, "datetime", SimpleNamespace(now=lambda _: next(times)))
    labeling, names = Labeling(store, policy), names_of(store)
    for name in reversed(names[:30]):  # within one second; the last ten answers call successes failures
        audited(store, name, name not in names[:10])
    with pytest.raises(FooledError, match="10 of the last 20 audited successes"):
        labeling.check(Labeled(), 40)


def test_audits_before_a_stop_do_not_count_for_later_detectors(store: EpisodeStore, policy: Path) -> None:
    labeling, names = Labeling(store, policy), names_of(store)
    for name in names[:10]:
        audited(store, name, False)
    stop = edits.now()
    with pytest.raises(FooledError):
        labeling.check(Labeled(), 40)
    labeling.check(Labeled(), 40, stop)
    for name in names[20:22]:
        audited(store, name, False)
    with pytest.raises(FooledError, match="2 of the last 2 audited successes"):
        labeling.check(Labeled(), 40, stop)


def test_the_newest_answer_to_an_audit_counts(store: EpisodeStore, policy: Path) -> None:
    name = names_of(store)[0]
    audited(store, name, True)
    store.label(name, False, "ana")
    assert Labeling(store, policy).audit() == {"audited": 1, "false_success": 1.0, "false_failure": 0.0}


@pytest.mark.slow
def test_an_answer_that_comes_while_the_detector_judges_stays(
    store: EpisodeStore, policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labeling, names = Labeling(store, policy, LabelConfig(answers=12, audit_share=1.0)), names_of(store)
    for name in names[:20]:
        store.label(name, recorded_outcome(store)(name), "ana")
    page, judge = QuestionQueue(EpisodeStore(store.path)), SuccessDetector.judge_track
    waiting = names[20:]
    assert page.next()["name"] == waiting[0]

    def answered(self: SuccessDetector, track: Track) -> Any:
        page.answer(waiting[0], "n")
        page.answer(waiting[1], "f")
        monkeypatch.setattr(SuccessDetector, "judge_track", judge)
        return judge(self, track)

    monkeypatch.setattr(SuccessDetector, "judge_track", answered)
    found = labeling.judge_rest(waiting)
    assert [store.read_header(name).success for name in waiting[:2]] == [None, False]
    assert not {store.edit_log(name).labeler for name in waiting[:2]} & {"hidden"}
    assert not any(store.edit_log(name).labeler.startswith(DETECTOR) for name in waiting[:2])
    assert not {*waiting[:2]} & {*found.judged, *found.asked}


def test_a_question_that_is_on_the_page_can_be_answered_although_a_detector_has_judged_it(store: EpisodeStore) -> None:
    page, name = QuestionQueue(store), names_of(store)[0]
    assert page.next()["name"] == name
    store.label(name, True, DETECTOR + "ensemble-40")
    page.answer(name, "f")
    assert store.read_header(name).success is False
    with pytest.raises(ValueError, match="is no question"):
        page.answer(name, "s")
    second = page.next()["name"]
    store.label(second, False, "ana")
    with pytest.raises(ValueError, match="is no question"):
        page.answer(second, "s")


def test_demonstrations_are_no_questions_and_no_first_answers(tmp_path: Path, policy: Path) -> None:
    store = EpisodeStore(tmp_path / "store")
    for index in range(6):
        demonstration = {"origin": Origin.DEMO, "policy_version": -1}
        store.add(replace(played(f"demo-{index:05d}", True, index, **demonstration), success=None, terminated=False))
    names = [f"round001-{index:05d}" for index in range(8)]
    for index, name in enumerate(names):
        store.add(replace(played(name, index % 2 == 0, 10 + index), success=None, terminated=False))
    labeling = Labeling(store, policy, LabelConfig(answers=4))
    assert open_questions(store) == names
    store.label("demo-00000", True)
    assert len(labeling.first_questions(names)) == 4
    store.label("demo-00001", None, "ana")
    assert labeling._track("demo-00001").success is None, "a person was not sure of it"
    assert labeling._track("demo-00002").success is True


@pytest.mark.slow
def test_an_episode_of_another_robot_is_left_out(
    store: EpisodeStore, policy: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = names_of(store)
    for name in names[:20]:
        store.label(name, recorded_outcome(store)(name), "ana")
    store.add(make_episode("another", length=5, success=True, images={"side": np.zeros((5, 4, 6, 3), np.uint8)}))
    assert Labeling(store, policy).judge_rest(names[20:]).detector is not None
    assert "does not learn from episode 'another'" in caplog.text
    file = store.episodes_dir / f"{names[0]}.zarr.zip"
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(StoreError):
        Labeling(store, policy).judge_rest(names[20:])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of lerobot's imports
def test_one_command_labels_a_lerobot_dataset(
    tmp_path: Path, fill: Fill, policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = EpisodeStore(tmp_path / "source")
    fill(source, 30)
    truth = {name: source.read_header(name).success for name in source.ids()}
    for name in names_of(source):
        source.label(name, None)
    dataset = export_lerobot(source, tmp_path / "dataset")
    capsys.readouterr()
    asked: list[str] = []

    def answer(prompt: str) -> str:
        shown = capsys.readouterr().out
        asked.append(next(line.split()[1].rstrip(":") for line in shown.splitlines() if line.startswith("[")))
        return "s" if truth[asked[-1]] else "f"

    monkeypatch.setattr("builtins.input", answer)
    arguments = ["--policy", str(policy), "--answers", "10", "--out", str(tmp_path / "store"), "--save"]
    assert main(["label", str(dataset), *arguments, str(tmp_path / "detector")]) == 0
    store = EpisodeStore(tmp_path / "store")
    found = {name: store.read_header(name).success for name in store.ids()}
    assert len(asked) <= 25, "first answers, audited successes, and what it is unsure of"
    assert sum(found[name] is truth[name] for name in found) >= 30
    assert not any(found[name] is (not truth[name]) for name in found)
    assert (tmp_path / "detector" / "detector.json").exists()


def test_a_declared_rule_labels_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = EpisodeStore(tmp_path / "store")
    for index, height in enumerate((0.1, 0.9)):
        lifted = {"height": np.full(5, height, np.float32)}
        store.add(make_episode(f"e{index}", success=None, extras=lifted))
    command = ["label", str(store.path), "--detector", "rule", "--with"]
    assert main([*command, "rule=nothing>=1"]) == 2
    assert "the rule reads 'nothing'" in capsys.readouterr().err
    assert main([*command, "rule=height>=0.5"]) == 0
    assert [episode.success for episode in store] == [False, True]
    assert store.edit_log("e1").labeler == "detector rule height>=0.5"
