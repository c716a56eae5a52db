"""Logged episodes from wherever they are: an episode store, a run folder, a LeRobotDataset v3, a ROS 2 bag.

All of them are taken into one store, so that what trains on them knows one form only. Taking in can be repeated: what
is there already, with the same content, is left alone. An episode of a store keeps its recording and its edits, so a
label keeps its author.
"""

import atexit
import itertools
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.progress import track
from vla_rl.core.registry import find
from vla_rl.core.types import Observation
from vla_rl.data.episode_header import Survey
from vla_rl.data.lerobot_import import LeRobotMapping, import_lerobot, survey_lerobot
from vla_rl.data.store import EpisodeStore, add_new


@dataclass(frozen=True)
class DataMapping:
    """How logged data becomes episodes, by kind of source. Stores need no mapping.

    Attributes:
        lerobot: of LeRobotDatasets.
        bag: of ROS 2 bags, the options that the package vla-rl-bags checks and reads (docs/bags.md).
    """

    lerobot: LeRobotMapping = field(default_factory=LeRobotMapping)
    bag: dict[str, Any] = field(default_factory=dict)


def import_source(source: Path, store: EpisodeStore, mapping: DataMapping) -> list[str]:
    """Add the episodes of a store, a run folder, a LeRobotDataset, a bag, or a folder of bags to a store.

    Returns:
        The ids that were added, see `add_new`.

    Raises:
        UserError: If the source is none of these, or cannot be read.
    """
    source = Path(source)
    if (found := find_store(source)) is not None:
        if found.path.resolve() == store.path.resolve():
            raise StoreError(f"{found.path} cannot be taken into itself")
        names = track(found.ids(), f"reading {found.path}", "episode")
        return add_new(store, ((found.recorded(name), found.edit_log(name)) for name in names))
    if is_lerobot(source):
        return import_lerobot(source, store, mapping.lerobot)
    bags, import_bag = _bags(source)
    return [name for bag in bags for name in import_bag(bag, store, mapping.bag)]


def survey(source: Path, mapping: DataMapping) -> Survey:
    """Check a source of `import_source` as far as possible without taking it in, and return what it holds."""
    found = find_store(source)
    if found is not None:
        return Survey(tuple(found.read_header(name) for name in found.ids()))
    if is_lerobot(source):
        return survey_lerobot(source, mapping.lerobot)
    _bags(source)
    return Survey()  # the messages of a bag are read only once


def find_store(source: Path) -> EpisodeStore | None:
    """Return the episode store in a folder, or in that of a run; None if it holds neither."""
    folders = (folder for folder in (source / "episodes", source) if (folder / "store.json").is_file())
    return next((EpisodeStore(folder, create=False) for folder in folders), None)


def is_lerobot(source: Path) -> bool:
    """Return whether a folder looks like a LeRobotDataset."""
    return (source / "meta" / "info.json").is_file()


def as_store(source: Path, staging: Path, mapping: DataMapping) -> EpisodeStore:
    """Return the store that a source is, or a new one in the folder ``staging`` that the source was taken into.

    Raises:
        UserError: If the source holds no episodes, or cannot be read.
    """
    found = find_store(Path(source))
    if found is None:
        found = EpisodeStore(staging)
        import_source(source, found, mapping)
    return found


def load_episodes(source: str | Path, out: str | Path | None = None) -> EpisodeStore:
    """Load episodes from a store, a run folder, a LeRobotDataset or a ROS 2 bag.

    Args:
        source: Path of the episodes.
        out: Folder of the store to which a dataset or a bag is converted. Default: a temporary folder, deleted when
            the process ends.

    Returns:
        Store of the episodes: the source itself, if it is a store or a run.

    Raises:
        UserError: If the path holds no episodes, or they cannot be read.

    Example:
        >>> demos = load_episodes("datasets/dot")
        >>> len(demos), demos.ids()[0]
        (3, 'demo-00000')
    """
    return as_store(Path(source), lasting_folder() if out is None else Path(out), DataMapping())


def lasting_folder() -> Path:
    """Return a temporary folder, deleted when the process ends."""
    path = Path(tempfile.mkdtemp(prefix="vla_rl_"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path / "episodes"


def _bags(source: Path) -> tuple[list[Path], Callable[[Path, EpisodeStore, dict[str, Any]], list[str]]]:
    """Return the bags that a source is or holds, and what imports one. Raises UserError if there are none."""
    entries = sorted(source.iterdir()) if source.is_dir() else []
    if bags := [source] if _is_bag(source) else [entry for entry in entries if _is_bag(entry)]:
        return bags, find("sources", "bag")
    if not source.exists():
        raise UserError(f"there is no {source}; name an episode store, a run folder, a LeRobotDataset or a bag")
    raise UserError(
        f"{source} is no episode store (store.json), no LeRobotDataset v3 (meta/info.json) and no ROS 2 bag "
        "(metadata.yaml, .mcap, .db3)"
    )


def _is_bag(path: Path) -> bool:
    """Return whether a path looks like a ROS 2 bag: a folder with metadata.yaml, or a single .mcap or .db3 file."""
    return (path / "metadata.yaml").is_file() or (path.suffix in (".mcap", ".db3") and path.is_file())


def read_observations(store: Path, count: int) -> Sequence[Observation]:
    """Read observations from all over an episode store, evenly; UserError if it has no episodes."""
    episodes = EpisodeStore(store, create=False)
    ids = episodes.ids()
    if not ids:
        raise UserError(f"{store} has no episodes to calibrate on")
    chosen = ids[:: max(1, len(ids) // count)][:count]
    each = -(-count // len(chosen))
    observations = []
    for episode in map(episodes.read, chosen):
        for step in range(0, len(episode), max(1, len(episode) // each)):
            images = {name: frames[step] for name, frames in episode.images.items()}
            observations.append(Observation(images, episode.state[step], episode.task, step))
    return list(itertools.islice(observations, count))
