"""The files of the frame cache: its index and its columns. `FrameCache` decides what goes in, and holds the lock."""

import json
import re
import shutil
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.cache_keys import code_digest
from vla_rl.core.dimensions import UNDECLARED, Dimensions, Pair, match_both
from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.files import FileStamp, fsync_path, write_atomic
from vla_rl.core.json_files import SEAL, check_seal, parse_json, read_bytes, sealed
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import PICTURED, Episode
from vla_rl.data.episode_header import EpisodeHeader

# The modules that fill rows: those of another version of them are not read.
_CODE = ("vla_rl.data.cache_files", "vla_rl.data.episode_file", "vla_rl.data.store", "vla_rl.data.edits", "vla_rl.core")
_INDEX = "index.json"
_GENERATION = re.compile(r"g\d+")

Rows = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes and meaning of the columns; shorter vectors are filled with 0.

    Attributes:
        cameras: Camera name -> (H, W).
        dimensions: Size of the state -> (state, action) dimensions of the rows of that size.
    """

    state_dim: int
    action_dim: int
    cameras: Mapping[str, tuple[int, int]]
    dimensions: Mapping[int, Pair] = field(default_factory=dict)

    def columns(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Column name -> (dtype, shape of a row)."""
        float32, uint8 = np.dtype(np.float32), np.dtype(np.uint8)
        columns: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
            "state": (float32, (self.state_dim,)),
            "action": (float32, (self.action_dim,)),
            "action_sent": (float32, (self.action_dim,)),
            "source": (uint8, ()),
        }
        return columns | {f"images.{camera}": (uint8, (*size, 3)) for camera, size in self.cameras.items()}

    def dimensions_of(self, state_dim: int) -> Pair:
        """Return the (state, action) dimensions of the rows whose state has this many numbers."""
        return self.dimensions.get(state_dim, (UNDECLARED, UNDECLARED))

    def ordered(self, header: EpisodeHeader) -> EpisodeHeader:
        """Return the header of an episode as its rows stand in the columns."""
        state, action = self.dimensions_of(header.state_dim)
        return replace(header, state_dimensions=state, action_dimensions=action)

    def to_plain(self) -> dict[str, Any]:
        """Return the layout as JSON data."""
        pairs = sorted(self.dimensions.items())
        plain = [[size, *(dimensions.to_plain() for dimensions in pair)] for size, pair in pairs]
        cameras = {name: list(size) for name, size in self.cameras.items()}
        return {"state_dim": self.state_dim, "action_dim": self.action_dim, "cameras": cameras, "dimensions": plain}

    @staticmethod
    def from_plain(raw: Mapping[str, Any]) -> "Layout":
        """Return the layout from JSON data. Raises KeyError, TypeError or ValueError for anything else."""
        cameras = {str(name): (int(height), int(width)) for name, (height, width) in raw["cameras"].items()}
        pairs = {
            int(size): (Dimensions.from_plain(state), Dimensions.from_plain(action))
            for size, state, action in raw["dimensions"]
        }
        return Layout(int(raw["state_dim"]), int(raw["action_dim"]), cameras, pairs)


def common_layout(headers: Sequence[EpisodeHeader], expected: PolicySpec | None = None) -> Layout | None:
    """Return a layout that all episodes fit in; None for no episodes.

    Rows of one size follow the names that ``expected``, the policy that reads them, declares. Else they follow the
    first episode that declares any.

    Raises:
        StoreError: If their cameras differ.
        UserError: If an episode lacks a dimension that the others of its size have.
    """
    if not headers:
        return None
    first = headers[0]
    dimensions: dict[int, Pair] = {}
    for header in headers:
        if header.cameras != first.cameras:
            raise StoreError(
                f"these episodes have different cameras: {first.episode_id!r} has {dict(first.cameras)}, "
                f"{header.episode_id!r} has {dict(header.cameras)}; keep them in separate stores"
            )
        _check_names(header, dimensions, expected)
    return Layout(
        max(header.state_dim for header in headers),
        max(header.action_dim for header in headers),
        dict(sorted(first.cameras.items())),
        {size: pair for size, pair in sorted(dimensions.items()) if any(pair)},
    )


