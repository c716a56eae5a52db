"""The episode store: a folder that collectors add episodes to while learners, world models and reports read it.

Dependency and threading law: numpy and zarr only. Any number of processes and threads of a machine may add and read at
the same time: an episode appears by the creation of its final name, after its bytes are on the disk, and never changes
afterwards. No index has to be kept in step with the files: the folder listing is the index.

::

    STORE/store.json               schema version
    STORE/episodes/ID.zarr.zip     one immutable file per episode
    STORE/labels/ID.json           an outcome that a person has given afterwards; readers see it in place of the file's
    STORE/quarantine/              damaged files that `vla-rl doctor` set aside
    STORE/.lock                    shared lock of writers; the doctor takes it alone
"""

import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from vla_rl.core.described import write_description
from vla_rl.core.errors import StoreError
from vla_rl.core.files import FileStamp, fsync_directory, fsync_file, stamp_of_file
from vla_rl.core.outside import check_seal, read_json
from vla_rl.core.types import Episode
from vla_rl.data.episode_file import (
    SCHEMA_VERSION,
    SUFFIX,
    DamagedError,
    episode_digest,
    read_file,
    read_file_header,
    storable_columns,
    write_file,
)
from vla_rl.data.episode_header import EpisodeHeader, check_episode_id, is_episode_id

TEMPORARY_SUFFIX = ".tmp"
# What file systems without hard links (exFAT, some network shares) answer.
_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class EpisodeStore:
    """A folder of episodes.

    Episodes of any environment, camera set and size may stand side by side; whoever reads them picks the ones that fit.

    Args:
        path: the folder.
        create: make the folder if it does not exist; with False that is an error.

    Raises:
        StoreError: for a missing store, one of another schema version, or a folder that cannot be written.
    """

    def __init__(self, path: Path, create: bool = True) -> None:
        self.path = Path(path)
        self.episodes_dir = self.path / "episodes"
        self.labels_dir = self.path / "labels"
        has_settings = (self.path / "store.json").exists()
        if not has_settings and not create:
            raise no_store_at(self.path)
        if create:
            try:
                self.episodes_dir.mkdir(parents=True, exist_ok=True)
                if not has_settings:
                    with locked(self.path, exclusive=False):
                        write_settings(self.path)
                    fsync_directory(self.path.parent)
            except OSError as error:
                raise StoreError(f"cannot make an episode store at {self.path}: {error.strerror}") from error
        check_settings(self.path)

    def add(self, episode: Episode) -> None:
        """Save an episode.

        When this returns, the episode survives a crash of the process or the machine; when it raises, nothing changed.

        Raises:
            UserError: for an episode that is not valid.
            StoreError: for an id that is taken or cannot be a file name, labels or columns that cannot be stored, or a
                disk that is full.
        """
        file = self._file(episode.episode_id)
        storable_columns(episode)
        episode.validate()
        taken = f"{self.path} already has an episode {episode.episode_id!r}; episodes never change, take another id"
        if file.exists():
            raise StoreError(taken)
        temporary = self.episodes_dir / f".{episode.episode_id}.{uuid.uuid4().hex[:12]}{TEMPORARY_SUFFIX}"
        try:
            with locked(self.path, exclusive=False), _removed_afterwards(temporary):
                write_file(episode, temporary)
                fsync_file(temporary)
                _publish(temporary, file)
                fsync_directory(self.episodes_dir)
        except FileExistsError:
            raise StoreError(taken) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(f"cannot save episode {episode.episode_id!r} in {self.path}: {reason}") from error

    def ids(self) -> list[str]:
        """The ids of all episodes, sorted."""
        try:
            names = [name.removesuffix(SUFFIX) for name in os.listdir(self.episodes_dir) if name.endswith(SUFFIX)]
        except OSError as error:
            raise StoreError(f"cannot list {self.episodes_dir}: {error.strerror}") from error
        return sorted(name for name in names if is_episode_id(name))

    def stamps(self) -> dict[str, FileStamp]:
        """Id -> stamps of its file and of its label, by id.

        Another stamp means another episode under that id, or another label.
        """
        labelled = set(os.listdir(self.labels_dir)) if self.labels_dir.is_dir() else set()
        stamps = {}
        for episode_id in self.ids():
            with contextlib.suppress(FileNotFoundError):  # set aside by the doctor since it was listed
                label = stamp_of_file(self.label_file(episode_id)) if f"{episode_id}.json" in labelled else ()
                stamps[episode_id] = (*stamp_of_file(self._file(episode_id)), *label)
        return stamps

    def read(self, episode_id: str) -> Episode:
        """The whole episode, with the outcome that `label` gave it. Raises StoreError if it is missing or damaged."""
        episode = read_file(self._file(episode_id))
        if not self.label_file(episode_id).exists():
            return episode
        return episode.with_success(self.read_header(episode_id).success)

    def read_header(self, episode_id: str) -> EpisodeHeader:
        """What is known of the episode without its columns, with the outcome that `label` gave it.

        Raises:
            StoreError: if the episode or its label is missing or damaged.
        """
        header = read_file_header(self._file(episode_id))
        label = read_label(self.label_file(episode_id))
        if label is None or label["digest"] != header.digest:  # of an episode that had this id before
            return header
        return replace(header, success=label["success"])

    def label(self, episode_id: str, success: bool | None) -> None:
        """Say how an episode went, after the fact; a later label replaces an earlier one.

        The episode's file stays as it is: the label is a small file of its own beside it, written atomically, which
        names the episode's digest. When this returns, the label survives a crash.

        Args:
            episode_id: of an episode in the store.
            success: the outcome; None: not known after all.

        Raises:
            StoreError: if there is no such episode, it is damaged, or the disk is full.
        """
        digest = read_file_header(self._file(episode_id)).digest
        content = {"schema_version": SCHEMA_VERSION, "digest": digest, "success": success}
        try:
            with locked(self.path, exclusive=False):
                if not self.labels_dir.is_dir():
                    self.labels_dir.mkdir(exist_ok=True)
                    fsync_directory(self.path)
                write_description(self.label_file(episode_id), content)
        except OSError as error:
            raise StoreError(f"cannot label episode {episode_id!r} in {self.path}: {error.strerror}") from error

    def move(self, episode_id: str, to: Self) -> None:
        """Hand an episode that has no label over to another store of the same file system; at any moment exactly one of
        them has it.

        Raises:
            StoreError: if it cannot be moved.
        """
        try:
            with locked(to.path, exclusive=False):
                self._file(episode_id).rename(to._file(episode_id))
                fsync_directory(to.episodes_dir)
        except OSError as error:
            raise StoreError(f"cannot move episode {episode_id!r} to {to.path}: {error.strerror}") from error

    def label_file(self, episode_id: str) -> Path:
        """Where the label of an episode is, if it has one. Raises StoreError for a bad id."""
        check_episode_id(episode_id)
        return self.labels_dir / f"{episode_id}.json"

    def __contains__(self, episode_id: object) -> bool:
        return is_episode_id(episode_id) and self._file(str(episode_id)).exists()

    def __len__(self) -> int:
        return len(self.ids())

    def _file(self, episode_id: str) -> Path:
        check_episode_id(episode_id)
        return self.episodes_dir / (episode_id + SUFFIX)


