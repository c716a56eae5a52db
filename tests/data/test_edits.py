"""The log of edits. What readers see of edited episodes is met in `benchmarks.data_traps.edits`."""

import json
import multiprocessing
from pathlib import Path

import pytest
from episode_maker import make_episode

from tests.fakes.resealed import resealed
from vla_rl.core.errors import DamagedError, StoreError, UserError
from vla_rl.data.doctor import Defect, diagnose, repair
from vla_rl.data.sources import DataMapping, import_source
from vla_rl.data.store import EpisodeStore


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore(tmp_path / "store")
    store.add(make_episode("a", length=9))
    return store


def test_the_log_keeps_old_and_new_values_and_undoes_the_last_edit_first(store: EpisodeStore) -> None:
    store.edit("a", trim=(2, 8), task="push")
    store.edit("a", trim=(3, 5))
    store.edit("a", left_out=True)
    assert [entry.old for entry in store.edit_log("a").entries] == [
        {"trim": (0, 9), "task": "put the cube on the tray"},
        {"trim": (2, 8)},
        {"left_out": False},
    ]
    store.undo("a")
    store.undo("a")
    assert store.changes("a") == {"trim": (2, 8), "task": "push", "left_out": False}
    store.edit("a", success=None)
    store.undo("a")
    store.undo("a")
    assert store.read("a").task == "put the cube on the tray"
    assert [entry.undoes for entry in store.edit_log("a").entries] == [None, None, None, 2, 1, None, 5, 0]
    assert all(entry.time.endswith("+00:00") and entry.user for entry in store.edit_log("a").entries)
    with pytest.raises(UserError, match="episode 'a' has no edit to undo"):
        store.undo("a")
    assert EpisodeStore(store.path).edit_log("a") == store.edit_log("a")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trim": (0, 10)}, "trim 0:10 does not lie in its 9 steps"),
        ({"trim": (-1, 4)}, "trim -1:4"),
        ({"trim": (4, 4)}, "at least one step"),
        ({"trim": (True, 4)}, "trim True:4"),
        ({"success": 0.27}, "success is 0.27"),
        ({"sucess": True}, r"cannot change \['sucess'\]; name any of left_out, trim"),
        ({}, "name any of"),
    ],
)
def test_what_an_episode_cannot_have_is_refused(store: EpisodeStore, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        store.edit("a", **changes)
    assert not store.edits.path.exists()


def _edit(path: Path, task: str) -> None:
    EpisodeStore(path).edit("a", task=task)


def test_no_edit_of_several_processes_is_lost(store: EpisodeStore) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_edit, args=(store.path, str(number))) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    found = [entry.new["task"] for entry in store.edit_log("a").entries]
    assert sorted(found) == [str(number) for number in range(8)]
    assert store.read("a").task == found[-1]


@pytest.mark.parametrize(
    ("change", "defect"),
    [
        ({"log": [{"time": "", "user": "", "new": {"trim": [0, 99]}, "old": {}}]}, Defect.DAMAGED),
        ({"log": [{"time": "", "user": "", "new": {"trim": [5, 5]}, "old": {}}]}, Defect.DAMAGED),
        ({"log": [{"time": "", "user": "", "new": {"speed": 2}, "old": {}}]}, Defect.DAMAGED),
        ({"log": [3]}, Defect.DAMAGED),
        ({"digest": "0"}, Defect.FOREIGN),
        ({"schema_version": 9}, Defect.UNREADABLE),
    ],
)
def test_an_edit_that_does_not_fit_is_found_and_set_aside(store: EpisodeStore, change: dict, defect: Defect) -> None:
    store.edit("a", trim=(2, 8))
    file = store.edits.file("a")
    content = json.loads(file.read_text()) | change
    file.write_text(resealed(content))
    reopened = EpisodeStore(store.path)
    if defect is Defect.FOREIGN:
        assert len(reopened.read("a")) == 9
    else:
        with pytest.raises(DamagedError if defect is Defect.DAMAGED else StoreError, match=r"a\.json"):
            reopened.read("a")
    assert [(finding.defect, finding.file) for finding in diagnose(store.path)] == [(defect, file)]
    repair(store.path)
    assert file.exists() == (defect is not Defect.DAMAGED)


def test_a_moved_episode_keeps_its_edits(store: EpisodeStore, tmp_path: Path) -> None:
    other = EpisodeStore(tmp_path / "other")
    store.edit("a", trim=(2, 8))
    store.move("a", other)
    assert len(other.read("a")) == 6
    assert store.ids() == []


def test_an_episode_that_is_taken_in_keeps_its_log(store: EpisodeStore, tmp_path: Path) -> None:
    store.add(make_episode("b"))
    store.edit("a", trim=(2, 8))
    store.label("a", False, "detector ensemble-8")
    other = EpisodeStore(tmp_path / "other")
    other.add(make_episode("a", seed=9))
    assert import_source(store.path, other, DataMapping()) == ["a.2", "b"]
    assert other.edit_log("a.2").labeler == "detector ensemble-8"
    assert other.recording("a.2").values == store.recording("a").values
    assert (len(other.read("a.2")), other.read("a.2").success) == (6, False)
    assert other.edit_log("a").entries == ()
    assert diagnose(other.path) == []


def test_a_source_that_is_taken_in_again_brings_its_new_edits(
    store: EpisodeStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.add(make_episode("b"))
    other = EpisodeStore(tmp_path / "other")
    import_source(store.path, other, DataMapping())
    other.label("b", True, "ben")
    for name in ("a", "b"):
        store.label(name, False, "ana")
    assert import_source(store.path, other, DataMapping()) == []
    assert [other.edit_log(name).labeler for name in other.ids()] == ["ana", "ben"], "edits of its own stay"
    assert "edits of its own stay at 1 episodes, the first is 'b'" in caplog.text
    other.label("a", None, "ben")
    assert import_source(store.path, other, DataMapping()) == []
    assert other.edit_log("a").labeler == "ben"
