"""Reads the messages of a ROS 2 bag (mcap and sqlite3): numbers and pictures, without ROS.

Safety law: nothing that a bag carries is executed. Message types are the common ones of ROS 2. Definitions inside a bag
would have to be turned into code, so they are not used.

Dependency law: rosbags and PIL are imported where they are used.
"""

import contextlib
import functools
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError, UserError, did_you_mean, one_line
from vla_rl.core.types import Uint8Array

_CHANNELS = {"rgb8": (3, (0, 1, 2)), "bgr8": (3, (2, 1, 0)), "rgba8": (4, (0, 1, 2)), "bgra8": (4, (2, 1, 0))}
_CHANNELS["mono8"] = (1, (0, 0, 0))
# Of a message without a named field: the part of it that means something as a vector.
_DEFAULT_FIELDS = {"sensor_msgs/msg/JointState": "position", "trajectory_msgs/msg/JointTrajectory": "points"}
_NAMES = ("name", "joint_names")
_NOT_NUMBERS = (*_NAMES, "header", "layout", "time_from_start")


class BagReader:
    """A bag that is open for reading. Whatever goes wrong in rosbags becomes one StoreError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            from rosbags.rosbag2 import Reader
            from rosbags.typesys import Stores, get_typestore
        except ImportError as error:
            raise UserError(
                f"reading a ROS 2 bag needs the package {error.name}: pip install rosbags pillow"
            ) from error
        self._typestore = get_typestore(Stores.ROS2_JAZZY)
        with self._reading():
            _check_names(path)
            self._reader = Reader(path)

    def __enter__(self) -> "BagReader":
        with self._reading():
            self._reader.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def messages(
        self, topic: str, start_ns: int | None = None, stop_ns: int | None = None
    ) -> Iterator[tuple[int, str, Any]]:
        """Return the messages of a topic in the order of recording: (recorded at in ns, type, message)."""
        connections = [connection for connection in self._reader.connections if connection.topic == topic]
        if not connections:
            known = {connection.topic for connection in self._reader.connections}
            raise UserError(f"{self.path} has no topic {topic!r}.{did_you_mean(topic, known)}")
        kind = connections[0].msgtype
        if len({connection.msgtype for connection in connections}) > 1:
            kinds = sorted({connection.msgtype for connection in connections})
            raise UserError(f"{self.path}: {topic} holds messages of the types {kinds}; record one type per topic")
        if kind not in self._typestore.types:
            raise UserError(f"{self.path}: {topic} is a {kind}, which is none of the common ROS 2 types; leave it out")
        with self._reading():
            for connection, recorded_ns, raw in self._reader.messages(connections, start_ns, stop_ns):
                yield recorded_ns, kind, self._typestore.deserialize_cdr(raw, connection.msgtype)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except (UserError, GeneratorExit):
            raise
        except Exception as error:  # YAML, SQLite, mcap, CDR and decompression raise dozens of kinds
            raise StoreError(f"cannot read {self.path} as a ROS 2 bag: {one_line(error)}") from error


def _check_names(path: Path) -> None:
    """Raise ValueError if a bag's metadata names files that are not in the bag's own folder."""
    metadata = path / "metadata.yaml"
    if metadata.is_file():
        names = yaml.safe_load(metadata.read_text())["rosbag2_bagfile_information"]["relative_file_paths"]
        foreign = [name for name in names if Path(str(name)).name != name]
        if foreign:
            raise ValueError(f"its metadata.yaml names files outside of it: {foreign[0]!r}")


def capture_time_ns(message: Any) -> int:
    """Return the time stamp in a message's header; 0 if there is none."""
    stamp = getattr(getattr(message, "header", None), "stamp", None)
    return 0 if stamp is None else int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one message, or of one field of it.

    Attributes:
        joints: Names that the message gives its joints, in its own order; None if messages of its type carry no names.
        labels: Where each number stands in the message (``points.0.positions.3``).
        values: float64 [D].
    """

    joints: tuple[str, ...] | None
    labels: tuple[str, ...]
    values: NDArray[np.float64]


def numbers_of(bag: BagReader, topic: str, kind: str, message: Any, path: str) -> Numbers:
    """Return the numbers of a message, or of one field of it (``points.0.positions``), in their order.

    Raises:
        UserError: If there is no such field.
    """
    path = path or _DEFAULT_FIELDS.get(kind, "")
    value = message
    for part in filter(None, path.split(".")):
        if re.fullmatch(r"-?\d+", part) and isinstance(value, list | np.ndarray):
            if not -len(value) <= int(part) < len(value):
                raise UserError(f"{bag.path}: {topic} has {len(value)} entries before {part!r} in {path}; name another")
            value = value[int(part)]
        elif part in (known := _fields(value)):
            value = getattr(value, part)
        else:
            raise UserError(f"{bag.path}: {topic} has no field {part!r}.{did_you_mean(part, known)}")
    leaves = list(_leaves(value, path))
    named = [tuple(found) for name in _NAMES if isinstance(found := getattr(message, name, None), list)]
    labels = _shared(tuple(label.lstrip(".") for label, _ in leaves))
    return Numbers(named[0] if named else None, labels, np.array([number for _, number in leaves], np.float64))


@functools.lru_cache(maxsize=256)
def _shared(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return one object for equal labels: all messages of a topic have the same."""
    return labels


