"""The episode store: a folder that collectors add episodes to while learners, world models and reports read it.

Dependency and threading law: numpy and numcodecs only. Any number of processes and threads of a machine may add and
read at the same time. An episode appears by the creation of its final name, after its bytes are on the disk. It never
changes afterwards. No index has to be kept in step with the files: the folder listing is the index.

::

    STORE/store.json               schema version
    STORE/episodes/ID.zarr.zip     one immutable file per episode
    STORE/edits/ID.json            what was changed about an episode afterwards; readers see the episode with it
    STORE/quarantine/              damaged files that `vla-rl doctor` set aside
    STORE/.lock                    shared lock of writers; the doctor takes it alone
"""

import contextlib
import errno
import logging
import os
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError
from vla_rl.core.files import FileStamp, fsync_path, locked, stamp_of_file
from vla_rl.core.json_files import check_seal, read_json, write_sealed
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Episode, Source
from vla_rl.data.cache import FrameCache
from vla_rl.data.edits import Changes, Editable, EditFolder, EditLog, Recording, edited
from vla_rl.data.episode_file import (
    SCHEMA_VERSION,
    SUFFIX,
    DamagedError,
    episode_digest,
    read_columns,
    read_file,
    read_file_header,
    storable_columns,
    write_file,
)
from vla_rl.data.episode_header import EpisodeHeader, check_episode_id, is_episode_id
from vla_rl.data.statistics import data_statistics, spec_of

logger = logging.getLogger(__name__)

TEMPORARY_SUFFIX = ".tmp"
_EXECUTED_TICKS = 6  # of a chunk, in the presets that Python practices with
# What file systems without hard links (exFAT, some network shares) answer.
_NO_HARD_LINKS = (errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP)


