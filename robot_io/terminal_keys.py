"""The keyboard of the terminal as a switch for the person beside the robot; works over SSH, needs no display server.

A thread of its own waits for keys; the control thread reads `engaged`, and waits for Enter between attempts. The
terminal is put back at the program's end.
"""

import atexit
import contextlib
import os
import queue
import re
import termios
import threading
import tty
from collections.abc import Callable
from typing import Any

from vla_rl.core.errors import UserError

STANDARD_INPUT = 0
_ARROWS = {"\x1b[A": "up", "\x1b[B": "down", "\x1b[C": "right", "\x1b[D": "left"}
_KEY = re.compile(r"\x1b\[[A-D]|.", re.DOTALL)
_CLOSED = "no key can be pressed any more: the terminal was closed"
_OUTCOMES: dict[str, bool | None] = {"s": True, "f": False, "r": None}


class TerminalKeys:
    """Space takes over and gives back; s, f and r end the attempt: success, failure, to be repeated; Enter begins one.

    Args:
        end: Called with the outcome.
        terminal: its file descriptor; the standard input by default.
        press: Called with every other key: its character, or ``left``, ``right``, ``up``, ``down``.

    Attributes:
        engaged: the person wants the commands.
    """

    def __init__(
        self,
        end: Callable[[bool | None], None],
        terminal: int = STANDARD_INPUT,
        press: Callable[[str], None] | None = None,
    ) -> None:
        self._end, self._press = end, press
        self._answers: queue.SimpleQueue[bool | None] | None = None
        self._terminal = terminal
        self.engaged = False
        self._entered: threading.Event | None = None
        self._closed = False

    def start(self) -> None:
        """Listen until the program ends; UserError if there is no terminal."""
        if not os.isatty(self._terminal):
            raise UserError("reading keys needs a terminal: do not redirect the standard input")
        self._entered = threading.Event()
        atexit.register(_put_back, self._terminal, termios.tcgetattr(self._terminal))
        tty.setcbreak(self._terminal)
        threading.Thread(target=self._listen, name="keys", daemon=True).start()

    def wait_for_enter(self) -> None:
        """Wait until a person presses Enter (`wait_for_enter`)."""
        if self._entered is None:
            wait_for_enter(self._terminal)
            return
        with contextlib.suppress(termios.error):  # it was closed just now
            termios.tcflush(self._terminal, termios.TCIFLUSH)
        self._entered.clear()
        if not self._closed:
            self._entered.wait()  # for the other thread, which reads the keys
        self._check_open()

    def wait_for_outcome(self) -> bool | None:
        """Return the next s, f or r from now on, as an answer: it ends no attempt.

        Raises:
            UserError: if there is no more of the terminal.
        """
        self._answers = queue.SimpleQueue()
        answer = None if self._closed else self._answers.get()
        self._answers = None
        self._check_open()
        return answer

    def _check_open(self) -> None:
        if self._closed:
            raise UserError(_CLOSED)

    def _listen(self) -> None:
        with contextlib.suppress(OSError):  # some systems end a terminal with an error
            while typed := os.read(self._terminal, 64).decode(errors="replace"):
                for key in _KEY.findall(typed):
                    self._take(_ARROWS.get(key, key))
        self._closed = True
        if self._entered is not None:
            self._entered.set()
        if (answers := self._answers) is not None:
            answers.put(None)

    def _take(self, key: str) -> None:
        if key == " ":
            self.engaged = not self.engaged
        elif key in _OUTCOMES:
            (self._end if self._answers is None else self._answers.put)(_OUTCOMES[key])
        elif key in ("\r", "\n") and self._entered is not None:
            self._entered.set()
        elif self._press is not None:
            self._press(key)


def _put_back(terminal: int, settings: list[Any]) -> None:
    with contextlib.suppress(termios.error):  # the terminal is gone
        termios.tcsetattr(terminal, termios.TCSADRAIN, settings)


def wait_for_enter(terminal: int = STANDARD_INPUT) -> None:
    """Return when the person presses Enter from now on; what was typed before does not count.

    Raises:
        UserError: if there is no terminal, or no more of it.
    """
    if not os.isatty(terminal):
        raise UserError("Enter cannot be pressed: the standard input is no terminal")
    termios.tcflush(terminal, termios.TCIFLUSH)
    while b"\n" not in (line := os.read(terminal, 1024)):
        if not line:
            raise UserError(_CLOSED)
