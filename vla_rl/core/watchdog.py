"""The watchdog: a small process that ends another one in time after a signal, and ends what the other one started.

C code that never returns, a library that swallows the interrupt, and ``kill -9`` cannot stop it. It runs as a script of
the standard library alone, started by `vla_rl.core.signals.ends_in_time`.

Standard input: one byte for each signal that reaches the watched process, its number, and `ROBOT`; closed at the end of
that process. Standard output: the number of the first signal, then the exit code with which the process must end now.
"""

import contextlib
import os
import select
import signal
import sys
import termios
import time
from collections.abc import Collection, Iterator

MARK = "VLA_RL_WATCHED"
"""Environment variable of every process that is started under a watchdog."""
ROBOT = 200
"""A robot is connected: only a second signal sets a deadline, and what the process started stays."""
WITHIN_S = 3.7
"""Time from the first signal to the forced end."""
AGAIN_S = 0.2
"""Signals that are closer together are one request: ``timeout`` signals the process and then its group."""
_EXIT_WITHIN_S = 0.3
_SWEEP_WITHIN_S = 0.5
_STDERR = 2


class Watch:
    """What the watchdog knows of the watched process: its id, its session, the signals that ask it to end.

    ``mark`` is the value of `MARK` in the environment of what the process starts.
    """

    def __init__(self, watched: int, session: int, mark: str, stops: Collection[int]) -> None:
        self._watched, self._session, self._entry = watched, session, f"{MARK}={mark}".encode()
        self._stops = stops
        self._terminal = termios.tcgetattr(_STDERR) if os.isatty(_STDERR) else None
        self._first_s: float | None = None
        self._deadline_s: float | None = None
        self._code, self._robot = 0, False

    def run(self) -> None:
        """Return when the watched process has ended, by itself or by force."""
        while self._deadline_s is None or self._deadline_s > time.monotonic():
            received = _receive(self._deadline_s)
            if received == b"":
                return self._end_started(forked=False)
            for byte in received or b"":
                self._take(byte)
        return self._end()

    def _take(self, byte: int) -> None:
        now_s = time.monotonic()
        if byte == ROBOT:
            self._robot, self._deadline_s = True, None
        elif byte not in self._stops:
            return
        elif self._first_s is None:
            self._first_s = now_s
            self._code = 128 + (signal.SIGINT if byte == signal.SIGINT else signal.SIGTERM)
            self._deadline_s = None if self._robot else now_s + WITHIN_S
            _send(byte)
        elif byte != signal.SIGHUP and now_s - self._first_s >= AGAIN_S:  # a closed terminal sends SIGHUP twice
            self._deadline_s = now_s + (WITHIN_S if self._robot else 0.0)

    def _end(self) -> None:
        """End the watched process by force. What it started goes first, so that nothing outlives it."""
        self._end_started(forked=True)
        if self._terminal is not None:
            with contextlib.suppress(termios.error):
                termios.tcsetattr(_STDERR, termios.TCSANOW, self._terminal)
                os.write(_STDERR, b"\x1b[?25h")  # the cursor, which a panel hides
        _send(self._code)
        until_s = time.monotonic() + _EXIT_WITHIN_S
        while received := _receive(until_s):  # empty: it has ended; None: it has not
            pass
        if received is None and os.getppid() == self._watched:
            os.kill(self._watched, signal.SIGKILL)
            with contextlib.suppress(OSError):
                os.write(_STDERR, b"process %d did not end by itself and was killed\n" % self._watched)
        self._end_started(forked=False)

    def _end_started(self, forked: bool) -> None:
        """Kill what the watched process started, and what that started.

        ``forked``: also descendants without the mark. A session of its own marks what is meant to stay (a browser, a
        viewer). The tracker of multiprocessing ends by itself when it has cleaned up.
        """
        until_s = time.monotonic() + _SWEEP_WITHIN_S
        while not self._robot and (found := list(self._started(forked))) and time.monotonic() < until_s:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _started(self, forked: bool) -> Iterator[int]:
        parents: dict[int, int] = {}
        marked: set[int] = set()
        for pid in (int(name) for name in os.listdir("/proc") if name.isdecimal()):
            with contextlib.suppress(OSError):
                state, parent, _, session = _read(pid, "stat").rpartition(b")")[2].split()[:4]
                if int(session) != self._session or state == b"Z" or b"resource_tracker" in _read(pid, "cmdline"):
                    continue
                parents[pid] = int(parent)
                if self._entry in _read(pid, "environ").split(b"\0"):
                    marked.add(pid)
        for pid in parents:
            line = [pid]
            while (above := parents.get(line[-1])) is not None and above not in line:
                line.append(above)
            if pid != self._watched and (pid in marked or (forked and self._watched in line)):
                yield pid


def _receive(until_s: float | None) -> bytes | None:
    """Return what has come: empty at the end, None if nothing came in time."""
    left_s = None if until_s is None else max(until_s - time.monotonic(), 0.0)
    return os.read(0, 512) if select.select([0], [], [], left_s)[0] else None


def _send(byte: int) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, bytes([byte]))


def _read(pid: int, name: str) -> bytes:
    with open(f"/proc/{pid}/{name}", "rb") as file:
        return file.read()


if __name__ == "__main__":
    Watch(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], [int(number) for number in sys.argv[4:]]).run()
