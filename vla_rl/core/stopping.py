"""SIGTERM and SIGHUP are a stop like Ctrl-C: work that can be saved is saved first, then the process ends."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

_ENDS = (signal.SIGTERM, signal.SIGHUP)  # SIGHUP: the terminal was closed, the connection dropped


class Terminated(KeyboardInterrupt):
    """The process was asked to end by SIGTERM or SIGHUP."""


def _terminate(*_: object) -> None:
    _ends_once()
    raise Terminated


def _ends_once() -> None:
    """A terminal that is closed sends SIGHUP twice, its shell and the kernel each once: the second one must not break
    into what the first one began.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextlib.contextmanager
def stops_on_sigterm() -> Iterator[None]:
    """Inside, SIGTERM and SIGHUP raise `Terminated`, unless somebody handles or ignores them; in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    ours = [each for each in _ENDS if signal.getsignal(each) == signal.SIG_DFL]
    for each in ours:
        signal.signal(each, _terminate)
    try:
        yield
    finally:
        for each in ours:
            signal.signal(each, signal.SIG_DFL)


@contextlib.contextmanager
def stop_at_a_good_moment() -> Iterator[Callable[[], BaseException | None]]:
    """Inside, the first SIGINT or SIGTERM does not interrupt: what is given says what to raise once all is saved, None
    as long as nothing was asked. A second signal does interrupt. Only in the main thread; elsewhere nothing changes.
    """
    asked: list[BaseException] = []
    before: dict[signal.Signals, object] = {}

    def note(number: int, _: FrameType | None) -> None:
        asked.append(Terminated() if number in _ENDS else KeyboardInterrupt())
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]  # what `getsignal` gave
        if number in _ENDS:
            _ends_once()

    if threading.current_thread() is threading.main_thread():
        for each in (signal.SIGINT, *_ENDS):
            if callable(signal.getsignal(each)):  # ignored, or ending the process at once, it stays
                before[each] = signal.signal(each, note)
    try:
        yield lambda: asked[0] if asked else None
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)  # type: ignore[arg-type]  # what `getsignal` gave
