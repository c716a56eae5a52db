from pathlib import Path

import pytest
from episode_maker import make_episode

from vla_rl.core.errors import StoreError
from vla_rl.data.doctor import Defect, diagnose, format_findings, repair
from vla_rl.data.store import EpisodeStore


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    store = EpisodeStore(tmp_path / "store")
    for episode_id in ("a", "b", "c"):
        store.add(make_episode(episode_id))
    return store


def damage(store: EpisodeStore, episode_id: str) -> bytes:
    file = store.path / "episodes" / f"{episode_id}.zarr.zip"
    content = file.read_bytes()[:-100]
    file.write_bytes(content)
    return content


def test_a_healthy_store_has_no_findings(store: EpisodeStore) -> None:
    assert diagnose(store.path) == []
    assert format_findings([]) == "nothing is wrong"


def test_everything_wrong_is_found_mended_and_kept(store: EpisodeStore) -> None:
    content = damage(store, "b")
    episodes = store.path / "episodes"
    (episodes / ".d.0123.tmp").write_bytes(b"half")
    (episodes / "notes.txt").write_text("mine")
    (store.path / "store.json").write_text("{")
    found = {finding.defect: finding.file.name for finding in diagnose(store.path)}
    assert found == {
        Defect.SETTINGS: "store.json",
        Defect.LEFTOVER: ".d.0123.tmp",
        Defect.DAMAGED: "b.zarr.zip",
        Defect.FOREIGN: "notes.txt",
    }
    assert sorted(file.name for file in episodes.iterdir()) == sorted(
        [".d.0123.tmp", "a.zarr.zip", "b.zarr.zip", "c.zarr.zip", "notes.txt"]
    ), "diagnosing changed something"

    repaired = repair(store.path)
    assert {finding.defect for finding in repaired} == set(found)
    assert (store.path / "quarantine" / "b.zarr.zip").read_bytes() == content
    assert (store.path / "quarantine" / "store.json").read_text() == "{"
    assert [finding.defect for finding in diagnose(store.path)] == [Defect.FOREIGN]
    assert (episodes / "notes.txt").read_text() == "mine"
    assert EpisodeStore(store.path, create=False).ids() == ["a", "c"]


def test_the_quarantine_never_replaces_what_is_in_it(store: EpisodeStore) -> None:
    first = damage(store, "a")
    repair(store.path)
    store.add(make_episode("a", seed=5))
    second = damage(store, "a")
    repair(store.path)
    quarantine = store.path / "quarantine"
    assert (quarantine / "a.zarr.zip").read_bytes() == first
    assert (quarantine / "a.zarr.zip.1").read_bytes() == second


def test_what_another_version_wrote_or_the_system_withholds_is_left_alone(
    store: EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(file: Path) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr("zipfile.ZipFile", denied)
        findings = repair(store.path)
    assert [finding.defect for finding in findings] == [Defect.UNREADABLE] * 3
    assert "Permission denied" in findings[0].detail
    (store.path / "store.json").write_text('{"schema_version": 9, "pinned": null}')
    assert [finding.defect for finding in repair(store.path)] == [Defect.UNREADABLE]
    assert store.ids() == ["a", "b", "c"]
    assert "schema version 9" in diagnose(store.path)[0].detail


def test_a_lost_settings_file_is_written_anew(store: EpisodeStore) -> None:
    (store.path / "store.json").unlink()
    assert [finding.defect for finding in repair(store.path)] == [Defect.SETTINGS]
    assert EpisodeStore(store.path, create=False).ids() == ["a", "b", "c"]


def test_what_a_writer_of_settings_left_is_removed(store: EpisodeStore) -> None:
    leftover = store.path / ".store.json.123.tmp"
    leftover.write_text("{")
    assert [finding.file for finding in repair(store.path)] == [leftover]
    assert not leftover.exists()


def test_edits_are_checked_too(store: EpisodeStore) -> None:
    for episode_id in "abc":
        store.label(episode_id, True)
    assert diagnose(store.path) == []
    store.edits.file("a").write_text("{")
    (store.path / "episodes" / "b.zarr.zip").unlink()
    leftover = store.edits.path / ".c.json.12.tmp"
    leftover.write_text("")
    found = {(finding.defect, finding.file.name) for finding in repair(store.path)}
    assert found == {
        (Defect.DAMAGED, "a.json"),
        (Defect.FOREIGN, "b.json"),
        (Defect.LEFTOVER, leftover.name),
    }
    assert (store.path / "quarantine" / "a.json").read_text() == "{"
    assert store.read("a").success is True  # its own outcome again
    assert [finding.defect for finding in diagnose(store.path)] == [Defect.FOREIGN]


def test_a_run_folder_is_not_taken_for_a_store(tmp_path: Path) -> None:
    run = tmp_path / "run"
    EpisodeStore(run / "episodes").add(make_episode("a"))
    for check in (diagnose, repair, lambda path: EpisodeStore(path, create=False)):
        with pytest.raises(StoreError, match=r"did you mean .*run/episodes\?"):
            check(run)
    assert [file.name for file in run.iterdir()] == ["episodes"]


def test_no_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no episode store"):
        diagnose(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_table_has_a_line_for_each_finding(store: EpisodeStore) -> None:
    damage(store, "a")
    damage(store, "c")
    lines = format_findings(diagnose(store.path)).splitlines()
    assert [line.split()[:2] for line in lines[1:]] == [["damaged", "a.zarr.zip"], ["damaged", "c.zarr.zip"]]
    assert lines[0].split() == ["WHAT", "FILE", "REMEDY", "DETAIL"]
    assert lines[1].index("a.zarr.zip") == lines[0].index("FILE")
