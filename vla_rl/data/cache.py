"""The frame cache: every step of every episode of a store, decoded once, back to back in memory-mapped columns.

Zarr files are for keeping, not for random access: a window costs a hundred times more there than in a flat column. The
cache is disposable: whatever is wrong with it (deleted, damaged, half-written, of another store), it is built again.

::

    DIRECTORY/index.json         which episodes, in which order, in which generation; replaced atomically, data first
    DIRECTORY/gN/COLUMN.bin      generation N: the raw rows of one column

New episodes whose ids come last are appended to the column files, which costs nothing for what is already there.
Dropping episodes, or inserting some between others, writes a new generation beside the old one, so arrays that are in
use stay readable.

Threading law: any number of processes may share a directory; refreshing takes a lock. One `FrameCache` object belongs
to one thread at a time. numpy only.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import ConfigError, StoreError
from vla_rl.core.files import locked
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.progress import track
from vla_rl.core.types import Float32Array, Origin, Uint8Array
from vla_rl.data.cache_files import (
    Index,
    append_episode,
    cached_rows,
    common_layout,
    episode_rows,
    map_columns,
    new_generation,
    rows_crc32,
)
from vla_rl.data.episode_header import EpisodeHeader

if TYPE_CHECKING:
    from vla_rl.data.store import EpisodeStore

Int64Array = NDArray[np.int64]

_SLACK = 0.1  # of the bound: rollouts are dropped in such portions, since dropping copies what remains


@dataclass(frozen=True)
class RetentionConfig:
    """Bounds on what the frame cache holds. Demonstrations are never dropped.

    Attributes:
        max_frames: the most frames (steps) to hold; None for no bound. A frame takes about 3 H W bytes per camera.
    """

    max_frames: int | None = None

    def __post_init__(self) -> None:
        if self.max_frames is not None and self.max_frames < 1:
            raise ConfigError(f"retention.max_frames is {self.max_frames}; it must be at least 1, or null for no bound")


@dataclass(frozen=True, slots=True)
class CachedEpisode(EpisodeHeader):
    """A header, and where its steps stand in the cache: frames ``start`` to ``start + length - 1``."""

    start: int = field(kw_only=True)

    @classmethod
    def at(cls, header: EpisodeHeader, start: int) -> Self:
        """Return the header with the place of its first step."""
        return cls(**{each.name: getattr(header, each.name) for each in fields(EpisodeHeader)}, start=start)


@dataclass(frozen=True, slots=True)
class FrameBatch:
    """The observations of B frames.

    Attributes:
        images: camera name -> uint8 [B, H, W, 3].
        state: float32 [B, S].
        tasks: the B task sentences.
        task_index: int64 [B], indices into `FrameCache.tasks`.
    """

    images: dict[str, Uint8Array]
    state: Float32Array
    tasks: list[str]
    task_index: Int64Array


class FrameCache:
    """Random access to all steps of a store's episodes.

    A frame is the number of a step in the cache, 0 to ``total_frames - 1``. Episodes stand in the order of their ids,
    whenever they were added. A lost cache that is built anew therefore has the same frame numbers. `refresh` may drop
    or insert episodes and so move frames; frame numbers and arrays obtained before it belong to the cache as it was.

    Attributes:
        episodes: all cached episodes in order.
        total_frames: N.
        tasks: the different task sentences, in order of first appearance.
        images: camera name -> uint8 [N, H, W, 3], memory-mapped, read-only, as are the next four.
        state: float32 [N, S]; S and A are the largest of all episodes, the rows of smaller robots end with zeros.
        action: float32 [N, A], what imitation should reproduce (`Episode.imitation_action`).
        action_sent: float32 [N, A], what really went to the robot.
        source: uint8 [N], values of `Source`.
        episode_index: int32 [N], index into ``episodes``.
        position: int32 [N], the step within its episode.

    Args:
        store: Of the episodes.
        directory: Folder of the cache's files; made if missing.
        retention: Which episodes are held; None: all.
        expected: Interface of the policy that reads the rows. They follow its names; None: those of the first episode.

    Raises:
        StoreError: if the directory cannot be used.
    """

    images: dict[str, Uint8Array]
    state: Float32Array
    action: Float32Array
    action_sent: Float32Array
    source: Uint8Array

    def __init__(
        self,
        store: "EpisodeStore",
        directory: Path,
        retention: RetentionConfig | None = None,
        expected: PolicySpec | None = None,
    ) -> None:
        self.store = store
        self._expected = expected
        self.directory = Path(directory)
        self._retention = retention or RetentionConfig()
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with locked(self.directory, exclusive=True):
                self._index = Index.load(self.directory)
                self._forget_damaged()
                self._map()
        except OSError as error:
            raise StoreError(f"cannot use {self.directory} as a frame cache: {error.strerror or error}") from error

    def refresh(self) -> list[EpisodeHeader]:
        """Take in what is new in the store; forget what has left it and what the retention policy drops.

        Returns:
            The headers of the newly cached episodes, in id order.

        Raises:
            StoreError: For a damaged episode, one whose cameras differ from the others', or a full disk. What had been
                taken in before the error stays.
            UserError: For an episode whose names or units do not match those of the others, or of the policy.
        """
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            with locked(self.directory, exclusive=True):
                on_disk = Index.load(self.directory)
                if on_disk.digest != self._index.digest:  # another process has refreshed it, or it was deleted
                    self._index = on_disk
                return self._take_in()
        except OSError as error:
            raise StoreError(f"cannot extend the frame cache {self.directory}: {error.strerror or error}") from error

    def observations(self, frames: Int64Array) -> FrameBatch:
        """Pictures, state and task of the frames int [B]."""
        images = {camera: column[frames] for camera, column in self.images.items()}
        return FrameBatch(images, self.state[frames], self.tasks_of(frames), self.task_index(frames))

    def task_index(self, frames: Int64Array) -> Int64Array:
        """Index of each frame's sentence in ``tasks``, int64 [B]."""
        index: Int64Array = self._task_of_episode[self.episode_index[frames]]
        return index

    def tasks_of(self, frames: Int64Array) -> list[str]:
        """Return the sentence of each frame."""
        return [self.tasks[index] for index in self.task_index(frames)]

    def chunks(self, frames: Int64Array, horizon: int, sent: bool = False) -> tuple[Float32Array, NDArray[np.bool_]]:
        """Return the actions from each frame on, to imitate or as ``sent``: float32 [B, H, A] and valid, bool [B, H].

        After the end of an episode its last action is repeated, and valid is False.
        """
        steps = np.asarray(frames)[:, None] + np.arange(horizon)  # [B, H]
        last = self._last_frame[self.episode_index[frames]][:, None]  # [B, 1]
        return (self.action_sent if sent else self.action)[np.minimum(steps, last)], steps <= last

    def later(self, frames: Int64Array, offset: int | Int64Array) -> tuple[Int64Array, NDArray[np.bool_]]:
        """Return the frames ``offset`` >= 0 steps later, int64 [B], and which are inside the episode, bool [B]. The
        offset is one number, or one per frame.

        The others are clipped to its last frame.
        """
        steps = np.asarray(frames, dtype=np.int64) + offset
        last = self._last_frame[self.episode_index[frames]]
        return np.minimum(steps, last), steps <= last

    def _take_in(self) -> list[EpisodeHeader]:
        stamps = self.store.stamps()
        old = self._index
        current = {entry.header.episode_id: entry for entry in old.entries}
        current = {name: entry for name, entry in current.items() if stamps.get(name) == entry.stamp}
        known = {name: entry.header for name, entry in current.items()}
        known |= {name: header for name, (header, stamp) in old.dropped.items() if stamps.get(name) == stamp}
        headers = {name: known.get(name) or self.store.read_header(name) for name in stamps}  # in the order of ids
        layout = common_layout(list(headers.values()), self._expected)
        if layout != old.layout:  # rows of another width are of no use
            current = {}
        to_drop = episodes_to_drop(list(headers.values()), self._retention)
        wanted = [name for name in headers if name not in to_drop]

        # What stands in its place already stays; from the first episode on that does not, everything is written anew.
        kept = 0
        while kept < min(len(old.entries), len(wanted)) and current.get(wanted[kept]) == old.entries[kept]:
            kept += 1
        if kept < len(old.entries) or layout != old.layout:
            self._index = new_generation(self.directory, old, old.entries[:kept], layout)
        self._index.dropped = {name: (headers[name], stamps[name]) for name in sorted(to_drop)}
        new = []
        try:
            for name in track(wanted[kept:], "decoding episodes", "episode"):
                assert layout is not None  # there are episodes
                if name in current:
                    rows = cached_rows(self.directory, old, current[name])
                else:
                    rows = episode_rows(self.store.read(name), layout)
                    new.append(headers[name])
                append_episode(self.directory, self._index, headers[name], stamps[name], rows)
        finally:  # what was decoded before an error is kept
            self._index.save(self.directory)
            self._map()
        return new

    def _forget_damaged(self) -> None:
        whole = [
            entry
            for entry in self._index.entries
            if rows_crc32(cached_rows(self.directory, self._index, entry)) == entry.crc32
        ]
        if len(whole) < len(self._index.entries):
            self._index = new_generation(self.directory, self._index, whole, self._index.layout)
            self._index.save(self.directory)

    def _map(self) -> None:
        """Point the public columns at the files as the index describes them."""
        columns = map_columns(self.directory, self._index)
        self.images = {name.removeprefix("images."): columns[name] for name in columns if name.startswith("images.")}
        self.state = columns.get("state", np.empty((0, 0), np.float32))
        self.action = columns.get("action", np.empty((0, 0), np.float32))
        self.action_sent = columns.get("action_sent", np.empty((0, 0), np.float32))
        self.source = columns.get("source", np.empty(0, np.uint8))
        self.total_frames = self._index.total_frames

        entries = self._index.entries
        layout = self._index.layout
        self.episodes = [CachedEpisode.at(layout.ordered(entry.header), entry.start) for entry in entries if layout]
        starts = np.array([entry.start for entry in entries], dtype=np.int64)
        lengths = np.array([entry.header.length for entry in entries], dtype=np.int64)
        self.episode_index = np.repeat(np.arange(len(entries), dtype=np.int32), lengths)
        self.position = (np.arange(self.total_frames) - np.repeat(starts, lengths)).astype(np.int32)
        self._last_frame = starts + lengths - 1
        self.tasks = list(dict.fromkeys(episode.task for episode in self.episodes))
        number = {task: index for index, task in enumerate(self.tasks)}
        self._task_of_episode = np.array([number[episode.task] for episode in self.episodes], dtype=np.int64)


