"""One episode as one immutable Zarr 3 zip file.

Any Zarr 3 library can read it. Arrays are ``state``, ``action_policy``, ``action_sent``, ``source``, ``images/CAMERA``
and ``extras/NAME``, with the steps along the first axis. ``final_state`` and ``final_images/CAMERA``, of one row, are
the observation after the last command; older recordings have none. The header stands in the attributes of the root
group. The zip's CRC32 guards every member, and the header carries a SHA-256 over all columns and itself, which
`verify_file` recomputes.
"""

import contextlib
import errno
import hashlib
import json
import math
import zipfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import DamagedError, StoreError, one_line
from vla_rl.core.json_files import check_seal, parse_json, sealed
from vla_rl.core.types import Episode, Source
from vla_rl.data.episode_header import COLUMN_NAME, LABELS, OPTIONAL_LABELS, EpisodeHeader, only_where_declared

SCHEMA_VERSION = 1
SUFFIX = ".zarr.zip"

_DTYPES = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))
_DTYPE_OF = {dtype.name: dtype for dtype in _DTYPES}
_ZSTD_LEVEL = 1
_CHUNK_BYTES = 16 * 2**20
_GROUP = {"zarr_format": 3, "node_type": "group", "attributes": {}}
# A file that claims to hold more than this in memory is verified chunk by chunk before it is read as a whole.
_UNSUSPICIOUS_BYTES, _USUAL_RATIO = 64 * 2**20, 100
# What zipfile lets out as an OSError for a damaged file (a seek to a place before its start); others are the system's.
_DAMAGE_ERRNOS = (None, errno.EINVAL)


def write_file(episode: Episode, file: Path) -> None:
    """Write a valid episode into a new file. Neither atomic nor durable: `EpisodeStore.add` sees to both.

    Raises:
        StoreError: for labels of the wrong type, or a camera or extra column whose name or dtype cannot be stored.
        OSError: if the disk is full or fails.
    """
    columns = storable_columns(episode)
    try:
        header = _header_of(episode)
        header["digest"] = _digest(header, columns)
        EpisodeHeader.from_plain(header)
    except (TypeError, ValueError) as error:
        raise StoreError(f"episode {episode.episode_id!r} cannot be stored: {error}") from error
    attributes = sealed({"schema_version": SCHEMA_VERSION, "episode": header})
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("zarr.json", json.dumps(_GROUP | {"attributes": attributes}))
        for group in sorted({path.partition("/")[0] for path in columns if "/" in path}):
            archive.writestr(f"{group}/zarr.json", json.dumps(_GROUP))
        for path, column in columns.items():
            _write_column(archive, path, column)


def _write_column(archive: zipfile.ZipFile, path: str, column: NDArray[Any]) -> None:
    """Write an array as Zarr would. Zarr takes eight times as long for the twenty small arrays of an episode."""
    from numcodecs.zstd import Zstd

    chunk = _chunk_shape(column.shape, column.dtype)
    archive.writestr(f"{path}/zarr.json", json.dumps(_about(column.shape, column.dtype)))
    pack = Zstd(level=_ZSTD_LEVEL).encode
    for start, member in _chunks(path, column.shape, chunk[0]):
        padded = np.zeros(chunk, column.dtype)
        rows = column[start : start + chunk[0]]
        padded[: len(rows)] = rows
        archive.writestr(member, pack(padded))


def _chunks(path: str, shape: tuple[int, ...], rows: int) -> Iterator[tuple[int, str]]:
    """Yield the first row and the member of the zip of every chunk of ``rows`` rows of an array."""
    for number, start in enumerate(range(0, shape[0] if math.prod(shape) else 0, rows)):
        yield start, "/".join((path, "c", str(number), *"0" * (len(shape) - 1)))


