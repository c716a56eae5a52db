"""Checkpoints that survive kill -9 and hold everything that the next update depends on: safetensors and JSON, never
pickle.

A checkpoint is a folder ``step_00001200`` with ``tensors.safetensors`` and ``state.json``. It is written under a
temporary name, flushed, and renamed last, so that a folder with a final name is whole. Random numbers need no state:
every draw in training is keyed by (seed, purpose, step).
"""

import json
import logging
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError

from vla_rl.core.errors import CheckpointError
from vla_rl.core.files import digest_of, fsync_path
from vla_rl.core.json_files import check_seal, read_json, reading, sealed

SCHEMA_VERSION = 2
_TENSOR = "__tensor__"
_TENSORS = "tensors.safetensors"
logger = logging.getLogger(__name__)


def save_checkpoint(directory: Path, step: int, state: Mapping[str, Any], keep: int = 2) -> Path:
    """Write the state of training after ``step`` updates, then drop all but the newest ``keep`` checkpoints.

    The state is nested mappings and lists of tensors, numbers, strings, booleans and None.

    Raises:
        CheckpointError: if it cannot be written (for example: disk full); the checkpoints before it stay.
    """
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / f"step_{step:08d}"
    temporary = directory / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    tensors: dict[str, torch.Tensor] = {}
    structure = _take_tensors_out(state, tensors, path="")
    try:
        safetensors.torch.save_file(tensors, temporary / _TENSORS)
        state_file = {
            "schema": SCHEMA_VERSION,
            "step": step,
            "state": structure,
            "tensors": digest_of(temporary / _TENSORS),
        }
        (temporary / "state.json").write_text(json.dumps(sealed(state_file, finite=False)))
        for file in temporary.iterdir():
            fsync_path(file)
        fsync_path(temporary)
        shutil.rmtree(final, ignore_errors=True)  # left by a run that was resumed from an older checkpoint
        temporary.rename(final)
    except SafetensorError as error:  # its writer does not raise OSError
        raise CheckpointError(
            f"cannot write the checkpoint {final}: {error}; what is saved is safe: make room, then go on with --resume"
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)  # of a checkpoint that could not be written
    fsync_path(directory)
    for old in sorted(directory.glob("step_*"))[:-keep]:
        shutil.rmtree(old)
    return final


def load_checkpoint(checkpoint: Path) -> tuple[int, dict[str, Any]]:
    """Read a checkpoint: (gradient steps done, state); CheckpointError if it is missing, damaged or foreign."""
    with reading(checkpoint, "remove it to resume from the one before"):
        content = read_json(checkpoint / "state.json", finite=False)
        schema, step, structure = content["schema"], content["step"], content["state"]
        if schema != SCHEMA_VERSION:
            raise CheckpointError(
                f"{checkpoint} has schema {schema}, this program reads {SCHEMA_VERSION}; begin the run anew"
            )
        check_seal(content)
        if content["tensors"] != digest_of(checkpoint / _TENSORS):
            raise ValueError("its tensors are not those that were written")
        tensors = safetensors.torch.load_file(checkpoint / _TENSORS)
        return step, _put_tensors_back(structure, tensors)


def load_newest_checkpoint(directory: Path) -> tuple[int, dict[str, Any]] | None:
    """Return the newest readable checkpoint of a run, or None where there is none yet. A damaged one is passed over
    with a warning.

    Raises:
        CheckpointError: if there are checkpoints and none can be read.
    """
    found = sorted(directory.glob("step_*"), reverse=True)
    for checkpoint in found:
        try:
            return load_checkpoint(checkpoint)
        except CheckpointError as error:
            logger.warning("%s", error)
    if found:
        raise CheckpointError(
            f"none of the {len(found)} checkpoints in {directory} can be read; see the warnings above"
        )
    return None


def _take_tensors_out(node: Any, tensors: dict[str, torch.Tensor], path: str) -> Any:
    if isinstance(node, torch.Tensor):
        # A copy for each name: safetensors refuses tensors that share memory.
        tensors[path] = node.detach().cpu().contiguous().clone()
        return {_TENSOR: path}
    if isinstance(node, Mapping):
        # Pairs, since optimizer states have integer keys, which JSON would turn into strings.
        return {"items": [[key, _take_tensors_out(value, tensors, f"{path}/{key}")] for key, value in node.items()]}
    if isinstance(node, list | tuple):
        return [_take_tensors_out(value, tensors, f"{path}/{index}") for index, value in enumerate(node)]
    if node is None or isinstance(node, bool | int | float | str):
        return node
    raise CheckpointError(
        f"state_dict() holds a {type(node).__name__} at {path or 'its root'}; a checkpoint holds tensors, numbers, "
        "text, lists and mappings of them: of an array, torch.from_numpy(it)"
    )


def _put_tensors_back(node: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if isinstance(node, dict):
        if _TENSOR in node:
            return tensors[node[_TENSOR]]
        return {key: _put_tensors_back(value, tensors) for key, value in node["items"]}
    if isinstance(node, list):
        return [_put_tensors_back(value, tensors) for value in node]
    return node
