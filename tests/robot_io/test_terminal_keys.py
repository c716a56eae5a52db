"""The space bar takes over, letters end the attempt: on a real pseudo-terminal."""

import os
import pty
import time

import pytest

from robot_io.terminal_keys import TerminalKeys
from vla_rl.core.errors import UserError


def test_keys_of_a_terminal() -> None:
    master, terminal = pty.openpty()
    ended: list[bool | None] = []
    keys = TerminalKeys(ended.append, terminal)
    keys.start()
    os.write(master, b"x ")
    while not keys.engaged:
        time.sleep(0.001)
    os.write(master, b" sfr")
    while len(ended) < 3:
        time.sleep(0.001)
    assert ended == [True, False, None]
    assert not keys.engaged


def test_without_a_terminal_there_is_no_space_bar() -> None:
    reading, _ = os.pipe()
    with pytest.raises(UserError, match="needs a terminal"):
        TerminalKeys(lambda outcome: None, reading)
