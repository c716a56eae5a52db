"""The weights of a deployment as one safetensors file that ONNX graphs refer to by offset.

With the same names, dtypes and shapes the layout is the same, so new weights take the place of old ones without
touching a graph. Numpy only.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import CheckpointError, did_you_mean

Array = NDArray[Any]
_NAMES = {
    "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float64": "F64", "int64": "I64", "int32": "I32",
    "uint8": "U8", "int8": "I8", "bool": "BOOL",
}  # fmt: skip
_ALIGNMENT = 64  # bytes, so that the file can be used where it is mapped


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Return a dtype by its name; those that numpy lacks come from ml_dtypes."""
    if name in ("bfloat16", "float8_e4m3fn"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def pack(tensors: Mapping[str, Array]) -> bytes:
    """Tensors -> the content of a safetensors file, in the order of their names, each aligned."""
    header: dict[str, Any] = {}
    position = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        header[name] = {
            "dtype": _NAMES[tensor.dtype.name],
            "shape": list(tensor.shape),
            "data_offsets": [position, position + tensor.nbytes],
        }
        position += tensor.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    parts = [len(text).to_bytes(8, "little"), text]
    parts += [np.ascontiguousarray(tensors[name]).tobytes() for name in sorted(tensors)]
    return b"".join(parts)


def layout(content: bytes) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """Return name -> (dtype name, shape, offset, bytes) of a safetensors file; CheckpointError if it is none."""
    try:
        length = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + length])
        header.pop("__metadata__", None)
        dtypes = {short: name for name, short in _NAMES.items()}
        return {
            name: (
                dtypes[entry["dtype"]],
                tuple(map(int, entry["shape"])),
                8 + length + int(entry["data_offsets"][0]),
                int(entry["data_offsets"][1]) - int(entry["data_offsets"][0]),
            )
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise CheckpointError(f"the weights are no safetensors file: {error!r}") from error


def unpack(content: bytes) -> dict[str, Array]:
    """Return the tensors of a safetensors file, without a copy; CheckpointError if it is none, or was cut off."""
    tensors = {}
    for name, (dtype, shape, offset, size) in layout(content).items():
        if offset + size > len(content):
            raise CheckpointError(f"the weights were cut off before the end of {name!r}; copy the file anew")
        tensors[name] = np.frombuffer(content, numpy_dtype(dtype), size // numpy_dtype(dtype).itemsize, offset)
        tensors[name] = tensors[name].reshape(shape)
    return tensors


def replaced(content: bytes, new: Mapping[str, Array], origin: str) -> bytes:
    """Write the deployed weights with the values of new ones from ``origin``, cast to the dtypes of the graphs.

    The new ones may hold more than the graphs use (what only training needs).

    Raises:
        CheckpointError: If a weight is missing, has another shape, or is not finite: the graphs must be exported anew.
    """
    old = unpack(content)
    chosen = {}
    for name, tensor in old.items():
        if name not in new:
            raise CheckpointError(f"{origin} has no weight {name!r}; export anew.{did_you_mean(name, new)}"[:400])
        if new[name].shape != tensor.shape:
            found, expected = list(new[name].shape), list(tensor.shape)
            raise CheckpointError(f"{origin}: {name} is {found}, the graphs have {expected}; export the policy anew")
        if not np.isfinite(new[name].astype(np.float32)).all():
            raise CheckpointError(f"{origin}: {name} holds numbers that are not finite; the running policy is kept")
        chosen[name] = new[name].astype(tensor.dtype)
    return pack(chosen)