def add_unless_same(store: EpisodeStore, episode: Episode) -> str | None:
    """Add an episode that came from elsewhere, unless the store has this very episode already.

    Args:
        store: the store.
        episode: any; it is validated here.

    Returns:
        the id under which it was added: its own, or where another episode has that one, the first free one that ends in
        ``.2``, ``.3`` ...; None if it is there already.

    Raises:
        UserError, StoreError: as `EpisodeStore.add`.
    """
    name, number = episode.episode_id, 1
    while episode.episode_id in store:
        if store.read_header(episode.episode_id).digest == episode_digest(episode):
            return None
        number += 1
        episode = replace(episode, episode_id=f"{name[:95]}.{number}")
    store.add(episode)
    return episode.episode_id


def no_store_at(path: Path) -> StoreError:
    """The error for a folder that is no store, with the folder in it that is one if there is."""
    inner = path / "episodes"
    hint = f"; did you mean {inner}?" if (inner / "store.json").exists() or (inner / "episodes").is_dir() else ""
    return StoreError(f"there is no episode store at {path}{hint or ' (no store.json)'}")


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


def check_settings(path: Path) -> None:
    """Raise StoreError if the settings of a store are damaged or of another schema version."""
    file = path / "store.json"
    try:
        settings = read_json(file)
        version = settings["schema_version"]
        if version == SCHEMA_VERSION:
            check_seal(settings, required=False)  # those of an earlier version have none
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{file} is damaged or missing; `vla-rl doctor --repair {path}` writes it anew") from error
    if version != SCHEMA_VERSION:
        raise StoreError(
            f"{file} has schema version {version!r}, this program reads {SCHEMA_VERSION}; "
            "read it with the version of vla-rl that wrote it"
        )


def read_label(file: Path) -> dict[str, Any] | None:
    """A label, ``{"digest": of the episode, "success": bool or None}``; None if there is no such file.

    Raises:
        DamagedError: if it is not what `EpisodeStore.label` wrote.
    """
    try:
        label = read_json(file)
        check_seal(label, required=False)  # those of an earlier version have none
        version, digest, success = label["schema_version"], label["digest"], label["success"]
        if version != SCHEMA_VERSION or not isinstance(digest, str) or not isinstance(success, bool | None):
            raise ValueError("not a label of this version")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        store = file.parent.parent
        raise DamagedError(f"{file} is damaged ({error}); `vla-rl doctor --repair {store}` sets it aside") from error
    return {"digest": digest, "success": success}


def write_settings(path: Path) -> None:
    """Write a store's settings, atomically. The caller holds the lock."""
    write_description(path / "store.json", {"schema_version": SCHEMA_VERSION})


def _publish(temporary: Path, file: Path) -> None:
    """Give a finished file its name. Raises FileExistsError if the name is taken, also by a writer of this moment."""
    try:
        os.link(temporary, file)  # unlike a rename, a link never replaces a file
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
            raise
        if file.exists():
            raise FileExistsError(file) from None
        temporary.rename(file)


@contextlib.contextmanager
def _removed_afterwards(file: Path) -> Iterator[None]:
    try:
        yield
    finally:
        file.unlink(missing_ok=True)
