"""Progress of work that takes longer than two seconds: a bar on a terminal and in a notebook, nothing in a log file.

A process may have a watcher, which shows progress in its own way instead.
"""

import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Self

from tqdm import tqdm

logger = logging.getLogger(__name__)
_DELAY_S = 2.0
_NOTICE_DELAY_S = 1.0
Watcher = Callable[[str, int, int | None], None]
"""Gets name, done and total of the work at every step, in the thread that works: it must return at once."""
_watchers: list[Watcher] = []


class Progress:
    """Progress of ``total`` units of work (None: unknown), of which some may be ``done`` before. A context manager."""

    def __init__(self, name: str, total: int | None, unit: str, done: int = 0) -> None:
        self._name, self._total, self._done = name, total, done
        silent = True if _watchers else None  # None: unless the standard error is a terminal
        if not _watchers and "ipykernel" in sys.modules:
            silent = False  # a notebook is no terminal, and shows the bar
        self._bar = tqdm(total=total, initial=done, desc=name, unit=unit, leave=False, delay=_DELAY_S, disable=silent)
        self._tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()

    def advance(self, note: str = "") -> None:
        """Count one more as done, and show ``note`` behind the bar until there is another one."""
        self._done += 1
        if note:
            self._bar.set_postfix_str(note, refresh=False)
        self._bar.update()
        self._tell()

    def _tell(self) -> None:
        for watcher in _watchers:
            watcher(self._name, self._done, self._total)


def track[Item](items: Iterable[Item], name: str, unit: str, total: int | None = None) -> Iterator[Item]:
    """Return the items, while the progress through them is shown; ``total`` where they do not know their number."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with Progress(name, total, unit) as progress:
        for item in items:
            yield item
            progress.advance()


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Report all progress of this process to a watcher, and draw none."""
    _watchers.append(watcher)
    try:
        yield
    finally:
        _watchers.remove(watcher)


@contextmanager
def announced(work: str) -> Iterator[None]:
    """Log one line if the work takes longer than a second, such as "loading lerobot"; for work of unknown size."""
    notice = threading.Timer(_NOTICE_DELAY_S, logger.info, (work,))
    notice.daemon = True
    notice.start()
    try:
        yield
    finally:
        notice.cancel()
