"""Edits of episodes: what training, export and import see of them, and edits of other data."""

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import numpy as np

from benchmarks.data_traps.traps import SilentlyWrong, expect, logged, trap
from vla_rl.acting.attempt import free_names
from vla_rl.cli.main import _main as vla_rl
from vla_rl.core.files import digest_of
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.cache import FrameCache
from vla_rl.data.doctor import diagnose
from vla_rl.data.sources import DataMapping, import_source
from vla_rl.data.store import EpisodeStore

STORES = "edits of a store"
DATASETS = "edits of a LeRobotDataset"

_LENGTH = 10


def _episode(name: str, first: float = 0.0, length: int = _LENGTH) -> Episode:
    """Return a failure whose state and action are FIRST, FIRST + 1 ...; a person acts in the last three steps."""
    ramp = first + np.arange(length, dtype=np.float32)[:, None]
    return Episode(
        episode_id=name,
        images={"front": np.broadcast_to(ramp.astype(np.uint8)[:, :, None, None], (length, 8, 8, 3)).copy()},
        state=ramp,
        action_policy=ramp,
        action_sent=ramp,
        source=np.where(np.arange(length) < length - 3, Source.POLICY, Source.HUMAN).astype(np.uint8),
        task="put it in",
        success=False,
        terminated=False,
        origin=Origin.REAL,
        policy_version=0,
        seed=None,
        control_hz=20.0,
        env_id="arm",
        extras={"age": np.arange(length)},
    )


def _store(folder: Path, names: Sequence[str] = ("a", "b", "c")) -> EpisodeStore:
    store = EpisodeStore(folder / "store")
    for number, name in enumerate(names):
        store.add(_episode(name, 20.0 * number))
    return store


