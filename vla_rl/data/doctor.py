"""Finds what is wrong with an episode store, and mends it. Nothing that was saved is ever deleted.

Threading law: both functions may run while others add and read. Repairing takes the store's lock for itself, so that
writers wait until it is done.
"""

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from vla_rl.core.errors import DamagedError, StoreError
from vla_rl.core.files import fsync_path, locked
from vla_rl.core.progress import track
from vla_rl.data.edits import read_edits
from vla_rl.data.episode_file import SUFFIX, verify_file
from vla_rl.data.episode_header import EpisodeHeader, is_episode_id
from vla_rl.data.store import TEMPORARY_SUFFIX, check_settings, no_store_at, write_settings


class Defect(StrEnum):
    """What can be wrong."""

    LEFTOVER = "leftover"  # a temporary file of a writer that died
    DAMAGED = "damaged"  # an episode or an edit whose content is not what was written
    SETTINGS = "settings"  # store.json is missing or damaged
    UNREADABLE = "unreadable"  # an episode of another schema version, or one that the system does not let us read
    FOREIGN = "foreign"  # a file that is not an episode, or an edit of none; readers ignore it


_REMEDIES = {
    Defect.LEFTOVER: "remove it",
    Defect.DAMAGED: "move it to quarantine/",
    Defect.SETTINGS: "write it anew",
    Defect.UNREADABLE: "none: it stays unchanged",
    Defect.FOREIGN: "none: it stays unchanged",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """A file that is wrong, in which way, and exactly why."""

    defect: Defect
    file: Path
    detail: str

    @property
    def remedy(self) -> str:
        """What `repair` does about it, or did."""
        return _REMEDIES[self.defect]


def diagnose(store: Path) -> list[Finding]:
    """Check every file of a store: read it and recompute the digests. Changes nothing; StoreError without a store."""
    folder = Path(store)
    episodes, edits = folder / "episodes", [place for place in [folder / "edits"] if place.is_dir()]
    if not episodes.is_dir() or (episodes / "episodes").is_dir():  # nothing at all, or a run folder around a store
        raise no_store_at(folder)
    findings = []
    try:
        check_settings(folder)
    except StoreError as error:
        findings.append(_unread(folder / "store.json", error, Defect.SETTINGS))
    try:
        with _no_writer(folder):  # every temporary file is a dead writer's
            leftovers = [
                file for place in (folder, episodes, *edits) for file in place.iterdir() if _is_temporary(file)
            ]
    except OSError as error:
        raise StoreError(f"cannot check {folder}: {error.strerror or error}") from error
    findings += [Finding(Defect.LEFTOVER, file, "a writer died before it had finished") for file in sorted(leftovers)]
    headers: dict[str, EpisodeHeader] = {}
    others = sorted(file for file in episodes.iterdir() if not _is_temporary(file))
    for file in track(others, "checking episodes", "episode"):
        findings += _check_episode(file, headers)
    for file in sorted(file for place in edits for file in place.iterdir() if not _is_temporary(file)):
        findings += _check_edit(file, headers)
    return findings


def repair(store: Path) -> list[Finding]:
    """Mend what `diagnose` finds, where its remedy says so, and return it.

    Raises:
        StoreError: If there is no store, or it cannot be changed.
    """
    folder = Path(store)
    findings = diagnose(folder)
    try:
        with locked(folder, exclusive=True):
            for finding in findings:
                if finding.defect is Defect.LEFTOVER:
                    finding.file.unlink(missing_ok=True)
                elif finding.defect in (Defect.DAMAGED, Defect.SETTINGS):
                    _quarantine(folder, finding.file)
                if finding.defect is Defect.SETTINGS:
                    write_settings(folder)
    except OSError as error:
        raise StoreError(f"cannot repair {folder}: {error.strerror or error}") from error
    return findings


def format_findings(findings: Sequence[Finding]) -> str:
    """Return the findings as a table for people."""
    if not findings:
        return "nothing is wrong"
    rows = [("WHAT", "FILE", "REMEDY", "DETAIL")]
    rows += [(finding.defect, finding.file.name, finding.remedy, finding.detail) for finding in findings]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join("  ".join([*map(str.ljust, row[:3], widths), row[3]]) for row in rows)


@contextlib.contextmanager
def _no_writer(folder: Path) -> Iterator[None]:
    """Hold a store's lock, where it can be had: what may not be written to, such as a backup, has no writers."""
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, exclusive=True))
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise
        yield


def _check_episode(file: Path, headers: dict[str, EpisodeHeader]) -> list[Finding]:
    """Return what is wrong with an episode; the header of a whole one is added to ``headers``."""
    if not file.name.endswith(SUFFIX) or not is_episode_id(file.name.removesuffix(SUFFIX)):
        return [Finding(Defect.FOREIGN, file, "not the name of an episode")]
    try:
        headers[file.name.removesuffix(SUFFIX)] = verify_file(file)
    except StoreError as error:
        return [_unread(file, error)] if isinstance(error, DamagedError) or file.exists() else []
    return []


def _check_edit(file: Path, headers: dict[str, EpisodeHeader]) -> list[Finding]:
    header = headers.get(file.name.removesuffix(".json"))
    try:
        log = read_edits(file)
        if header is None or log.digest != header.digest:
            return [Finding(Defect.FOREIGN, file, "the edit of an episode that is not here")]
        log.check(header.length, file)
    except StoreError as error:
        return [_unread(file, error)]
    return []


def _unread(file: Path, error: StoreError, damaged: Defect = Defect.DAMAGED) -> Finding:
    defect = damaged if isinstance(error, DamagedError) else Defect.UNREADABLE
    return Finding(defect, file, " ".join(str(error.__cause__ or error).split()))


def _is_temporary(file: Path) -> bool:
    return file.name.startswith(".") and file.name.endswith(TEMPORARY_SUFFIX)


def _quarantine(folder: Path, file: Path) -> None:
    """Move a file aside under a name that is free there."""
    quarantine = folder / "quarantine"
    quarantine.mkdir(exist_ok=True)
    if not file.exists():
        return
    target, number = quarantine / file.name, 1
    while target.exists():
        target, number = quarantine / f"{file.name}.{number}", number + 1
    os.rename(file, target)
    fsync_path(quarantine)
    fsync_path(file.parent)
