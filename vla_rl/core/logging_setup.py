"""Output of other people's code (prints, warnings, log records): shown once, on stderr, apart from our own lines."""

import contextlib
import functools
import logging
import multiprocessing
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from vla_rl.core.errors import in_library
from vla_rl.core.registry import OUR_PACKAGES, declared_packages

_COLOR = re.compile(r"\x1b\[[0-9;]*m")


class _Once:
    """A text stream that passes on every line once; none in a child process, whose parent shows the same lines.

    A log handler that another package makes while its output is redirected keeps this stream.
    """

    def __init__(self) -> None:
        self.target: TextIO | None = None
        self._seen: set[str] = set()
        self._rest = ""

    def write(self, text: str) -> int:
        *lines, self._rest = (self._rest + text).split("\n")
        for line in map(str.rstrip, lines):
            if line and line not in self._seen and multiprocessing.parent_process() is None:
                with contextlib.suppress(OSError, ValueError):  # a closed terminal does not stop an environment
                    print(line, file=self.target, flush=True)
            self._seen.add(line)
        return len(text)

    def flush(self) -> None:
        """Nothing to do: lines are passed on at once, and a part of a line waits for its end."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self.target, name)


_once = _Once()


@contextlib.contextmanager
def library_output_once() -> Iterator[None]:
    """Show what other people's code prints in here, on stdout or stderr, once per process and on stderr.

    What the libraries below Python write is not seen here.
    """
    if sys.stderr is _once:
        yield
        return
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")  # in child processes too
    _once.target = sys.stderr
    stream: Any = _once
    try:
        with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
            yield
    finally:
        _once.write("\n")


def log_to_stderr(pattern: str = "%(message)s") -> None:
    """Send log records to stderr: ours and those of a user's own code from INFO on. Of an installed package, the first
    of every place from WARNING on. A warning becomes one line, once; so does an error that Python ignores in a
    destructor of an installed package.
    """
    if logging.getLogger().handlers:
        return
    logging.basicConfig(level=logging.INFO, format=pattern, stream=sys.stderr)
    places: set[tuple[str, int]] = set()
    logging.getLogger().handlers[0].addFilter(lambda record: _is_shown(record, places))
    warnings.showwarning = functools.partial(_show_warning, places)
    sys.unraisablehook = functools.partial(_show_ignored, places)


def _is_shown(record: logging.LogRecord, seen: set[tuple[str, int]]) -> bool:
    package = record.name.partition(".")[0]
    if package in (*OUR_PACKAGES, "__main__") or not in_library(Path(record.pathname)) or package in _declared():
        return True
    if record.levelno < logging.WARNING or logging.getLogger(package).handlers:  # its own handlers have shown it
        return False
    return _is_new(seen, record.pathname, record.lineno)


def _show_warning(seen: set[tuple[str, int]], message: Any, category: type, file: str, line: int, *_: Any) -> None:
    if _is_new(seen, file, line):
        print(f"{category.__name__}: {_one_line(message)} ({file}:{line})", file=sys.stderr)


def _show_ignored(seen: set[tuple[str, int]], ignored: Any) -> None:
    trace = ignored.exc_traceback
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    file = "" if trace is None else trace.tb_frame.f_code.co_filename
    if trace is None or not in_library(Path(file)):
        sys.__unraisablehook__(ignored)
    elif _is_new(seen, file, trace.tb_lineno):
        what = f"{type(ignored.exc_value).__name__}: {_one_line(ignored.exc_value)}"
        print(f"ignored in {ignored.object!r}: {what}", file=sys.stderr)


def _is_new(seen: set[tuple[str, int]], file: str, line: int) -> bool:
    is_new = (file, line) not in seen
    seen.add((file, line))
    return is_new


def _one_line(message: object) -> str:
    return " ".join(_COLOR.sub("", str(message)).split())


@functools.cache
def _declared() -> set[str]:
    return declared_packages()
