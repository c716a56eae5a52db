"""One episode as one immutable Zarr 3 zip file.

Layout, readable by any Zarr 3 library: arrays ``state``, ``action_policy``, ``action_sent``, ``source``,
``images/CAMERA`` and ``extras/NAME``, all with the steps along the first axis; the header stands in the attributes of
the root group. The zip's CRC32 guards every member, and the header carries a SHA-256 over all columns and itself, which
`verify_file` recomputes.
"""

import contextlib
import errno
import hashlib
import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError
from vla_rl.core.types import Episode, Origin, Source

SCHEMA_VERSION = 1
SUFFIX = ".zarr.zip"

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
_COLUMN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_DTYPES = frozenset(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))
_HEADER_KINDS = {"episode_id": str, "length": int, "task": str, "terminated": bool, "policy_version": int}
_HEADER_KINDS |= {"control_hz": float, "env_id": str, "state_dim": int, "action_dim": int, "human_steps": int}
_HEADER_KINDS |= {"digest": str}
_ZSTD_LEVEL = 1
_CHUNK_BYTES = 16 * 2**20
# What zipfile lets out as an OSError for a damaged file (a seek to a place before its start); others are the system's.
_DAMAGE_ERRNOS = (None, errno.EINVAL)


class DamagedError(StoreError):
    """An episode file whose content is not what was written. Only such files are set aside by the doctor."""


@dataclass(frozen=True, slots=True)
class EpisodeHeader:
    """What is known of an episode without reading its columns. The fields shared with `Episode` mean the same.

    Attributes:
        length: number of steps T.
        state_dim: S.
        action_dim: A.
        cameras: camera name -> (H, W).
        extras: name of each extra column -> (dtype as numpy writes it, shape of a row).
        human_steps: how many steps a person decided (`Source.HUMAN`).
        digest: SHA-256 over all columns and the other header fields, in hexadecimal.
    """

    episode_id: str
    length: int
    task: str
    success: bool | None
    terminated: bool
    origin: Origin
    policy_version: int
    seed: int | None
    control_hz: float
    env_id: str
    state_dim: int
    action_dim: int
    cameras: Mapping[str, tuple[int, int]]
    extras: Mapping[str, tuple[str, tuple[int, ...]]]
    human_steps: int
    digest: str

    def to_plain(self) -> dict[str, Any]:
        """The header as JSON data."""
        return {field.name: getattr(self, field.name) for field in fields(EpisodeHeader)}

    @staticmethod
    def from_plain(raw: Mapping[str, Any]) -> "EpisodeHeader":
        """The header from JSON data. Raises KeyError, TypeError or ValueError if that is not what `to_plain` gives."""
        values = {field.name: raw[field.name] for field in fields(EpisodeHeader)}
        for name, kind in _HEADER_KINDS.items():
            if type(values[name]) is not kind:
                raise TypeError(f"header field {name} is {values[name]!r}")
        if not isinstance(values["success"], bool | None) or not isinstance(values["seed"], int | None):
            raise TypeError(f"header fields success and seed are {values['success']!r} and {values['seed']!r}")
        if not (math.isfinite(values["control_hz"]) and values["control_hz"] > 0):
            raise ValueError(f"header field control_hz is {values['control_hz']!r}")
        values["origin"] = Origin(values["origin"])
        sizes = values["cameras"].items()
        values["cameras"] = {str(name): (int(height), int(width)) for name, (height, width) in sizes}
        extras = values["extras"].items()
        values["extras"] = {str(name): (str(dtype), tuple(map(int, row))) for name, (dtype, row) in extras}
        check_episode_id(values["episode_id"])
        for name in (*values["cameras"], *values["extras"]):  # they become names of files
            if not _COLUMN_NAME.fullmatch(name):
                raise ValueError(f"header names a column {name[:120]!r}")
        return EpisodeHeader(**values)


