"""Edits of episodes: left out, trimmed or relabeled after the recording. The recorded data never changes.

An edit is a small file of its own in a folder beside the data. It names the digest of the recorded episode, so that it
is never applied to another one. Its log only grows. Each entry of the log says when, by whom, and the old and new
values; an undo is an entry, too. The values after the last entry are those that readers apply.

::

    STORE/edits/ID.json               of an episode store
    DATASET.edits/000003.json         of episode 3 of the LeRobotDataset in the folder DATASET
"""

import abc
import contextlib
import getpass
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypedDict, Unpack, cast

import numpy as np

from vla_rl.core.errors import DamagedError, StoreError, UserError
from vla_rl.core.files import FileStamp, fsync_path, locked, stamp_of_file
from vla_rl.core.json_files import check_seal, read_json, write_sealed
from vla_rl.core.types import PICTURED, Episode

_VERSION = 1


class Changes(TypedDict, total=False):
    """What is changed about an episode. A key that is not there: as recorded.

    Attributes:
        left_out: Whether stores do not list the episode, so that nothing learns from it.
        trim: First step that is kept, and one past the last, counted in the recording.
        success: Outcome; None: not known.
        task: Task sentence.
    """

    left_out: bool
    trim: tuple[int, int]
    success: bool | None
    task: str


def check_changes(changes: Changes, length: int, where: str) -> None:
    """Raise UserError for values that an episode of ``length`` steps cannot have; ``where`` names it."""
    if not changes or changes.keys() - Changes.__annotations__.keys():
        raise UserError(f"{where}: cannot change {sorted(changes)}; name any of {', '.join(Changes.__annotations__)}")
    kinds = {"left_out": bool, "trim": tuple, "success": bool | None, "task": str}
    for name, value in changes.items():
        if not isinstance(value, kinds[name]):
            raise UserError(f"{where}: {name} is {value!r}, which it cannot be")
    if "trim" in changes:
        first, stop = changes["trim"]
        if type(first) is not int or type(stop) is not int or not 0 <= first < stop <= length:
            raise UserError(
                f"{where}: trim {first}:{stop} does not lie in its {length} steps. Keep at least one step: "
                f"0 <= FIRST < STOP <= {length}"
            )


def edited(episode: Episode, changes: Changes) -> Episode:
    """Return the episode with the changes applied."""
    episode = replace(episode, task=changes.get("task", episode.task), success=changes.get("success", episode.success))
    if "trim" not in changes:
        return episode
    kept = slice(*changes["trim"])
    final: dict[str, Any] = {}
    if kept.stop < len(episode):  # the observation after the last command that stays, if it has pictures of its own
        images = {camera: images[kept.stop] for camera, images in episode.images.items()}
        final = {"final_state": episode.state[kept.stop], "final_images": images}
        if not episode.extras.get(PICTURED, np.ones(len(episode)))[kept.stop]:
            final = {"final_state": None, "final_images": {}}
    return replace(episode.rows(kept), **final)


@dataclass(frozen=True)
class Entry:
    """One change in the log of an episode.

    Attributes:
        time: When, UTC, ISO 8601.
        user: By whom: a person as the system names them, or ``detector NAME``.
        new: Values after it.
        old: Values before it. A key of ``new`` that is not there was as recorded.
        undoes: Place in the log of the entry that this one undoes; None: it is no undo.
    """

    time: str
    user: str
    new: Changes
    old: Changes
    undoes: int | None = None


@dataclass(frozen=True)
class EditLog:
    """All edits of one episode, the oldest first, under the digest of the episode as it was recorded."""

    digest: str
    entries: tuple[Entry, ...] = ()

    @property
    def changes(self) -> Changes:
        """What the entries amount to."""
        values: dict[str, Any] = {}
        for entry in self.entries:
            values = {name: value for name, value in values.items() if name not in entry.old} | {**entry.new}
        return cast(Changes, values)

    def check(self, length: int, file: Path) -> None:
        """Raise DamagedError if an episode of ``length`` steps cannot have the changes that ``file`` holds."""
        try:
            if self.changes:
                check_changes(self.changes, length, str(file))
        except UserError as error:
            raise damaged(file, error) from error

    @property
    def labels(self) -> list[Entry]:
        """Entries that give the outcome and are not undone, the oldest first."""
        return [self.entries[place] for place in self._standing() if "success" in self.entries[place].new]

    @property
    def labeler(self) -> str:
        """User of the newest of the `labels`; empty: the outcome is as recorded."""
        labels = self.labels
        return labels[-1].user if labels else ""

    def changed(self, new: Changes, recorded: Changes, user: str = "") -> "EditLog":
        """Return the log with one more change; ``recorded`` are the values of the recording, as far as known."""
        before = {**recorded, **self.changes}
        old = cast(Changes, {name: before[name] for name in new if name in before})
        return self._with(new, old, user=user)

    def undone(self, where: str) -> "EditLog":
        """Return the log with the last change undone that is not undone yet. Raises UserError if there is none."""
        left = self._standing()
        if not left:
            raise UserError(f"{where} has no edit to undo")
        last = self.entries[left[-1]]
        return self._with(last.old, last.new, left[-1])

    def _standing(self) -> list[int]:
        """Return the places of the entries that are no undo and are not undone."""
        undone = {entry.undoes for entry in self.entries}
        return [place for place, entry in enumerate(self.entries) if entry.undoes is None and place not in undone]

    def _with(self, new: Changes, old: Changes, undoes: int | None = None, user: str = "") -> "EditLog":
        entry = Entry(now(), user or _user(), new, old, undoes)
        return replace(self, entries=(*self.entries, entry))


