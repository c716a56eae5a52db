"""Files that survive a crash: written aside, flushed to the disk, then renamed into place. Locks of folders, and stamps
that show changes of files.
"""

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

FileStamp = tuple[int, ...]
Stamp = tuple[tuple[str, FileStamp], ...]


def write_atomic(file: Path, content: bytes) -> None:
    """Replace a file's content so that a reader, or a crash, sees the old content or the new, never a part."""
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
    fsync_path(file.parent)


@contextlib.contextmanager
def locked(directory: Path, exclusive: bool) -> Iterator[None]:
    """Hold the lock of a folder. Writers share it: while it is held exclusively, no write is under way.

    A process that dies lets go of it.
    """
    descriptor = os.open(directory / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def fsync_path(path: Path) -> None:
    """Make a file's content, or the names in a folder, survive a power loss."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(file: Path) -> str:
    """SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def stamp_of(folder: Path) -> Stamp:
    """Return names and stamps of all files in a folder and below it: another stamp means other content."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file())
    return tuple((file.relative_to(folder).as_posix(), stamp_of_file(file)) for file in files)


def stamp_of_file(file: Path) -> FileStamp:
    """Return inode, time of the last change and size. Unlike the modification time, nothing can set that time back."""
    stat = file.stat()
    return stat.st_ino, stat.st_ctime_ns, stat.st_size
