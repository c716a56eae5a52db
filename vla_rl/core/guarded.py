"""A guarded process ends in time after a signal, whatever it does, and nothing that it started outlives it.

`vla_rl.core.guard` is the other side.
"""

import atexit
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import IO, cast

from vla_rl.core import guard
from vla_rl.core.stopping import asked_to_end, default_stops

_ANNOUNCED_WITHIN_S = 1.0
_current: "_Guard | None" = None


@contextlib.contextmanager
def guarded(program: str, work: str, last: bool = False) -> Iterator[None]:
    """Inside, the first signal is announced and the process ends within 5 s of it; a second signal ends it at once.
    Only in the main thread, around `vla_rl.core.stopping.stops_on_signals`, and once at a time in a process.

    Args:
        program: name in front of the announcement.
        work: what is being stopped.
        last: the process ends after this; after a signal it is guarded to its very end.
    """
    global _current
    if threading.current_thread() is not threading.main_thread() or _current is not None:
        yield
        return
    _current = _Guard(program, work)
    if last:
        atexit.register(_end_at_exit)  # now, to be called after all others
    try:
        yield
    finally:
        if asked_to_end():
            _current.announced.wait(_ANNOUNCED_WITHIN_S)  # its line comes before the last one of the process
        if last and asked_to_end():
            for number in _current.stops:
                signal.signal(number, _leave_to_guard)
        else:
            _end()


def continue_with(*words: str) -> None:
    """Set the command that continues the work of this process, for the announcement."""
    if _current is not None:
        _current.hint = f", continue with: {shlex.join(words)}"


def robot_is_connected() -> None:
    """Keep the guard from ending this process by force after one signal: a robot has to be brought to rest first."""
    if _current is not None:
        _current.has_robot()


class _Guard:
    """The guard process of this process, and a thread that does what it says."""

    def __init__(self, program: str, work: str) -> None:
        self._program, self._work, self.hint = program, work, ""
        self.announced, self._robot, self.stops = threading.Event(), False, default_stops()
        os.environ[guard.MARK] = f"{os.getpid()}.{time.monotonic_ns()}"
        arguments = (os.getpid(), os.getsid(0), os.environ[guard.MARK], *map(int, self.stops))
        command, pipe = [sys.executable, "-I", "-S", guard.__file__, *map(str, arguments)], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True)
        self._tell, self._told = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        threading.Thread(target=self._obey, name="guard", daemon=True).start()
        os.set_blocking(self._tell.fileno(), False)
        signal.set_wakeup_fd(self._tell.fileno(), warn_on_full_buffer=False)  # C writes to it, whatever Python does

    def has_robot(self) -> None:
        """See `robot_is_connected`."""
        self._robot = True
        self._tell.write(bytes([guard.ROBOT]))

    def end(self) -> None:
        """Return when the guard has ended; after a signal, when it has ended what this process started."""
        signal.set_wakeup_fd(-1)
        os.environ.pop(guard.MARK, None)
        with self._process:
            if not asked_to_end():
                self._process.kill()

    def forget(self) -> None:
        """In a process that was forked off: the guard is another one's."""
        signal.set_wakeup_fd(-1)
        self._tell.close()
        self._told.close()
        self._process.returncode = 0  # it is the child of another process

    def _obey(self) -> None:
        """Announce the first signal, and end the process when the guard says so, also while C code blocks it."""
        with contextlib.suppress(OSError, ValueError):  # the terminal may be what is gone
            if not (number := self._told.read(1)):
                return
            how = ("once the robot is at rest", "within 5 s") if self._robot else ("within 5 s", "at once")
            line = f"{signal.Signals(number[0]).name}: {self._work} ends {how[0]}, after a second signal {how[1]}"
            line = f"{self._program}: {line}; what is saved is safe{self.hint}"
            print("\n" * sys.stderr.isatty() + line, file=sys.stderr, flush=True)
        self.announced.set()
        with contextlib.suppress(OSError, ValueError):
            if code := self._told.read(1):
                self._process.kill()
                self._process.wait()
                os._exit(code[0])


def _leave_to_guard(*_: object) -> None:
    """C code has told the guard, which ends the process at once."""


def _end() -> None:
    global _current
    if _current is not None:
        ended, _current = _current, None
        ended.end()


def _end_at_exit() -> None:
    """After a signal, leave at once: what Python and C libraries tear down from here on takes seconds at times."""
    if _current is not None:
        _end()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(asked_to_end())


def _forget() -> None:
    global _current
    if _current is not None:
        forgotten, _current = _current, None
        forgotten.forget()


os.register_at_fork(after_in_child=_forget)