class EpisodeStore(Editable):
    """Store episodes in a folder, and read them: by id, by iteration, with ``len`` and ``in``.

    One store may hold episodes of different environments and cameras. Readers select the episodes that fit.

    Args:
        path: Folder of the store.
        create: Whether to make a missing store. If False, a missing store is an error.

    Raises:
        StoreError: If the store is missing, has another schema version, or cannot be written.

    Example:
        >>> store = EpisodeStore(Path("datasets/dot"), create=False)
        >>> sum(episode.success for episode in store), store.read("demo-00000").state.shape[1]
        (3, 2)
    """

    def __init__(self, path: Path, create: bool = True) -> None:
        self.path = Path(path)
        self.episodes_dir = self.path / "episodes"
        self.edits, self.lock_folder = EditFolder(self.path / "edits"), self.path
        has_settings = (self.path / "store.json").exists()
        if not has_settings and not create:
            raise no_store_at(self.path)
        if create:
            try:
                self.episodes_dir.mkdir(parents=True, exist_ok=True)
                if not has_settings:
                    with locked(self.path, exclusive=False):
                        write_settings(self.path)
                    fsync_path(self.path.parent)
            except OSError as error:
                raise StoreError(f"cannot make an episode store at {self.path}: {error.strerror}") from error
        check_settings(self.path)

    def add(self, episode: Episode, log: EditLog | None = None) -> None:
        """Save an episode with a new id. After the call returns, it survives a crash of the process or the machine.

        Args:
            episode: Episode as it was recorded.
            log: Its edits, if it comes from another store.

        Raises:
            UserError: If the episode is not valid.
            StoreError: If the id is taken or is no file name, a label or column cannot be stored, or the disk is full.
                The store is then unchanged.
        """
        file = self._file(episode.episode_id)
        storable_columns(episode)
        episode.validate()
        taken = f"{self.path} already has an episode {episode.episode_id!r}; episodes never change, take another id"
        if file.exists():
            raise StoreError(taken)
        has_edits = log is not None and bool(log.entries)
        temporary = self.episodes_dir / f".{episode.episode_id}.{uuid.uuid4().hex[:12]}{TEMPORARY_SUFFIX}"
        try:
            # With edits, no other writer may come between them and the episode.
            with locked(self.path, exclusive=has_edits):
                try:
                    write_file(episode, temporary)
                    fsync_path(temporary)
                    if log is not None and has_edits:  # before the episode: no reader sees it without its edits
                        if file.exists():
                            raise FileExistsError
                        self.edits.write(episode.episode_id, replace(log, digest=episode_digest(episode)))
                    _publish(temporary, file)
                    fsync_path(self.episodes_dir)
                finally:
                    temporary.unlink(missing_ok=True)
        except FileExistsError:
            raise StoreError(taken) from None
        except OSError as error:
            reason = error.strerror or str(error)
            raise StoreError(f"cannot save episode {episode.episode_id!r} in {self.path}: {reason}") from error

    def ids(self, left_out: bool = False) -> list[str]:
        """Return the sorted ids of all episodes, with ``left_out`` also of those that an edit leaves out.

        Raises:
            StoreError: If the folder cannot be listed.
        """
        try:
            names = [name.removesuffix(SUFFIX) for name in os.listdir(self.episodes_dir) if name.endswith(SUFFIX)]
        except OSError as error:
            raise StoreError(f"cannot list {self.episodes_dir}: {error.strerror}") from error
        names = sorted(name for name in names if is_episode_id(name))
        if left_out:
            return names
        gone = {name for name in self.edits.names().intersection(names) if self.changes(name).get("left_out")}
        return [name for name in names if name not in gone]

    def stamps(self) -> dict[str, FileStamp]:
        """Return the file stamps of each listed episode and of its edit, by id.

        A different stamp means a different episode under this id, or a different edit.
        """
        changed = self.edits.names()
        stamps = {}
        for episode_id in self.ids():
            with contextlib.suppress(FileNotFoundError):  # set aside by the doctor since it was listed
                edit = self.edits.stamp(episode_id) if episode_id in changed else None
                stamps[episode_id] = (*stamp_of_file(self._file(episode_id)), *(edit or ()))
        return stamps

    def read(self, episode_id: str) -> Episode:
        """Read an episode, with its edits applied, even one that an edit leaves out.

        Returns:
            Episode as columns of T steps: ``state`` float32 [T, S], ``action_sent`` float32 [T, A], ``images`` uint8
            [T, H, W, 3] by camera.

        Raises:
            StoreError: If the episode is missing or damaged.
        """
        return edited(read_file(self._file(episode_id)), self.changes(episode_id))

    def read_header(self, episode_id: str) -> EpisodeHeader:
        """Read an episode's header (length, outcome, task, cameras), with its edits applied.

        Its digest is the recording's.

        Raises:
            StoreError: If the episode or its edit is missing or damaged.
        """
        header, changes = read_file_header(self._file(episode_id)), self.changes(episode_id)
        header = replace(header, task=changes.get("task", header.task), success=changes.get("success", header.success))
        if "trim" not in changes:
            return header
        (source,) = read_columns(self._file(episode_id), "source")
        source = source[slice(*changes["trim"])]
        has_final = header.has_final or changes["trim"][1] < header.length
        human_steps = int(np.count_nonzero(source == Source.HUMAN))
        return replace(header, length=len(source), human_steps=human_steps, has_final=has_final)

    def recorded(self, episode_id: str) -> Episode:
        """Read an episode as it was recorded, without its edits. Raises as `read`."""
        return read_file(self._file(episode_id))

    def recorded_columns(self, episode_id: str, *paths: str) -> list[NDArray[Any]]:
        """Read some columns, such as ``extras/tick``, of an episode as it was recorded. Raises as `read`."""
        return read_columns(self._file(episode_id), *paths)

    def recording(self, name: str) -> Recording:
        """Read digest, length and labels of an episode as it was recorded. Raises StoreError if it is damaged."""
        header = read_file_header(self._file(name))
        values = Changes(left_out=False, trim=(0, header.length), success=header.success, task=header.task)
        return Recording(header.digest, header.length, values, f"episode {name!r}")

    def edited_values(self, episode_id: str) -> Changes:
        """Return the current value of everything that an edit can change. Raises as `changes`."""
        return {**self.recording(episode_id).values, **self.changes(episode_id)}

    def label(self, episode_id: str, success: bool | None, by: str = "", after: str | None = None) -> bool:
        """Set the outcome of an episode, None for unknown. The label is an edit; the recording stays. Raises as `edit`.

        Args:
            episode_id: Id of the episode.
            success: Outcome.
            by: Who gives the label; empty: the user of this process.
            after: Who must have given the present outcome, as of `edit`.

        Returns:
            Whether the episode was labeled.
        """
        return self.edit(episode_id, by, after, success=success)

    def move(self, episode_id: str, to: Self) -> None:
        """Move an episode, with its edits, to another store on the same file system.

        At any moment exactly one of the two has it.

        Raises:
            StoreError: If the episode cannot be moved.
        """
        log = self.edits.read(episode_id)
        try:
            with locked(to.path, exclusive=False):
                if log is not None:
                    to.edits.write(episode_id, log)  # it counts only for this very episode
                self._file(episode_id).rename(to._file(episode_id))
                fsync_path(to.episodes_dir)
        except OSError as error:
            raise StoreError(f"cannot move episode {episode_id!r} to {to.path}: {error.strerror}") from error

    def __contains__(self, episode_id: object) -> bool:
        return is_episode_id(episode_id) and self._file(str(episode_id)).exists()

    def __len__(self) -> int:
        return len(self.ids())

    def __iter__(self) -> Iterator[Episode]:
        return map(self.read, self.ids())

    def summary(self) -> tuple[PolicySpec, Statistics]:
        """Return the interface of a policy for the robot of the episodes, and their normalization statistics.

        Raises:
            UserError: If the episodes cannot share a policy.
        """
        with tempfile.TemporaryDirectory() as folder:
            cache = FrameCache(self, Path(folder))
            cache.refresh()
            return spec_of(cache.episodes), data_statistics(cache, (), _EXECUTED_TICKS)

    def _file(self, episode_id: str) -> Path:
        check_episode_id(episode_id)
        return self.episodes_dir / (episode_id + SUFFIX)