def _check_names(header: EpisodeHeader, known: dict[int, Pair], policy: PolicySpec | None) -> None:
    """Add an episode's dimensions to those of its size, or refuse it because they cannot be matched."""
    size = header.state_dim
    ours = known.get(size) or (policy.dimensions_of(size) if policy else (UNDECLARED, UNDECLARED))
    theirs, sizes = header.dimensions, (size, header.action_dim)
    match_both(ours, theirs, sizes, "the policy" if policy else "the other episodes", f"episode {header.episode_id!r}")
    known[size] = (ours[0] or theirs[0], ours[1] or theirs[1])


@dataclass(frozen=True, slots=True)
class Entry:
    """One cached episode: its header, its first frame, the stamp of the file it came from, the CRC32 of its rows."""

    header: EpisodeHeader
    start: int
    stamp: FileStamp
    crc32: int

    @property
    def end(self) -> int:
        return self.start + self.header.length


@dataclass
class Index:
    """Which episodes a generation of column files holds.

    Attributes:
        generation: the folder of the column files; "" if there is none yet.
        layout: None as long as there are no episodes.
        entries: the episodes, back to back from frame 0.
        dropped: id -> header and stamp of the episodes that the retention policy leaves out, so that their files are
            not read again.
        digest: Of the index file that this was loaded from or saved to; "" if there is none yet.
    """

    generation: str = ""
    layout: Layout | None = None
    entries: list[Entry] = field(default_factory=list)
    dropped: dict[str, tuple[EpisodeHeader, FileStamp]] = field(default_factory=dict)
    digest: str = ""

    @property
    def total_frames(self) -> int:
        return self.entries[-1].end if self.entries else 0

    @staticmethod
    def load(directory: Path) -> "Index":
        """Return the index of a cache directory; an empty one if it is missing, or it or the columns are not whole."""
        try:
            raw = parse_json(read_bytes(directory / _INDEX))
            check_seal(raw)
            if raw["code"] != code_digest(*_CODE):
                return Index()
            entries: list[Entry] = []
            for plain, stamp, crc32 in raw["entries"]:
                start = entries[-1].end if entries else 0
                entries.append(Entry(EpisodeHeader.from_plain(plain), start, tuple(map(int, stamp)), crc32))
            layout = Layout.from_plain(raw["layout"]) if raw["layout"] else None
            if not _GENERATION.fullmatch(raw["generation"] or "g0"):
                return Index()
            left_out = [(EpisodeHeader.from_plain(plain), tuple(map(int, stamp))) for plain, stamp in raw["dropped"]]
            dropped = {header.episode_id: (header, stamp) for header, stamp in left_out}
            index = Index(raw["generation"], layout, entries, dropped, raw[SEAL])
            folder, total = directory / index.generation, index.total_frames
            for name, row_bytes in _row_bytes(index.layout).items():
                if (folder / f"{name}.bin").stat().st_size < total * row_bytes:
                    return Index()
        except (OSError, ValueError, KeyError, TypeError, UserError):
            return Index()
        return index

    def save(self, directory: Path) -> None:
        """Flush the columns, then replace the index file. Nothing is written if nothing has changed."""
        content = sealed(
            {
                "code": code_digest(*_CODE),
                "generation": self.generation,
                "layout": None if self.layout is None else self.layout.to_plain(),
                "entries": [[entry.header.to_plain(), entry.stamp, entry.crc32] for entry in self.entries],
                "dropped": [[header.to_plain(), stamp] for header, stamp in self.dropped.values()],
            }
        )
        if content[SEAL] == self.digest:
            return
        if self.layout is not None:
            for name in self.layout.columns():
                fsync_path(directory / self.generation / f"{name}.bin")
            fsync_path(directory / self.generation)
        write_atomic(directory / _INDEX, json.dumps(content).encode())
        self.digest = content[SEAL]
        for folder in directory.iterdir():
            if _GENERATION.fullmatch(folder.name) and folder.name != self.generation:
                shutil.rmtree(folder, ignore_errors=True)


