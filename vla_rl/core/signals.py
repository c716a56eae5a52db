"""Signals end a process once, in time, and leave nothing behind.

Ctrl-C, SIGTERM and SIGHUP interrupt a process once: work that can be saved is saved first, then it ends. A second
process, `vla_rl.core.watchdog`, ends it in time whatever it does, and ends what it started.
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
from collections.abc import Callable, Iterator
from types import FrameType
from typing import IO, cast

from vla_rl.core import watchdog

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed, the connection dropped
_ANNOUNCED_WITHIN_S = 1.0
_first: tuple[int, float] | None = None  # the signal that first asked this process to end, and when
_current: "_Watchdog | None" = None


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM or SIGHUP."""


def default_stops() -> list[signal.Signals]:
    """Return the signals of `STOPS` that are neither ignored (``nohup``) nor handled in a way of their own."""
    return [each for each in STOPS if signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler)]


def exit_code_of_signal() -> int:
    """Return the exit code for the signal that first came since `stops_on_signals` began; 0: none has come."""
    return 0 if _first is None else 128 + (signal.SIGINT if _first[0] == signal.SIGINT else signal.SIGTERM)


def _repeats(number: int) -> bool:
    """Return whether a signal repeats the request before. A closed terminal sends SIGHUP twice, by its shell and by the
    kernel: the second must not break into what the first one began.
    """
    global _first
    now_s = time.monotonic()
    if _first is None:
        _first = number, now_s
        return False
    return number == signal.SIGHUP or now_s - _first[1] < watchdog.AGAIN_S


def _kind(number: int) -> KeyboardInterrupt:
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated()


def _interrupt(number: int, _: FrameType | None) -> None:
    if not _repeats(number):
        raise _kind(number)


@contextlib.contextmanager
def stops_on_signals() -> Iterator[None]:
    """Inside, SIGINT raises KeyboardInterrupt, SIGTERM and SIGHUP raise `Terminated`, each request once, unless they
    are ignored or have a handler. Only in the main thread.
    """
    global _first
    if threading.current_thread() is not threading.main_thread() or _interrupt in map(signal.getsignal, STOPS):
        yield
        return
    _first = None
    before = {number: signal.signal(number, _interrupt) for number in default_stops()}
    try:
        yield
    except KeyboardInterrupt as error:
        if _first is not None and not isinstance(error, Terminated):  # some libraries raise one of their own instead
            raise _kind(_first[0]) from error
        raise
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def deferred_signals() -> Iterator[Callable[[], BaseException | None]]:
    """Delay the first signal: the yielded function returns what to raise once all is saved, and None as long as no
    signal came. A second signal does interrupt. Only in the main thread.
    """
    asked: list[BaseException] = []
    before: dict[signal.Signals, object] = {}

    def note(number: int, _: FrameType | None) -> None:
        repeats = _repeats(number)
        if not asked:
            asked.append(_kind(number))
        elif not repeats:
            raise asked[0]

    if threading.current_thread() is threading.main_thread():
        for each in STOPS:
            if callable(signal.getsignal(each)):  # ignored, or ending the process at once, it stays
                before[each] = signal.signal(each, note)
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]  # what `getsignal` gave


@contextlib.contextmanager
def ends_in_time(program: str, work: str, last: bool = False) -> Iterator[None]:
    """Inside, the first signal is announced and the process ends within 5 s of it; a second signal ends it at once.

    The announcement names ``work`` of ``program``. With ``last`` the process is watched to its very end. Only in the
    main thread, around `stops_on_signals`, and once at a time in a process.
    """
    global _current
    if threading.current_thread() is not threading.main_thread() or _current is not None:
        yield
        return
    _current = _Watchdog(program, work)
    if last:
        atexit.register(_end_at_exit)  # now, to be called after all others
    try:
        yield
    finally:
        if exit_code_of_signal():
            _current.announced.wait(_ANNOUNCED_WITHIN_S)  # its line comes before the last one of the process
        if last and exit_code_of_signal():
            for number in _current.stops:
                signal.signal(number, lambda *_: None)  # the watchdog ends the process, on a notice from C code
        else:
            _end()


def continue_with(*words: str) -> None:
    """Set the command that continues the work of this process, for the announcement."""
    if _current is not None:
        _current.hint = f", continue with: {shlex.join(words)}"


def robot_is_connected() -> None:
    """Keep the watchdog from ending this process by force after one signal: a robot has to be brought to rest first."""
    if _current is not None:
        _current.has_robot()


class _Watchdog:
    """The watchdog of this process, and a thread that does what it says."""

    def __init__(self, program: str, work: str) -> None:
        self._program, self._work, self.hint = program, work, ""
        self.announced, self._robot, self.stops = threading.Event(), False, default_stops()
        os.environ[watchdog.MARK] = f"{os.getpid()}.{time.monotonic_ns()}"
        arguments = (os.getpid(), os.getsid(0), os.environ[watchdog.MARK], *map(int, self.stops))
        command, pipe = [sys.executable, "-I", "-S", watchdog.__file__, *map(str, arguments)], subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, start_new_session=True)
        self._tell, self._told = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        threading.Thread(target=self._obey, name="watchdog", daemon=True).start()
        os.set_blocking(self._tell.fileno(), False)
        signal.set_wakeup_fd(self._tell.fileno(), warn_on_full_buffer=False)  # C writes to it, whatever Python does

    def has_robot(self) -> None:
        self._robot = True
        self._tell.write(bytes([watchdog.ROBOT]))

    def end(self) -> None:
        """Return when the watchdog has ended; after a signal, when it has ended what this process started."""
        signal.set_wakeup_fd(-1)
        os.environ.pop(watchdog.MARK, None)
        with self._process:
            if not exit_code_of_signal():
                self._process.kill()

    def forget(self) -> None:
        """In a process that was forked off: the guard is another one's."""
        signal.set_wakeup_fd(-1)
        self._tell.close()
        self._told.close()
        self._process.returncode = 0  # it is the child of another process

    def _obey(self) -> None:
        """Announce the first signal, and end the process when the watchdog says so, also while C code blocks it."""
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
        os._exit(exit_code_of_signal())


def _forget() -> None:
    """In a process that was forked off: its signals are its own, and the watchdog is another one's."""
    global _current
    for number in STOPS:
        if getattr(signal.getsignal(number), "__module__", "") == __name__:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if _current is not None:
        forgotten, _current = _current, None
        forgotten.forget()


os.register_at_fork(after_in_child=_forget)