class EditFolder:
    """The edits of a store or a dataset: one file, ``spelled(NAME)``, for each edited episode.

    The folder need not exist.
    """

    def __init__(self, path: Path, spelled: Callable[[str], str] = str) -> None:
        self.path, self._spelled = path, spelled
        self._known: dict[str, tuple[FileStamp, EditLog]] = {}

    def names(self) -> set[str]:
        """Return the names of all edited episodes."""
        files = os.listdir(self.path) if self.path.is_dir() else []
        return {file.removesuffix(".json") for file in files if file.endswith(".json") and not file.startswith(".")}

    def file(self, name: str) -> Path:
        """Return the file of an edit, whether it exists or not."""
        return self.path / f"{self._spelled(name)}.json"

    def stamp(self, name: str) -> FileStamp | None:
        """Return a key that identifies the edit of an episode; None if there is none."""
        with contextlib.suppress(FileNotFoundError):
            return stamp_of_file(self.file(name))
        return None

    def read(self, name: str) -> EditLog | None:
        """Return the edits of an episode; None if there are none. Raises StoreError for a file that cannot be read."""
        stamp = self.stamp(name)
        if stamp is None:
            return None
        if name not in self._known or self._known[name][0] != stamp:
            self._known[name] = stamp, read_edits(self.file(name))
        return self._known[name][1]

    def write(self, name: str, log: EditLog) -> None:
        """Save the edits of an episode. They survive a crash when this returns. Raises OSError."""
        self.path.mkdir(exist_ok=True)
        fsync_path(self.path.parent)
        entries = [{key: value for key, value in vars(entry).items() if value is not None} for entry in log.entries]
        write_sealed(self.file(name), {"schema_version": _VERSION, "digest": log.digest, "log": entries})


class Recording(NamedTuple):
    """What an edit has to know of an episode as it was recorded: digest, number of steps and known values of `Changes`.

    ``where`` is the episode in words, for errors.
    """

    digest: str
    length: int
    values: Changes
    where: str