def episode_rows(episode: Episode, layout: Layout) -> dict[str, NDArray[Any]]:
    """Return the columns that the cache keeps of an episode; UserError if it has no picture at every step."""
    episode = episode.matched(layout.dimensions_of(episode.state.shape[1]), "the other episodes")
    if not episode.extras.get(PICTURED, np.ones(1)).all():
        raise UserError(
            f"episode {episode.episode_id!r} has no picture at every step, so nothing can be trained on it; it was "
            "simulated with budget.evaluation_pictures=planned"
        )
    rows: dict[str, NDArray[Any]] = {
        "state": _filled(episode.state, layout.state_dim),
        "action": _filled(episode.imitation_action(), layout.action_dim),
        "action_sent": _filled(episode.action_sent, layout.action_dim),
        "source": episode.source,
    }
    return rows | {f"images.{camera}": image for camera, image in episode.images.items()}


def cached_rows(directory: Path, index: Index, entry: Entry) -> dict[str, NDArray[Any]]:
    """Return the rows of an episode that an index holds."""
    return {name: column[entry.start : entry.end] for name, column in map_columns(directory, index).items()}


def append_episode(directory: Path, index: Index, header: EpisodeHeader, stamp: FileStamp, rows: Rows) -> None:
    """Write an episode's rows behind the last ones, over whatever a crash left there, and enter it in the index."""
    start = index.total_frames
    for name, row_bytes in _row_bytes(index.layout).items():
        if rows[name].nbytes != header.length * row_bytes:
            raise StoreError(f"episode {header.episode_id!r} was replaced while it was read; refresh again")
        file = directory / index.generation / f"{name}.bin"
        with file.open("r+b") as stream:
            stream.seek(start * row_bytes)
            stream.write(np.ascontiguousarray(rows[name]).data)
    index.entries.append(Entry(header, start, stamp, rows_crc32(rows)))


def new_generation(directory: Path, old: Index, kept: Sequence[Entry], layout: Layout | None) -> Index:
    """Begin a new generation with the kept episodes of the old one, copied. The index file still names the old one."""
    number = int(old.generation[1:] or 0) if old.generation else 0
    fresh = replace(old, generation=f"g{number + 1}", layout=layout, entries=[])
    folder = directory / fresh.generation
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    columns = map_columns(directory, old)
    for name in _row_bytes(layout):
        with (folder / f"{name}.bin").open("wb") as stream:
            for entry in kept:
                stream.write(columns[name][entry.start : entry.end].data)
    for entry in kept:
        fresh.entries.append(replace(entry, start=fresh.total_frames))
    return fresh


def map_columns(directory: Path, index: Index) -> dict[str, NDArray[Any]]:
    """Return the columns of a generation, name -> [N, ...], read-only."""
    if index.layout is None:
        return {}
    total = index.total_frames
    columns = {}
    for name, (dtype, row) in index.layout.columns().items():
        shape = (total, *row)
        if 0 in shape:  # an empty file cannot be mapped
            columns[name] = np.empty(shape, dtype)
        else:
            file = directory / index.generation / f"{name}.bin"
            # A plain array over the mapping: np.memmap's own indexing costs several microseconds a call.
            columns[name] = np.memmap(file, dtype, mode="r", shape=shape).view(np.ndarray)
    return columns


def rows_crc32(rows: Rows) -> int:
    """CRC32 over an episode's rows of all columns."""
    crc = 0
    for name in sorted(rows):
        crc = zlib.crc32(np.ascontiguousarray(rows[name]).data, crc)
    return crc


def _row_bytes(layout: Layout | None) -> dict[str, int]:
    columns = layout.columns() if layout is not None else {}
    return {name: dtype.itemsize * int(np.prod(row)) for name, (dtype, row) in columns.items()}


def _filled(rows: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """[T, D] with zeros behind, [T, width]."""
    return rows if rows.shape[1] == width else np.pad(rows, ((0, 0), (0, width - rows.shape[1])))