def _about(shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the zarr.json of an array (Zarr 3)."""
    endian = {"configuration": {"endian": "little"}} if dtype.itemsize > 1 else {}
    return {
        "shape": list(shape),
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(_chunk_shape(shape, dtype))}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": dtype.type(0).item(),
        "codecs": [
            {"name": "bytes", **endian},
            {"name": "zstd", "configuration": {"level": _ZSTD_LEVEL, "checksum": False}},
        ],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }


def read_file_header(file: Path) -> EpisodeHeader:
    """Return the header of an episode file.

    Raises:
        StoreError: If the file is missing, cannot be read, or has another schema version. DamagedError: for its
            content.
    """
    with _reading(file):
        with zipfile.ZipFile(file) as archive:
            for member in archive.infolist():  # stored uncompressed: nothing may grow when it is read
                if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
                    raise ValueError(f"its part {member.filename[:80]!r} is packed")
            attributes = parse_json(archive.read("zarr.json"))["attributes"]
        version = attributes["schema_version"]
        if version != SCHEMA_VERSION:
            raise StoreError(f"{file} has schema version {version!r}, this program reads {SCHEMA_VERSION}; record anew")
        check_seal(attributes)
        header = EpisodeHeader.from_plain(attributes["episode"])
        if file.name != header.episode_id + SUFFIX:
            raise ValueError(f"it holds the episode {header.episode_id!r}")
        return header


def read_file(file: Path) -> Episode:
    """Return the episode, verified. Raises as `read_file_header`; DamagedError for any change since it was written."""
    header = read_file_header(file)
    with _reading(file):
        episode = _episode_of(header, _read_columns(file, header, _shapes(header))).validate()
        _expect(episode_digest(episode) == header.digest)
        return episode


def read_columns(file: Path, *paths: str) -> list[NDArray[Any]]:
    """Return some columns alone, each [T, ...], such as ``extras/tick``. Raises as `read_file_header`."""
    header = read_file_header(file)
    with _reading(file):
        columns = _read_columns(file, header, paths)
        return [columns[path] for path in paths]


def _read_columns(file: Path, header: EpisodeHeader, paths: Collection[str]) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(file) as archive:
        shapes = _shapes(header)
        columns = {path: _StoredColumn(archive, path, shape) for path, shape in shapes.items()}
        claimed = sum(math.prod(column.shape) * column.dtype.itemsize for column in columns.values())
        if claimed > _UNSUSPICIOUS_BYTES + _USUAL_RATIO * file.stat().st_size:
            # A chunk at a time, before a small file may take much memory.
            plain = {key: value for key, value in header.to_plain().items() if key != "digest"}
            _expect(_digest(plain, columns) == header.digest)
        return {path: columns[path].read() for path in paths}


class _StoredColumn:
    """An array in an episode's file. Raises ValueError for one that `write_file` would not have written."""

    def __init__(self, archive: zipfile.ZipFile, path: str, shape: tuple[int, ...]) -> None:
        self._archive, self._path, self.shape = archive, path, shape
        about = parse_json(archive.read(f"{path}/zarr.json"))
        if about["data_type"] not in _DTYPE_OF:
            raise ValueError(f"{path} has the type {str(about['data_type'])[:80]}")
        self.dtype = _DTYPE_OF[about["data_type"]]
        expected = _about(shape, self.dtype)
        for key in ("shape", "chunk_grid", "chunk_key_encoding"):
            if about[key] != expected[key]:
                raise ValueError(f"{path} has the {key} {str(about[key])[:120]}")
        codecs = about["codecs"]
        if [each["name"] for each in codecs] != ["bytes", "zstd"] or codecs[0] != expected["codecs"][0]:
            raise ValueError(f"{path} has the codecs {str(codecs)[:120]}")
        if about.get("storage_transformers"):
            raise ValueError(f"{path} has storage transformers")

    def blocks(self) -> Iterator[NDArray[Any]]:
        """Yield the rows, a chunk at a time."""
        from numcodecs.zstd import Zstd

        chunk = np.empty(_chunk_shape(self.shape, self.dtype), self.dtype)
        for start, member in _chunks(self._path, self.shape, len(chunk)):
            Zstd().decode(self._archive.read(member), chunk)
            yield chunk[: self.shape[0] - start]

    def read(self) -> NDArray[Any]:
        whole, start = np.empty(self.shape, self.dtype), 0
        for rows in self.blocks():
            whole[start : start + len(rows)] = rows
            start += len(rows)
        return whole


def verify_file(file: Path) -> EpisodeHeader:
    """Return the header of an episode all of which has been read and verified. Raises as `read_file` does."""
    read_file(file)
    return read_file_header(file)


def _expect(same: bool) -> None:
    if not same:
        raise ValueError("the content does not match its digest")


@contextlib.contextmanager
def _reading(file: Path) -> Iterator[None]:
    """Turn whatever reading a file raises into a StoreError that says whether the file or the system is at fault."""
    store = file.parent.parent
    try:
        yield
    except StoreError:
        raise
    except Exception as error:  # a damaged zip, codec, JSON or array raises a dozen kinds
        if not file.exists():
            raise StoreError(f"there is no episode {file.name.removesuffix(SUFFIX)!r} in {store}") from None
        reason = one_line(error, 160)
        if isinstance(error, MemoryError) or getattr(error, "errno", None) not in _DAMAGE_ERRNOS:
            raise StoreError(f"cannot read {file}: {reason}") from error
        raise DamagedError(f"{file} is damaged ({reason}); `vla-rl doctor --repair {store}` sets it aside") from error


def _shapes(header: EpisodeHeader) -> dict[str, tuple[int, ...]]:
    """Path of every column -> its shape."""
    rows: dict[str, tuple[int, ...]] = {"state": (header.state_dim,), "source": ()}
    rows |= dict.fromkeys(("action_policy", "action_sent"), (header.action_dim,))
    rows |= {f"images/{camera}": (*size, 3) for camera, size in header.cameras.items()}
    rows |= {f"extras/{name}": row for name, (_, row) in header.extras.items()}
    shapes = {path: (header.length, *row) for path, row in rows.items()}
    final = ("state", *(f"images/{camera}" for camera in header.cameras)) if header.has_final else ()
    return shapes | {f"final_{path}": (1, *rows[path]) for path in final}


def _episode_of(header: EpisodeHeader, columns: Mapping[str, NDArray[Any]]) -> Episode:
    return Episode(
        images={camera: columns[f"images/{camera}"] for camera in header.cameras},
        state=columns["state"],
        action_policy=columns["action_policy"],
        action_sent=columns["action_sent"],
        source=columns["source"],
        extras={name: columns[f"extras/{name}"] for name in header.extras},
        final_state=columns["final_state"][0] if header.has_final else None,
        final_images={name: columns[f"final_images/{name}"][0] for name in header.cameras if header.has_final},
        **{name: getattr(header, name) for name in (*LABELS, *OPTIONAL_LABELS)},
    )


def storable_columns(episode: Episode) -> dict[str, NDArray[Any]]:
    """Return every array of an episode, by its path in the file.

    Raises:
        StoreError: For a camera or extra column whose name cannot be stored. For anything but arrays of booleans,
            integers or floats; only pickle could store arrays of Python objects.
    """
    columns: dict[str, NDArray[Any]] = {
        "state": episode.state,
        "action_policy": episode.action_policy,
        "action_sent": episode.action_sent,
        "source": episode.source,
    }
    where = f"episode {episode.episode_id!r}"
    for group, members in (("images", episode.images), ("extras", episode.extras)):
        for name, column in members.items():
            if not isinstance(name, str) or not COLUMN_NAME.fullmatch(name):
                raise StoreError(f"{where}: bad name {name!r} in {group}; use up to 100 of A-Z a-z 0-9 . _ -")
            columns[f"{group}/{name}"] = column
    if episode.final_state is not None:
        final: dict[str, NDArray[Any]] = {"final_state": episode.final_state}
        final |= {f"final_images/{name}": image for name, image in episode.final_images.items()}
        columns |= {path: np.asarray(array)[None] for path, array in final.items()}
    for path, column in columns.items():
        if not isinstance(column, np.ndarray) or column.dtype not in _DTYPES or column.ndim == 0:
            found = f"{column.dtype} {list(column.shape)}" if isinstance(column, np.ndarray) else type(column).__name__
            raise StoreError(f"{where}: {path} is {found}; stored are arrays [T, ...] of booleans, integers or floats")
    return columns


def episode_digest(episode: Episode) -> str:
    """Return the digest that the episode's header has, or would have, in a store."""
    return _digest(_header_of(episode), storable_columns(episode))


def header_of(episode: Episode) -> EpisodeHeader:
    """Return the header that the episode would have in a store, without its digest."""
    return EpisodeHeader.from_plain({**_header_of(episode), "digest": ""})


def _header_of(episode: Episode) -> dict[str, Any]:
    """Return the header as plain data, without the digest."""
    labels = {name: getattr(episode, name) for name in LABELS}
    labels = {name: label.item() if isinstance(label, np.generic) else label for name, label in labels.items()}
    return {
        **labels,
        "control_hz": float(labels["control_hz"]),
        "length": len(episode),
        "state_dim": episode.state.shape[1],
        "action_dim": episode.action_sent.shape[1],
        "cameras": {name: list(image.shape[1:3]) for name, image in sorted(episode.images.items())},
        "extras": {name: [extra.dtype.str, list(extra.shape[1:])] for name, extra in sorted(episode.extras.items())},
        "human_steps": int(np.count_nonzero(episode.source == Source.HUMAN)),
    } | only_where_declared(episode)


def _digest(header: dict[str, Any], columns: Mapping[str, "NDArray[Any] | _StoredColumn"]) -> str:
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for path in sorted(columns):
        column = columns[path]
        sha.update(f"{path} {column.dtype.str} {column.shape}".encode())
        for rows in [column] if isinstance(column, np.ndarray) else column.blocks():
            sha.update(np.ascontiguousarray(rows).data)
    return sha.hexdigest()


def _chunk_shape(shape: tuple[int, ...], dtype: np.dtype[Any]) -> tuple[int, ...]:
    """Few chunks, since episodes are read whole; bounded ones, since a codec holds a chunk in memory twice."""
    row_bytes = max(1, math.prod(shape[1:]) * dtype.itemsize)
    rows = max(1, min(shape[0], _CHUNK_BYTES // row_bytes))
    return (rows, *(max(1, size) for size in shape[1:]))
