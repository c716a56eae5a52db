"""Ctrl-C, SIGTERM and SIGHUP interrupt a process once: work that can be saved is saved first, then it ends."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from vla_rl.core.guard import AGAIN_S

STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed, the connection dropped
_first: tuple[int, float] | None = None  # the signal that first asked this process to end, and when


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM or SIGHUP."""


def default_stops() -> list[signal.Signals]:
    """The signals of `STOPS` that are neither ignored (``nohup``) nor handled in a way of their own."""
    return [each for each in STOPS if signal.getsignal(each) in (signal.SIG_DFL, signal.default_int_handler)]


def asked_to_end() -> int:
    """The exit code for the signal that has asked this process to end since `stops_on_signals` began; 0: none has."""
    return 0 if _first is None else 128 + (signal.SIGINT if _first[0] == signal.SIGINT else signal.SIGTERM)


def _repeats(number: int) -> bool:
    """Whether a signal repeats the request before. A terminal that is closed sends SIGHUP twice, its shell and the
    kernel each once: the second must not break into what the first one began.
    """
    global _first
    now_s = time.monotonic()
    if _first is None:
        _first = number, now_s
        return False
    return number == signal.SIGHUP or now_s - _first[1] < AGAIN_S


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
def stop_at_a_good_moment() -> Iterator[Callable[[], BaseException | None]]:
    """Inside, the first signal does not interrupt: the function that is yielded returns what to raise once all is
    saved, and None as long as no signal came. A second signal does interrupt. Only in the main thread.
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


def _forget() -> None:
    """In a process that was forked off: its signals are its own."""
    for number in STOPS:
        if getattr(signal.getsignal(number), "__module__", "") == __name__:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
