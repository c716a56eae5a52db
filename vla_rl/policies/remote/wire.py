"""openpi's messages: msgpack with numpy arrays. Nothing in a message is unpickled or executed.

The format is that of ``openpi_client/msgpack_numpy.py``. Arrays of objects, structures and complex numbers do not exist
in it.
"""

import re
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
    data: bytes = msgpack.packb(message, default=_packed)
    return data


def unpack(data: bytes) -> dict[str, Any]:
    """Read a message.

    Args:
        data: One binary frame.

    Returns:
        The message. Its arrays are read-only views of ``data``.

    Raises:
        WireError: If the bytes are no such message.

    Example:
        >>> unpack(pack({"actions": np.zeros((2, 3), np.float32)}))["actions"].shape
        (2, 3)
    """
    limits = {"max_array_len": _MOST_ITEMS, "max_map_len": _MOST_ITEMS, "max_ext_len": 0}
    try:
        message = msgpack.unpackb(data, object_hook=_unpacked, **limits)
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError) as error:
        raise WireError(f"{len(data)} bytes are no message of openpi: {one_line(error, 120)}") from error
    if not isinstance(message, dict):
        raise WireError(f"a message of openpi is a mapping; found a {type(message).__name__}")
    return message


def _packed(value: Any) -> dict[bytes, Any]:
    if not isinstance(value, np.ndarray | np.generic) or not _DTYPE.fullmatch(value.dtype.str):
        raise WireError(f"a {getattr(value, 'dtype', type(value).__name__)} cannot be sent; send arrays of numbers")
    if isinstance(value, np.generic):
        return {b"__npgeneric__": True, b"data": value.item(), b"dtype": value.dtype.str}
    return {b"__ndarray__": True, b"data": value.tobytes(), b"dtype": value.dtype.str, b"shape": value.shape}


def _unpacked(found: dict[Any, Any]) -> Any:
    if b"__ndarray__" not in found and b"__npgeneric__" not in found:
        return found
    name, data = found[b"dtype"], found[b"data"]
    if not isinstance(name, str) or not _DTYPE.fullmatch(name):
        raise ValueError(f"arrays of {name!r} are not allowed")
    dtype = np.dtype(name)
    if b"__npgeneric__" in found:
        if not isinstance(data, bool | int | float):
            raise ValueError(f"a number is a {type(data).__name__}")
        return dtype.type(data)
    shape = found[b"shape"]
    if not isinstance(shape, list) or not isinstance(data, bytes) or len(shape) > _MOST_DIMS:
        raise ValueError("an array has no bytes or no shape")
    size = dtype.itemsize
    for length in shape:
        if type(length) is not int or length < 0:
            raise ValueError(f"an array has the shape {shape}")
        size *= length
    if size != len(data):
        raise ValueError(f"an array of shape {shape} and type {name} has {len(data)} bytes")
    return np.frombuffer(data, dtype).reshape(shape)
