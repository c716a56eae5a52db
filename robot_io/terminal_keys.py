"""The keyboard of the terminal as a switch for the person beside the robot; works over SSH, needs no display server.

A thread of its own waits for keys; the control thread reads `engaged`. The terminal is put back at the program's end.
"""

import atexit
import os
import sys
import termios
import threading
import tty
from collections.abc import Callable

from vla_rl.core.errors import UserError

_OUTCOMES: dict[str, bool | None] = {"s": True, "f": False, "r": None}


class TerminalKeys:
    """Space takes over and gives back; s, f and r end the attempt: success, failure, to be repeated.

    Args:
        end: told the outcome.
        terminal: its file descriptor; the standard input by default.

    Attributes:
        engaged: the person wants the commands.

    Raises:
        UserError: if there is no terminal.
    """

    def __init__(self, end: Callable[[bool | None], None], terminal: int | None = None) -> None:
        self._end = end
        self._terminal = sys.stdin.fileno() if terminal is None else terminal
        self.engaged = False
        if not os.isatty(self._terminal):
            raise UserError("taking over by the space bar needs a terminal: do not redirect the standard input")

    def start(self) -> None:
        """Listen until the program ends."""
        before = termios.tcgetattr(self._terminal)
        atexit.register(termios.tcsetattr, self._terminal, termios.TCSADRAIN, before)
        tty.setcbreak(self._terminal)
        threading.Thread(target=self._listen, name="keys", daemon=True).start()

    def _listen(self) -> None:
        while key := os.read(self._terminal, 1).decode(errors="replace"):
            if key == " ":
                self.engaged = not self.engaged
            elif key in _OUTCOMES:
                self._end(_OUTCOMES[key])