class Editable(abc.ABC):
    """Episodes that can be edited, by name. A store or a dataset says what it recorded, see `recording`.

    Attributes:
        edits: Folder of the edits.
        lock_folder: Folder whose lock an edit takes for itself.
    """

    edits: EditFolder
    lock_folder: Path

    @abc.abstractmethod
    def recording(self, name: str) -> Recording:
        """Return what was recorded. Raises UserError if there is no such episode."""

    def edit_log(self, name: str) -> EditLog:
        """Return all edits of an episode, with when and by whom; StoreError if the episode or its edit is damaged."""
        log = self.edits.read(name)
        if log is None:
            return EditLog("")
        found = self.recording(name)
        if log.digest != found.digest:
            return self._edits_of_another(name, found)
        log.check(found.length, self.edits.file(name))
        return log

    def changes(self, name: str) -> Changes:
        """Return what edits amount to, empty for none. Raises as `edit_log`."""
        return self.edit_log(name).changes

    def edit(self, name: str, by: str = "", after: str | None = None, **changes: Unpack[Changes]) -> bool:
        """Change how readers see an episode: leave it out, trim it, give another outcome or task sentence.

        The recording stays unchanged. The edit is a small file beside it, written atomically, with a log of all edits.
        When this returns, the edit survives a crash.

        Args:
            name: Of the episode.
            by: Who changes it; empty: the user of this process.
            after: Who must have given the present outcome (`EditLog.labeler`). Otherwise nothing changes. None: anyone.
            changes: New values; see `Changes`.

        Returns:
            Whether the episode was changed.

        Raises:
            UserError: For values that the episode cannot have.
            StoreError: If there is no such episode, it is damaged, or the disk is full.

        Example:
            >>> store.edit("round001-00003", trim=(10, 250), success=False)  # doctest: +SKIP
        """
        found = self.recording(name)
        check_changes(changes, found.length, found.where)

        def change(log: EditLog) -> EditLog | None:
            if after is not None and log.labeler != after:
                return None
            return replace(log, digest=found.digest).changed(changes, found.values, by)

        return self._change(name, change)

    def take_edits(self, name: str, log: EditLog) -> bool:
        """Bring the edits of an episode up to those of another copy of it; edits of its own stay.

        Returns:
            Whether the log now holds all of the other one. Raises as `edit`.
        """
        new, own = log.entries, self.edit_log(name).entries
        if new[: len(own)] == own != new:
            digest = self.recording(name).digest
            self._change(name, lambda found: replace(log, digest=digest) if found.entries == own else found)
            own = self.edit_log(name).entries
        return own[: len(new)] == new

    def undo(self, name: str) -> None:
        """Undo the last edit of an episode that is not undone yet; the log keeps both. Raises as `edit`."""
        where = self.recording(name).where
        self._change(name, lambda log: log.undone(where))

    def _change(self, name: str, change: Callable[[EditLog], EditLog | None]) -> bool:
        change(self.edit_log(name))  # refuses before a folder is made
        try:
            self.lock_folder.mkdir(exist_ok=True)
            with locked(self.lock_folder, exclusive=True):  # no other edit comes between reading a log and writing it
                log = change(self.edit_log(name))
                if log is not None:
                    self.edits.write(name, log)
                return log is not None
        except OSError as error:
            raise StoreError(f"cannot edit episode {name!r} in {self.lock_folder}: {error.strerror}") from error

    def _edits_of_another(self, name: str, found: Recording) -> EditLog:
        """Return what counts of the edits of another recording that had this name."""
        del name
        return EditLog(found.digest)


def now() -> str:
    """Return the time of an edit that is made now."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def read_edits(file: Path) -> EditLog:
    """Return what an edit holds.

    Raises:
        DamagedError: If it is not what was written.
        StoreError: If it cannot be read, or is of another schema version.
    """
    try:
        content = read_json(file)
        if content["schema_version"] != _VERSION:
            raise StoreError(
                f"{file} has schema version {content['schema_version']!r}, this program reads {_VERSION}; edit anew"
            )
        if not isinstance(content["digest"], str):
            raise ValueError("its digest is no text")
        check_seal(content)
        return EditLog(content["digest"], tuple(map(entry_of, content["log"])))
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError, UserError) as error:
        raise damaged(file, error) from error


def damaged(file: Path, error: Exception) -> DamagedError:
    """Return the error for an edit whose content is not what was written."""
    in_store = file.parent.name == "edits"
    remedy = f"`vla-rl doctor --repair {file.parent.parent}` sets it aside" if in_store else "remove it"
    return DamagedError(f"{file} is damaged ({error}); {remedy}, and the episode is as it was recorded")


def describe(changes: Changes) -> str:
    """Return changes as text: ``outcome failure, trim 10:40``."""
    named = {
        "left_out": {True: "left out", False: "taken in"}.get(changes.get("left_out", False), ""),
        "trim": "trim {}:{}".format(*changes.get("trim", (0, 0))),
        "success": f"outcome { {True: 'success', False: 'failure', None: 'unknown'}[changes.get('success')] }",
        "task": f"task {changes.get('task')!r}",
    }
    return ", ".join(named[name] for name in changes) or "as recorded"


def entry_of(raw: Mapping[str, Any]) -> Entry:
    """Return an entry from JSON data. Raises KeyError, TypeError, ValueError or UserError for anything else."""
    undoes = raw.get("undoes")
    if not (isinstance(raw["time"], str) and isinstance(raw["user"], str) and isinstance(undoes, int | None)):
        raise ValueError("an entry of its log is of another kind")
    return Entry(raw["time"], raw["user"], _changes(raw["new"]), _changes(raw["old"]), undoes)


def _changes(raw: Mapping[str, Any]) -> Changes:
    """Return changes from JSON data; that a trim fits is known with the episode."""
    plain = dict(raw)
    if "trim" in plain:
        plain["trim"] = (int(plain["trim"][0]), int(plain["trim"][1]))
    changes = cast(Changes, plain)
    if changes:
        check_changes(changes, plain.get("trim", (0, 1))[1], "an entry")
    return changes


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container without a name for the user
        return f"user {os.getuid()}"
