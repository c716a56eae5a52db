import json
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest
import zarr
from episode_maker import assert_same_episode, episodes, make_episode
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fakes.resealed import resealed
from vla_rl.core.errors import DamagedError, StoreError, UserError
from vla_rl.core.types import Episode
from vla_rl.data.cache import FrameCache
from vla_rl.data.episode_file import storable_columns, verify_file
from vla_rl.data.store import EpisodeStore

_EMPTY_TOO = {"write_empty_chunks": True}
HOSTILE_IDS = [
    "",
    ".",
    "..",
    "../x",
    "/etc/x",
    "a/b",
    "a\\b",
    "a" * 101,
    "é",
    "-rf",
    ".hidden",
    "a\n",
    "a\0b",
    "a b",
    "~",
]


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    return EpisodeStore(tmp_path / "store")


def episode_file(store: EpisodeStore, episode_id: str) -> Path:
    return store.path / "episodes" / f"{episode_id}.zarr.zip"


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(episode=episodes())
def test_an_episode_comes_back_bit_by_bit(tmp_path_factory: pytest.TempPathFactory, episode: Episode) -> None:
    store = EpisodeStore(tmp_path_factory.mktemp("store"))
    store.add(episode)
    assert_same_episode(store.read(episode.episode_id), episode)
    header = store.read_header(episode.episode_id)
    assert header == verify_file(episode_file(store, episode.episode_id))
    assert (header.length, header.success, header.seed) == (len(episode), episode.success, episode.seed)
    assert header.cameras == {name: image.shape[1:3] for name, image in episode.images.items()}