@functools.lru_cache(maxsize=256)
def _indexed(label: str, count: int) -> list[str]:
    return [f"{label}.{index}" for index in range(count)]


def _leaves(value: Any, label: str) -> Iterator[tuple[str, float]]:
    """Yield each number of a message with its place, depth first in the order of the fields."""
    if isinstance(value, bool | int | float | np.generic):
        yield label, float(value)
    elif isinstance(value, np.ndarray):
        yield from zip(_indexed(label, value.size), map(float, value.ravel()), strict=True)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{label}.{index}")
    else:
        for name in _fields(value):
            if name not in _NOT_NUMBERS:
                yield from _leaves(getattr(value, name), f"{label}.{name}")


def _fields(value: Any) -> list[str]:
    """Return the fields of a message without the constants of its type."""
    found = fields(value) if is_dataclass(value) else ()
    return [item.name for item in found if not str(item.type).startswith("ClassVar")]


def decode_picture(bag: BagReader, topic: str, kind: str, message: Any) -> Uint8Array:
    """Return a picture message as uint8 [H, W, 3]."""
    from PIL import Image

    if kind == "sensor_msgs/msg/CompressedImage":
        try:
            with Image.open(io.BytesIO(message.data.tobytes()), formats=("JPEG", "PNG", "WEBP")) as opened:
                picture = opened.convert("RGB")
        except (OSError, ValueError) as error:
            raise StoreError(f"{bag.path}: a picture of {topic} cannot be decoded: {error}") from error
    elif kind == "sensor_msgs/msg/Image":
        if message.encoding not in _CHANNELS:
            known = did_you_mean(message.encoding, _CHANNELS)
            raise UserError(f"{bag.path}: {topic} has the encoding {message.encoding!r}.{known}")
        channels, order = _CHANNELS[message.encoding]
        if message.step < message.width * channels or message.data.size != message.height * message.step:
            raise StoreError(
                f"{bag.path}: a picture of {topic} has {message.data.size} bytes, which is not {message.height} rows "
                f"of {message.width} pixels in {message.encoding}"
            )
        rows = message.data.reshape(message.height, message.step)[:, : message.width * channels]
        picture = Image.fromarray(np.ascontiguousarray(rows.reshape(message.height, -1, channels)[..., list(order)]))
    else:
        raise UserError(f"{bag.path}: {topic} is a {kind}; a camera is a sensor_msgs Image or CompressedImage")
    return np.asarray(picture)
