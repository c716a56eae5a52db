"""openpi's messages: msgpack with numpy arrays. Nothing in a message is unpickled or executed.

The format is that of ``openpi_client/msgpack_numpy.py``. Arrays of objects, structures and complex numbers do not exist
in it.
"""

import re
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np

from vla_rl.core.errors import UserError, one_line

_DTYPE = re.compile(r"[<>|](?:b1|[iu][1248]|f[248])")
_MOST_DIMS = 8
_MOST_ITEMS = 10_000  # of a list or a mapping


class WireError(UserError):
    """A message that openpi's format does not allow, or that does not hold what it should."""


def pack(message: dict[str, Any]) -> bytes:
    """Return a message as bytes; its values are plain data and numpy arrays of numbers."""
    return encode(message, _packed)


def unpack(data: bytes) -> dict[str, Any]:
    """Read a message of one binary frame. Its arrays are read-only views of the frame.

    Raises:
        WireError: If the bytes are no such message.

    Example:
        >>> unpack(pack({"actions": np.zeros((2, 3), np.float32)}))["actions"].shape
        (2, 3)
    """
    message = decode(data, _unpacked)
    if not isinstance(message, dict):
        raise WireError(f"a message of openpi is a mapping; found a {type(message).__name__}")
    return message


def encode(message: Any, packed: Callable[[Any], Any]) -> bytes:
    """Return plain data as msgpack; ``packed`` turns each array into plain data."""
    data: bytes = msgpack.packb(message, default=packed)
    return data


def decode(data: bytes, unpacked: Callable[[dict[Any, Any]], Any]) -> Any:
    """Return plain data from msgpack, within limits; ``unpacked`` turns each mapping into an array where it is one.

    Raises:
        WireError: If the bytes are no msgpack, or ``unpacked`` raises an error.
    """
    limits = {"max_array_len": _MOST_ITEMS, "max_map_len": _MOST_ITEMS, "max_ext_len": 0}
    try:
        return msgpack.unpackb(data, object_hook=unpacked, **limits)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError) as error:
        raise WireError(f"{len(data)} bytes are no message of a policy server: {one_line(error, 120)}") from error


def array_of(data: Any, name: Any, shape: Any) -> np.ndarray:
    """Return a read-only view of bytes as numbers of a type, such as ``<f4``, and a shape; ValueError if none fits."""
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ValueError(f"arrays of {name!r} are not allowed")
    if not isinstance(shape, list) or not isinstance(data, bytes) or len(shape) > _MOST_DIMS:
        raise ValueError("an array has no bytes or no shape")
    size = np.dtype(name).itemsize
    for length in shape:
        if type(length) is not int or length < 0:
            raise ValueError(f"an array has the shape {shape}")
        size *= length
    if size != len(data):
        raise ValueError(f"an array of shape {shape} and type {name} has {len(data)} bytes")
    return np.frombuffer(data, np.dtype(name)).reshape(shape)


def _packed(value: Any) -> dict[bytes, Any]:
    if not isinstance(value, np.ndarray | np.generic) or not _DTYPE.fullmatch(value.dtype.str):
        raise WireError(f"a {getattr(value, 'dtype', type(value).__name__)} cannot be sent; send arrays of numbers")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _unpacked(found: dict[Any, Any]) -> Any:
    if b"__ndarray__" in found:
        return array_of(found[b"data"], found[b"dtype"], found[b"shape"])
    if b"__npgeneric__" not in found:
        return found
    name, value = found[b"dtype"], found[b"data"]
    if not isinstance(name, str) or not _DTYPE.fullmatch(name) or not isinstance(value, bool | int | float):
        raise ValueError(f"a number is a {type(value).__name__} of type {name!r}")
    return np.dtype(name).type(value)