def add_new(store: EpisodeStore, episodes: Iterable[Episode | tuple[Episode, EditLog]]) -> list[str]:
    """Add episodes from another source, and return the ids that were added; a repeated call adds nothing.

    The function skips an episode that the store already has with the same content. A different episode under a taken
    id gets the first free id that ends in ``.2``, ``.3`` ... Raises as `EpisodeStore.add`.

    Args:
        store: Store to add to.
        episodes: Episodes as they were recorded, those of another store with their edits. An episode that is there
            already gets the newer edits, unless it has edits of its own.
    """
    added, apart = [], []
    for each in episodes:
        episode, log = each if isinstance(each, tuple) else (each, EditLog(""))
        name, number = episode.episode_id, 1
        while episode.episode_id in store and store.recording(episode.episode_id).digest != episode_digest(episode):
            number += 1
            episode = replace(episode, episode_id=f"{name[:95]}.{number}")
        if episode.episode_id in store:
            if not store.take_edits(episode.episode_id, log):
                apart.append(episode.episode_id)
            continue
        if number > 1:
            logger.warning("%s has another episode %r; this one is added as %r", store.path, name, episode.episode_id)
        store.add(episode, log)
        added.append(episode.episode_id)
    if apart:
        logger.warning("%s: edits of its own stay at %d episodes, the first is %r", store.path, len(apart), apart[0])
    return added


def no_store_at(path: Path) -> StoreError:
    """Return the error for a folder that is no store, with the folder in it that is one if there is."""
    inner = path / "episodes"
    hint = f"; did you mean {inner}?" if (inner / "store.json").exists() or (inner / "episodes").is_dir() else ""
    return StoreError(f"there is no episode store at {path}{hint or ' (no store.json)'}")


def check_settings(path: Path) -> None:
    """Raise StoreError if the settings of a store are damaged or of another schema version."""
    file = path / "store.json"
    try:
        settings = read_json(file)
        version = settings["schema_version"]
        if version == SCHEMA_VERSION:
            check_seal(settings)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"{file} is damaged or missing; `vla-rl doctor --repair {path}` writes it anew") from error
    if version != SCHEMA_VERSION:
        raise StoreError(f"{file} has schema version {version!r}, this program reads {SCHEMA_VERSION}; record anew")


def write_settings(path: Path) -> None:
    """Write a store's settings, atomically. The caller holds the lock."""
    write_sealed(path / "store.json", {"schema_version": SCHEMA_VERSION})


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
