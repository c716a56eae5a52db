"""Files that survive a crash: written aside, flushed to the disk, then renamed into place."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_atomic(file: Path, content: bytes) -> None:
    """Replace a file's content so that a reader, or a crash at any moment, sees the old content or the new, never a
    part.
    """
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    fsync_directory(file.parent)


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory survive a power loss."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(file: Path) -> None:
    """Make a file's content survive a power loss."""
    descriptor = os.open(file, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_weights(folder: Path, stem: str, content: bytes, description: Mapping[str, Any]) -> None:
    """Write weights and what they are: ``STEM-DIGEST.safetensors``, then ``config.json``, which names it. A folder that
    is overwritten is the old content or the new, never a mix; the old weights go last.
    """
    folder.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(content).hexdigest()
    name = f"{stem}-{digest[:16]}.safetensors"
    write_atomic(folder / name, content)
    about = {**description, "weights": name, "sha256": digest}
    write_atomic(folder / "config.json", json.dumps(about, indent=1).encode())
    for stale in folder.glob(f"{stem}-*.safetensors"):
        if stale.name != name:
            stale.unlink()
