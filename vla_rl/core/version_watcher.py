"""Newer versions of a policy, copied into a folder while the policy acts."""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

from vla_rl.core.files import Stamp, stamp_of

logger = logging.getLogger(__name__)


def versions(folder: Path) -> list[tuple[int, Path]]:
    """List the versions in a folder and their numbers, the newest first."""
    named = ((path.name.removeprefix("version_"), path) for path in folder.glob("version_*"))
    return sorted(((int(name), path) for name, path in named if name.isascii() and name.isdecimal()), reverse=True)


class VersionWatcher:
    """Takes in the newest version of a folder of ``version_NNNN`` folders that can be taken, in a thread of its own.

    A folder may be copied in any order of files (rsync between machines). A version that cannot be loaded is tried
    again when its files change. Other names, such as ``version_old``, are a person's own. A context manager; `look`
    does the same without the thread.

    Args:
        take: Takes a version in, or raises an exception for one that is damaged, half copied or unfit.
        newest: Number of the version that acts.
        period_s: Between looks.
        niceness: Of the thread; above 0 it has a lower priority than the others.

    Attributes:
        newest: Number of the newest version that was taken in.
        last_error: Why the last one was not taken; None: there was none.
    """

    def __init__(
        self, folder: Path, take: Callable[[Path], None], newest: int = -1, period_s: float = 1.0, niceness: int = 0
    ) -> None:
        self.newest = newest
        self.last_error: str | None = None
        self._folder, self._take, self._period_s, self._niceness = folder, take, period_s, niceness
        self._refused: dict[Path, Stamp] = {}  # version folder -> its files when it was found to be bad
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="policy folder", daemon=True)

    def look(self) -> None:
        """Take in the newest version that is newer than the one before and not known to be bad."""
        for number, folder in versions(self._folder):
            if number <= self.newest:
                return
            files = stamp_of(folder)
            if self._refused.get(folder) == files:
                continue
            try:
                self._take(folder)
            except Exception as error:
                self.refuse(folder, f"{type(error).__name__}: {error}", files)
            else:
                self.newest = number
                return

    def refuse(self, folder: Path, trouble: str, files: Stamp | None = None) -> None:
        """Leave a version out until its files change."""
        self._refused[folder] = files or stamp_of(folder)
        self.last_error = trouble
        logger.warning("policy %s is not used: %s", folder.name, trouble)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._thread.join()

    def _watch(self) -> None:
        if self._niceness:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)
        while not self._closed.wait(self._period_s):
            try:
                self.look()
            except Exception:  # the acting policy must not suffer from what is copied into the folder
                logger.exception("cannot look for newer policies in %s", self._folder)