def test_a_file_is_what_zarr_itself_would_have_written(
    store: EpisodeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a column is cut into pieces of which the last is not full, and where rows are empty."""
    monkeypatch.setattr("vla_rl.data.episode_file._CHUNK_BYTES", 100)
    extras = {"nothing": np.zeros((5, 0), np.float32), "flag": np.array([True, False, True, True, False])}
    episode = make_episode("a", state=np.arange(55, dtype=np.float32).reshape(5, 11), extras=extras)
    store.add(episode)
    with zarr.storage.ZipStore(episode_file(store, "a"), mode="r") as ours:
        written = zarr.open_group(ours, mode="r")
        np.testing.assert_array_equal(written["state"][...], episode.state)
        members = dict(written.members(max_depth=None))
    assert members["state"].chunks == (2, 11)
    with zarr.storage.ZipStore(tmp_path / "theirs.zip", mode="w") as file:
        theirs = zarr.create_group(file)
        for path, column in storable_columns(episode).items():
            chunks, compressor = members[path].chunks, zarr.codecs.ZstdCodec(level=1)
            theirs.create_array(path, data=column, chunks=chunks, compressors=compressor, config=_EMPTY_TOO)
    expected, found = (_members(path) for path in (tmp_path / "theirs.zip", episode_file(store, "a")))
    assert expected.pop("zarr.json") != found.pop("zarr.json")  # ours has the header
    assert found == expected


def _members(file: Path) -> dict[str, object]:
    with zipfile.ZipFile(file) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    return {name: json.loads(raw) if name.endswith(".json") else raw for name, raw in content.items()}


def test_ids_are_sorted_and_foreign_files_are_ignored(store: EpisodeStore) -> None:
    for episode_id in ("b", "a10", "a9"):
        store.add(make_episode(episode_id))
    (store.path / "episodes" / "notes.txt").write_text("x")
    (store.path / "episodes" / "copy (1).zarr.zip").write_text("x")
    assert store.ids() == ["a10", "a9", "b"]
    assert len(store) == 3
    assert "b" in store
    assert "c" not in store


@pytest.mark.parametrize("episode_id", HOSTILE_IDS)
def test_hostile_ids_are_refused_and_nothing_is_written(store: EpisodeStore, episode_id: str) -> None:
    before = sorted(store.path.parent.rglob("*"))
    with pytest.raises(StoreError, match="bad episode id"):
        store.add(make_episode(episode_id))
    with pytest.raises(StoreError, match="bad episode id"):
        store.read(episode_id)
    assert episode_id not in store
    assert sorted(store.path.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"state": np.full((5, 3), np.nan, np.float32)}, "not finite at step 0"),
        ({"action_sent": np.full((5, 2), np.inf, np.float32)}, "not finite"),
        ({"state": np.zeros((5, 3))}, "state is float64"),
        ({"state": np.zeros((4, 3), np.float32)}, "action_policy is float32"),
        ({"source": np.full(5, 9, np.uint8)}, "source"),
        ({"state": [[0.0, 0.0, 0.0]] * 5}, "state is "),
        ({"extras": {"note": np.array(["a"] * 5, dtype=object)}}, "extras/note is object"),
        ({"extras": {"note": np.array(["a"] * 5)}}, "extras/note is <U1"),
        ({"extras": {"when": np.zeros(5, "M8[ns]")}}, "extras/when is datetime64"),
        ({"extras": {"scalar": np.array(1.0)}}, "extras/scalar is float64"),
        ({"extras": {"short": np.zeros(4)}}, "4 rows"),
        ({"extras": {"../../x": np.zeros(5)}}, "bad name '../../x'"),
        ({"extras": {"__private": np.zeros(5)}}, "bad name"),
        ({"images": {"a/b": np.zeros((5, 2, 2, 3), np.uint8)}}, "bad name 'a/b'"),
        ({"images": {"front": np.zeros((5, 2, 2, 4), np.uint8)}}, "expected"),
        ({"task": None}, "task is None"),
        ({"success": "yes"}, "success .* 'yes'"),
        ({"policy_version": 1.5}, "policy_version is 1.5"),
        ({"origin": "mars"}, "'mars' is not a valid Origin"),
        ({"control_hz": 0.0}, "control_hz is 0.0"),
        ({"control_hz": "fast"}, "cannot be stored"),
        ({"env_id": {1, 2}}, "cannot be stored"),
        ({"control_hz": np.nan}, "control_hz is nan"),
    ],
)
def test_what_cannot_be_stored_is_refused_in_one_line(store: EpisodeStore, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        store.add(make_episode("bad", **changes))
    assert "\n" not in str(caught.value)
    assert list((store.path / "episodes").iterdir()) == []


def test_numpy_labels_are_stored_as_what_they_mean(store: EpisodeStore) -> None:
    store.add(
        make_episode(
            "a", success=np.bool_(False), seed=np.int64(7), policy_version=np.int32(2), control_hz=np.float32(30)
        )
    )
    header = store.read_header("a")
    assert (header.success, header.seed, header.policy_version, header.control_hz) == (False, 7, 2, 30.0)


@pytest.mark.parametrize("task", ["", "put \u2603 in the \u00e9tui", "line\nbreak", "\ud800", "x" * 10_000])
def test_any_sentence_can_be_a_task(store: EpisodeStore, task: str) -> None:
    store.add(make_episode("a", task=task))
    assert store.read("a").task == task


def test_a_label_stands_beside_the_episode_and_in_place_of_its_outcome(store: EpisodeStore) -> None:
    store.add(make_episode("a", success=None))
    store.add(make_episode("b", success=True))
    before = episode_file(store, "a").read_bytes()
    stamps = store.stamps()
    store.label("a", False)
    assert episode_file(store, "a").read_bytes() == before
    assert (store.read("a").success, store.read_header("a").success) == (False, False)
    assert {name for name, stamp in store.stamps().items() if stamp != stamps[name]} == {"a"}
    store.label("a", True)
    store.label("b", None)
    reopened = EpisodeStore(store.path, create=False)
    assert [reopened.read(name).success for name in "ab"] == [True, None]
    assert reopened.ids() == ["a", "b"]


def test_a_label_belongs_to_one_episode_and_not_to_its_name(store: EpisodeStore) -> None:
    store.add(make_episode("a", seed=1, success=None))
    store.label("a", True)
    episode_file(store, "a").unlink()
    store.add(make_episode("a", seed=2, success=None))
    assert store.read_header("a").success is None
    assert store.read("a").success is None


def test_what_cannot_be_labelled_is_one_clear_error(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in HOSTILE_IDS:
        with pytest.raises(StoreError, match="bad episode id"):
            store.label(name, True)
    with pytest.raises(StoreError, match="no episode 'nothing'"):
        store.label("nothing", True)
    assert not store.edits.path.exists()
    store.add(make_episode("a", success=None))
    store.label("a", True)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full)
        with pytest.raises(StoreError, match=r"cannot edit episode 'a'.*No space left"):
            store.label("a", False)
    assert store.read("a").success is True
    store.edits.file("a").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(DamagedError, match="vla-rl doctor"):
        store.read("a")


def test_an_episode_without_steps_is_refused(store: EpisodeStore) -> None:
    with pytest.raises(UserError, match="no steps"):
        store.add(make_episode("empty", length=0))


def test_episodes_never_change(store: EpisodeStore) -> None:
    store.add(make_episode("a", seed=1))
    with pytest.raises(StoreError, match="already has an episode 'a'"):
        store.add(make_episode("a", seed=2))
    assert_same_episode(store.read("a"), make_episode("a", seed=1))


@pytest.mark.parametrize("hard_links", [True, False])
def test_of_many_writers_of_one_id_exactly_one_wins(
    store: EpisodeStore, monkeypatch: pytest.MonkeyPatch, hard_links: bool
) -> None:
    writers = 6 if hard_links else 1
    if not hard_links:

        def no_link(source: Path, target: Path) -> None:
            raise OSError(95, "Operation not supported")

        monkeypatch.setattr("os.link", no_link)
    outcomes: list[str] = []
    barrier = threading.Barrier(writers)

    def write(seed: int) -> None:
        barrier.wait()
        try:
            store.add(make_episode("same", seed=seed))
            outcomes.append("saved")
        except StoreError:
            outcomes.append("refused")

    threads = [threading.Thread(target=write, args=(seed,)) for seed in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * (writers - 1) + ["saved"]
    verify_file(episode_file(store, "same"))
    assert [file.name for file in (store.path / "episodes").iterdir()] == ["same.zarr.zip"]


def test_without_hard_links_a_name_that_is_taken_meanwhile_is_not_replaced(
    store: EpisodeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: Path, target: Path) -> None:
        target.write_bytes(b"of another writer")
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("os.link", no_link)
    with pytest.raises(StoreError, match="already has"):
        store.add(make_episode("a"))
    assert episode_file(store, "a").read_bytes() == b"of another writer"


def test_a_missing_store_is_an_error_unless_it_may_be_made(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no episode store"):
        EpisodeStore(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot make an episode store"):
        EpisodeStore(tmp_path / "file")


def test_a_missing_episode_is_named(store: EpisodeStore) -> None:
    with pytest.raises(StoreError, match="no episode 'nothing'"):
        store.read("nothing")


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_damaged_settings_lead_to_the_doctor(store: EpisodeStore, content: str) -> None:
    (store.path / "store.json").write_text(content)
    with pytest.raises(StoreError, match="vla-rl doctor"):
        EpisodeStore(store.path)


def test_another_schema_version_is_named(store: EpisodeStore) -> None:
    store.add(make_episode("a"))
    file = episode_file(store, "a")
    rewrite_member(file, "zarr.json", lambda raw: raw.replace(b'"schema_version": 1', b'"schema_version": 7'))
    with pytest.raises(StoreError, match="schema version 7, this program reads 1") as caught:
        store.read("a")
    assert not isinstance(caught.value, DamagedError)
    (store.path / "store.json").write_text('{"schema_version": 2, "pinned": null}')
    with pytest.raises(StoreError, match="schema version 2, this program reads 1"):
        EpisodeStore(store.path)


@pytest.fixture(scope="module")
def intact(tmp_path_factory: pytest.TempPathFactory) -> EpisodeStore:
    store = EpisodeStore(tmp_path_factory.mktemp("intact"))
    store.add(make_episode("a", extras={"chunk_id": np.arange(5)}))
    return store


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_damaged_file_is_an_error_or_harmless_but_never_wrong_data(
    intact: EpisodeStore, store: EpisodeStore, data: st.DataObject
) -> None:
    content = episode_file(intact, "a").read_bytes()
    damaged = bytearray(content)
    if data.draw(st.booleans(), label="truncate"):
        del damaged[data.draw(st.integers(0, len(content) - 1), label="length") :]
    else:
        for _ in range(data.draw(st.integers(1, 3), label="flips")):
            damaged[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    episode_file(store, "a").write_bytes(damaged)
    try:
        found = store.read("a")
    except StoreError as error:
        message = str(error)
    else:  # a flip in a time stamp, say
        assert_same_episode(found, make_episode("a", extras={"chunk_id": np.arange(5)}))
        return
    assert "a.zarr.zip" in message
    assert "\n" not in message


def described_otherwise(raw: bytes) -> bytes:
    """A zarr.json as another program may write it."""
    return json.dumps(json.loads(raw) | {"attributes": {"unit": "m"}}).encode()


def test_many_chunks_are_put_together(store: EpisodeStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_rl.data.episode_file._CHUNK_BYTES", 100)
    episode = make_episode("a", state=np.arange(55, dtype=np.float32).reshape(5, 11))
    store.add(episode)
    assert_same_episode(store.read("a"), episode)
    rewrite_member(episode_file(store, "a"), "source/zarr.json", described_otherwise)
    assert_same_episode(store.read("a"), episode)


def test_a_lost_chunk_is_damage_and_not_zeros(store: EpisodeStore) -> None:
    store.add(make_episode("a"))
    rewrite_member(episode_file(store, "a"), "state/c/0/0", lambda raw: None)
    with pytest.raises(DamagedError, match="vla-rl doctor"):
        store.read("a")


def test_content_that_was_exchanged_consistently_is_found_by_its_digest(store: EpisodeStore) -> None:
    store.add(make_episode("a"))
    file = episode_file(store, "a")
    rewrite_member(file, "zarr.json", lambda raw: raw.replace(b'"success": true', b'"success": false'))
    with pytest.raises(DamagedError, match="digest"):
        verify_file(file)


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/b", ".hidden", ""])
def test_a_file_whose_header_names_paths_is_damaged(store: EpisodeStore, tmp_path: Path, name: str) -> None:
    store.add(make_episode("a"))
    escaped = json.dumps(name).encode()

    def renamed(raw: bytes) -> bytes:
        metadata = json.loads(raw.replace(b'"front"', escaped))
        return json.dumps({**metadata, "attributes": json.loads(resealed(metadata["attributes"]))}).encode()

    rewrite_member(episode_file(store, "a"), "zarr.json", renamed)
    for read in (store.read, store.read_header):
        with pytest.raises(DamagedError, match="header names a column"):
            read("a")
    with pytest.raises(DamagedError):
        FrameCache(store, tmp_path / "cache").refresh()


def test_a_renamed_episode_is_not_taken_for_another(store: EpisodeStore) -> None:
    store.add(make_episode("a"))
    episode_file(store, "a").rename(episode_file(store, "b"))
    with pytest.raises(DamagedError, match="it holds the episode 'a'"):
        store.read("b")


def test_objects_and_pickles_in_a_file_are_refused(store: EpisodeStore) -> None:
    store.add(make_episode("a", extras={"note": np.arange(5)}))
    file = episode_file(store, "a")

    def as_strings(raw: bytes) -> bytes:
        metadata = json.loads(raw)
        return json.dumps(
            metadata | {"data_type": "string", "codecs": [{"name": "vlen-utf8"}], "fill_value": ""}
        ).encode()

    rewrite_member(file, "extras/note/zarr.json", as_strings)
    with pytest.raises(DamagedError):
        store.read("a")
    episode_file(store, "b").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(DamagedError):
        store.read("b")


def rewrite_member(file: Path, name: str, change) -> None:
    """Write a zip file anew with one member changed (or left out, for None): its checksums are right again."""
    with zipfile.ZipFile(file) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    original = members.pop(name)
    changed = change(original)
    assert changed != original
    with zipfile.ZipFile(file, "w") as archive:
        for member, content in (members | ({} if changed is None else {name: changed})).items():
            archive.writestr(member, content)