def _dataset(folder: Path, name: str = "set", first: float = 0.0) -> Path:
    """Return the folder of a LeRobotDataset of three episodes, with the columns that lerobot itself writes."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    root = folder / name
    for part in ("meta/episodes/chunk-000", "data/chunk-000"):
        (root / part).mkdir(parents=True)
    steps = 3 * _LENGTH
    ramp = (first + np.arange(steps)).astype(np.float32)
    table = {"observation.state": ramp[:, None].tolist(), "action": ramp[:, None].tolist()}
    numbers: dict[str, np.ndarray] = {"timestamp": np.tile(np.arange(_LENGTH) / 20, 3).astype(np.float32)}
    numbers |= {"frame_index": np.tile(np.arange(_LENGTH), 3), "episode_index": np.arange(steps) // _LENGTH}
    numbers |= {"index": np.arange(steps), "task_index": np.zeros(steps, np.int64)}
    parquet.write_table(pa.table(table | numbers), root / "data/chunk-000/file-000.parquet")
    rows = [
        {
            "episode_index": number,
            "length": _LENGTH,
            "tasks": ["put it in"],
            "data/chunk_index": 0,
            "data/file_index": 0,
            "dataset_from_index": number * _LENGTH,
            "dataset_to_index": (number + 1) * _LENGTH,
        }
        for number in range(3)
    ]
    parquet.write_table(pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet")
    parquet.write_table(pa.table({"task_index": [0], "task": ["put it in"]}), root / "meta/tasks.parquet")
    features = {key: {"dtype": "float32", "shape": [1], "names": None} for key in ("observation.state", "action")}
    features |= {key: {"dtype": str(column.dtype), "shape": [1], "names": None} for key, column in numbers.items()}
    info = {"codebase_version": "v3.0", "fps": 20, "robot_type": "arm", "features": features, "total_episodes": 3}
    info |= {"data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "video_path": None}
    info |= {"total_frames": steps, "total_tasks": 1}
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


def _digests(root: Path) -> dict[str, str]:
    return {str(file.relative_to(root)): digest_of(file) for file in sorted(root.rglob("*")) if file.is_file()}


def _edit(data: Path, *arguments: str) -> str:
    """Run ``vla-rl edit`` and return what it prints."""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        vla_rl(["edit", str(data), *arguments])
    return printed.getvalue().strip()


def _imported(source: Path, folder: Path) -> list[Episode]:
    store = EpisodeStore(folder)
    import_source(source, store, DataMapping())
    return [store.read(name) for name in store.ids()]


@trap(STORES, "an episode is trimmed after the frame cache was built")
def trimmed_in_cache(folder: Path) -> str:
    store = _store(folder)
    before = _digests(store.episodes_dir)
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    printed = _edit(store.path, "--ids", "b", "--trim", "2:8")
    cache.refresh()
    expect(cache.total_frames == 26, f"the cache has {cache.total_frames} frames, expected 10 + 6 + 10")
    states = cache.state[10:16, 0].tolist()
    expect(states == [22, 23, 24, 25, 26, 27], f"the trimmed episode has the states {states}")
    header = store.read_header("b")
    expect((header.length, header.human_steps) == (6, 1), f"the header says {header.length}, {header.human_steps}")
    expect(store.read("b").extras["age"].tolist() == [2, 3, 4, 5, 6, 7], "an extra column is not trimmed")
    expect(before == _digests(store.episodes_dir), "the recording has changed")
    return printed


@trap(STORES, "a trimmed episode is undone, and the frame cache was built in between")
def undone_in_cache(folder: Path) -> str:
    store = _store(folder)
    _edit(store.path, "--ids", "b", "--trim", "2:8")
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    printed = _edit(store.path, "--ids", "b", "--undo")
    cache.refresh()
    expect(cache.total_frames == 30, f"the cache has {cache.total_frames} frames, expected 30")
    expect(len(store.edit_log("b").entries) == 2, "the log does not hold the undo")
    return printed


@trap(STORES, "an episode is left out, and the next one is recorded")
def left_out(folder: Path) -> str:
    store = _store(folder, ("robot-000000", "robot-000001"))
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    printed = _edit(store.path, "--ids", "robot-000001", "--leave-out")
    cache.refresh()
    expect(cache.total_frames == 10, f"the cache has {cache.total_frames} frames, expected 10")
    expect(store.ids() == ["robot-000000"], f"the store lists {store.ids()}")
    following = next(free_names(store, "robot"))
    expect(following == "robot-000002", f"the next episode is called {following}, which is taken")
    return printed


@trap(STORES, "a store with an episode that is left out is taken in twice")
def left_out_and_taken_in_again(folder: Path) -> str:
    source, target = _store(folder), EpisodeStore(folder / "target")
    import_source(source.path, target, DataMapping())
    target.edit("b", left_out=True)
    added = import_source(source.path, target, DataMapping())
    expect(not added, f"the episode that was left out comes back as {added}")
    return f"{target.ids()}"


@trap(STORES, "the export of a store with an edit")
def exported(folder: Path) -> str:
    from vla_rl.data.lerobot_export import export_lerobot

    store = _store(folder)
    store.edit("a", left_out=True)
    store.edit("b", trim=(0, 4), task="take it out", success=True)
    export_lerobot(store, folder / "export")
    found = _imported(folder / "export", folder / "imported")
    outcomes = [(len(episode), episode.task, episode.success) for episode in found]
    expect(outcomes == [(4, "take it out", True), (10, "put it in", False)], f"the export holds {outcomes}")
    return str(outcomes)


@trap(STORES, "an edit of an episode that another one of the same id has replaced")
def replaced_episode(folder: Path) -> str:
    store = _store(folder)
    store.edit("a", left_out=True)
    (store.episodes_dir / "a.zarr.zip").unlink()
    store.add(replace(_episode("a", 100.0), success=None))
    expect("a" in store.ids() and store.read("a").success is None, "the edit counts for another episode")
    found = [finding.file.name for finding in diagnose(store.path)]
    expect(found == ["a.json"], f"doctor finds {found}")
    return f"doctor: {diagnose(store.path)[0].detail}"


@trap(STORES, "a trim that leaves no step", remedy="0 <= FIRST < STOP <= 10")
def empty_trim(folder: Path) -> NoReturn:
    raise SilentlyWrong(_edit(_store(folder).path, "--ids", "a", "--trim", "10:"))


@trap(STORES, "one of two episodes is too short for the trim", remedy="0 <= FIRST < STOP <= 4")
def half_a_trim(folder: Path) -> str:
    store = _store(folder)
    store.add(_episode("short", length=4))
    try:
        return _edit(store.path, "--ids", "a", "short", "--trim", "5:9")
    finally:
        expect(not store.changes("a"), "one episode is trimmed though the command was refused")


@trap(STORES, "a bit of an edit is flipped", remedy="vla-rl doctor --repair")
def damaged_edit(folder: Path) -> NoReturn:
    store = _store(folder)
    store.edit("a", trim=(2, 8))
    file = store.edits.file("a")
    file.write_text(file.read_text().replace("8", "9"))
    raise SilentlyWrong(f"{EpisodeStore(store.path).read_header('a').length} steps")


@trap(DATASETS, "episodes are left out, trimmed and relabeled before the import")
def edited_dataset(folder: Path) -> str:
    data = _dataset(folder)
    before = _digests(data)
    _edit(data, "--ids", "0", "--leave-out")
    _edit(data, "--ids", "1", "--trim", "2:8", "--outcome", "success")
    _edit(data, "--ids", "2", "--task", "take it out")
    found = _imported(data, folder / "store")
    seen = [(episode.episode_id, len(episode), episode.state[0, 0], episode.success, episode.task) for episode in found]
    right = [("set-000001", 6, 12.0, True, "put it in"), ("set-000002", 10, 20.0, None, "take it out")]
    expect(seen == right, f"import sees {seen}")
    expect(before == _digests(data), "the dataset has changed")
    return _edit(data)


@trap(DATASETS, "all edits of a dataset are undone")
def undone_dataset(folder: Path) -> str:
    data = _dataset(folder)
    plain = _imported(data, folder / "plain")
    _edit(data, "--ids", "0", "1", "--outcome", "success")
    _edit(data, "--ids", "1", "--leave-out")
    for numbers in (["1"], ["0", "1"]):
        _edit(data, "--ids", *numbers, "--undo")
    found = _imported(data, folder / "store")
    expect([each.success for each in found] == [each.success for each in plain], "an undone outcome counts")
    return _edit(data)


@trap(DATASETS, "edits lie beside another dataset of the same shape", remedy="Restore that dataset")
def edits_of_other_data(folder: Path) -> str:
    _edit(_dataset(folder), "--ids", "1", "--trim", "2:8")
    other = _dataset(folder, "other", first=500.0)
    shutil.copytree(folder / "set.edits", folder / "other.edits")
    try:
        return f"{len(_imported(other, folder / 'store'))} episodes"
    finally:
        expect(not EpisodeStore(folder / "store").ids(), "a part was taken in")


@trap(DATASETS, "an edit of an episode that the dataset does not have any more", remedy="restore the dataset")
def edit_of_no_episode(folder: Path) -> NoReturn:
    data = _dataset(folder)
    _edit(data, "--ids", "1", "--leave-out")
    (folder / "set.edits" / "000001.json").rename(folder / "set.edits" / "000007.json")
    raise SilentlyWrong(f"{len(_imported(data, folder / 'store'))} episodes")


@trap(DATASETS, "a dataset is edited under a link and imported by its real name")
def linked_dataset(folder: Path) -> str:
    data = _dataset(folder)
    (folder / "latest").symlink_to(data)
    _edit(folder / "latest", "--ids", "1", "--leave-out")
    found = _imported(data, folder / "store")
    expect(len(found) == 2, f"{len(found)} episodes are taken in, expected 2")
    return f"{len(found)} episodes"


@trap(DATASETS, "an episode number that the dataset does not have", remedy="has the episodes 0 to 2")
def no_such_episode(folder: Path) -> NoReturn:
    raise SilentlyWrong(_edit(_dataset(folder), "--ids", "3", "--leave-out"))


@trap(DATASETS, "a dataset is imported, edited and imported into the same store again")
def edited_after_import(folder: Path) -> str:
    data = _dataset(folder)
    _imported(data, folder / "store")
    _edit(data, "--ids", "1", "--trim", "2:8")
    with logged() as lines:
        found = _imported(data, folder / "store")
    told = [line for line in lines if "'set-000001.2'" in line]
    expect(len(found) == 3 or bool(told), f"{len(found)} episodes lie in the store, and nothing is printed: {lines}")
    return told[0]
