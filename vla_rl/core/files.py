"""Files that survive a crash: written aside, flushed to the disk, then renamed into place."""

import os
from pathlib import Path


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