def episodes_to_drop(headers: Sequence[EpisodeHeader], config: RetentionConfig) -> set[str]:
    """Return the ids of the oldest rollouts (by policy version, then id) without which the rest fits.

    As more episodes come, the set grows in portions, independent of the time of a request. A cache that is built anew
    therefore holds the content of the lost one.

    Raises:
        StoreError: If the demonstrations alone exceed ``max_frames``.
    """
    total = sum(header.length for header in headers)
    if config.max_frames is None or total <= config.max_frames:
        return set()
    excess = total - config.max_frames
    rollouts = [header for header in headers if header.origin is not Origin.DEMO and header.policy_version >= 0]
    surplus = excess - sum(header.length for header in rollouts)
    if surplus > 0:
        raise StoreError(
            f"the demonstrations alone hold {config.max_frames + surplus} frames, more than retention.max_frames = "
            f"{config.max_frames}; raise the bound or give the run fewer demonstrations"
        )
    portion = max(1, int(config.max_frames * _SLACK))
    to_free = math.ceil(excess / portion) * portion
    dropped: set[str] = set()
    freed = 0
    for header in sorted(rollouts, key=lambda header: (header.policy_version, header.episode_id)):
        if freed >= to_free:
            break
        dropped.add(header.episode_id)
        freed += header.length
    return dropped