def is_episode_id(name: object) -> bool:
    """Whether a name can be a file name on any system: 1 to 100 of ``[A-Za-z0-9._-]``, no leading dot or dash."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_episode_id(episode_id: str) -> None:
    """Raise StoreError unless `is_episode_id`."""
    if not is_episode_id(episode_id):
        shown = repr(episode_id)[:120]
        raise StoreError(
            f"bad episode id {shown}: use 1 to 100 of A-Z a-z 0-9 . _ - and begin with a letter, a digit or _"
        )


def write_file(episode: Episode, file: Path) -> None:
    """Write a valid episode into a new file. Neither atomic nor durable: `EpisodeStore.add` sees to both.

    Raises:
        StoreError: for labels of the wrong type, or a camera or extra column whose name or dtype cannot be stored.
        OSError: if the disk is full or fails.
    """
    import zarr
    from zarr.codecs import ZstdCodec
    from zarr.storage import ZipStore

    columns = storable_columns(episode)
    try:
        header = _header_of(episode)
        header["digest"] = _digest(header, columns)
        EpisodeHeader.from_plain(header)
    except (TypeError, ValueError) as error:
        raise StoreError(f"episode {episode.episode_id!r} cannot be stored: {error}") from error
    with ZipStore(file, mode="w") as store:
        root = zarr.create_group(store, zarr_format=3, attributes={"schema_version": SCHEMA_VERSION, "episode": header})
        for path, column in columns.items():
            array = root.create_array(
                path,
                shape=column.shape,
                dtype=column.dtype,
                chunks=_chunk_shape(column),
                compressors=ZstdCodec(level=_ZSTD_LEVEL),
                config={"write_empty_chunks": True},
            )
            array[...] = column


def read_file_header(file: Path) -> EpisodeHeader:
    """The header of an episode file.

    Raises:
        DamagedError: if the content is damaged.
        StoreError: if the file is missing, cannot be read, or has another schema version.
    """
    with _reading(file):
        with zipfile.ZipFile(file) as archive:
            attributes = json.loads(archive.read("zarr.json"))["attributes"]
        version = attributes["schema_version"]
        if version != SCHEMA_VERSION:
            raise StoreError(
                f"{file} has schema version {version!r}, this program reads {SCHEMA_VERSION}; "
                "read it with the version of vla-rl that wrote it"
            )
        header = EpisodeHeader.from_plain(attributes["episode"])
        if file.name != header.episode_id + SUFFIX:
            raise ValueError(f"it holds the episode {header.episode_id!r}")
        return header


def read_file(file: Path) -> Episode:
    """The whole episode. Raises as `read_file_header` does."""
    header = read_file_header(file)
    with _reading(file):
        return _read_columns(file, header).validate()


def verify_file(file: Path) -> EpisodeHeader:
    """Read everything and recompute the digest. Raises as `read_file_header` does, DamagedError also for the digest."""
    header = read_file_header(file)
    with _reading(file):
        episode = _read_columns(file, header).validate()
        if episode_digest(episode) != header.digest:
            raise ValueError("the content does not match its digest")
    return header


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
        reason = " ".join(str(error).split())[:160] or type(error).__name__
        if isinstance(error, MemoryError) or getattr(error, "errno", None) not in _DAMAGE_ERRNOS:
            raise StoreError(f"cannot read {file}: {reason}") from error
        raise DamagedError(f"{file} is damaged ({reason}); `vla-rl doctor --repair {store}` sets it aside") from error


def _read_columns(file: Path, header: EpisodeHeader) -> Episode:
    import zarr
    from zarr.storage import ZipStore

    with ZipStore(file, mode="r") as store:

        def column(path: str, *row: int) -> NDArray[Any]:
            array = zarr.open_array(store, path=path, mode="r", config={"read_missing_chunks": False})
            if array.shape[:1] != (header.length,) or (row and array.shape[1:] != row):  # before anything is allocated
                raise ValueError(f"{path} has the shape {array.shape}")
            if array.dtype not in _DTYPES:
                raise ValueError(f"{path} has the type {array.dtype}")
            return np.asarray(array[...])

        return Episode(
            episode_id=header.episode_id,
            images={camera: column(f"images/{camera}", *size, 3) for camera, size in header.cameras.items()},
            state=column("state", header.state_dim),
            action_policy=column("action_policy", header.action_dim),
            action_sent=column("action_sent", header.action_dim),
            source=column("source"),
            task=header.task,
            success=header.success,
            terminated=header.terminated,
            origin=header.origin,
            policy_version=header.policy_version,
            seed=header.seed,
            control_hz=header.control_hz,
            env_id=header.env_id,
            extras={name: column(f"extras/{name}", *row) for name, (_, row) in header.extras.items()},
        )


def storable_columns(episode: Episode) -> dict[str, NDArray[Any]]:
    """Every array of an episode, by its path in the file.

    Raises:
        StoreError: for a camera or extra column whose name cannot be stored, and for anything but arrays of booleans,
            integers or floats (above all for arrays of Python objects, which only pickle could store).
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
            if not isinstance(name, str) or not _COLUMN_NAME.fullmatch(name):
                raise StoreError(f"{where}: bad name {name!r} in {group}; use up to 100 of A-Z a-z 0-9 . _ -")
            columns[f"{group}/{name}"] = column
    for path, column in columns.items():
        if not isinstance(column, np.ndarray) or column.dtype not in _DTYPES or column.ndim == 0:
            found = f"{column.dtype} {list(column.shape)}" if isinstance(column, np.ndarray) else type(column).__name__
            raise StoreError(f"{where}: {path} is {found}; stored are arrays [T, ...] of booleans, integers or floats")
    return columns


def episode_digest(episode: Episode) -> str:
    """The digest that the episode's header has, or would have, in a store."""
    return _digest(_header_of(episode), storable_columns(episode))


def _header_of(episode: Episode) -> dict[str, Any]:
    """The header as plain data, without the digest."""
    return {
        "episode_id": episode.episode_id,
        "length": len(episode),
        "task": episode.task,
        "success": _plain(episode.success),
        "terminated": _plain(episode.terminated),
        "origin": str(episode.origin),
        "policy_version": _plain(episode.policy_version),
        "seed": _plain(episode.seed),
        "control_hz": float(_plain(episode.control_hz)),
        "env_id": episode.env_id,
        "state_dim": episode.state.shape[1],
        "action_dim": episode.action_sent.shape[1],
        "cameras": {name: list(image.shape[1:3]) for name, image in sorted(episode.images.items())},
        "extras": {name: [extra.dtype.str, list(extra.shape[1:])] for name, extra in sorted(episode.extras.items())},
        "human_steps": int(np.count_nonzero(episode.source == Source.HUMAN)),
    }


def _plain(label: Any) -> Any:
    """A label without its numpy type, which JSON does not know."""
    return label.item() if isinstance(label, np.generic) else label


def _digest(header: dict[str, Any], columns: Mapping[str, NDArray[Any]]) -> str:
    sha = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for path in sorted(columns):
        column = columns[path]
        sha.update(f"{path} {column.dtype.str} {column.shape}".encode())
        sha.update(np.ascontiguousarray(column).data)
    return sha.hexdigest()


def _chunk_shape(column: NDArray[Any]) -> tuple[int, ...]:
    """Few chunks, since episodes are read whole; bounded ones, since a codec holds a chunk in memory twice."""
    row_bytes = max(1, math.prod(column.shape[1:]) * column.itemsize)
    rows = max(1, min(len(column), _CHUNK_BYTES // row_bytes))
    return (rows, *(max(1, size) for size in column.shape[1:]))
