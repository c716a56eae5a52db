"""The space bar takes over, letters end the attempt: on a real pseudo-terminal."""

import os
import pty
import threading
import time

import pytest

from robot_io.terminal_keys import TerminalKeys, wait_for_enter
from vla_rl.core.errors import UserError

WITHIN_S = 60.0


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
        TerminalKeys(lambda outcome: None, reading).start()
    with pytest.raises(UserError, match="Enter cannot be pressed"):
        wait_for_enter(reading)


@pytest.mark.parametrize("listening", [False, True])
def test_only_an_enter_after_the_question_begins(listening: bool) -> None:
    master, terminal = pty.openpty()
    keys = TerminalKeys(lambda outcome: None, terminal)
    if listening:  # for the space bar: another thread reads the terminal
        keys.start()
    os.write(master, b"\n")  # pressed during the attempt before
    if keys._entered is not None:
        assert keys._entered.wait(WITHIN_S)
    waiting = threading.Thread(target=keys.wait_for_enter, daemon=True)
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    until_s = time.monotonic() + WITHIN_S
    while waiting.is_alive() and time.monotonic() < until_s:
        os.write(master, b"x\n")  # lost where it comes before the question
        waiting.join(0.05)
    assert not waiting.is_alive()


@pytest.mark.parametrize("question", ["wait_for_enter", "wait_for_outcome"])
@pytest.mark.parametrize("asked_first", [True, False])
def test_a_terminal_that_is_closed_answers_nothing_more(question: str, asked_first: bool) -> None:
    """As where a connection over SSH broke and the program goes on: it waited for ever, with the robot in its hands."""
    master, terminal = pty.openpty()
    keys = TerminalKeys(lambda outcome: None, terminal)
    keys.start()
    said: list[str] = []

    def ask() -> None:
        try:
            getattr(keys, question)()
        except UserError as error:
            said.append(str(error))

    asking = threading.Thread(target=ask, daemon=True)
    if asked_first:
        asking.start()
        time.sleep(0.05)
    os.close(master)
    time.sleep(0.05)
    if not asked_first:
        asking.start()
    asking.join(WITHIN_S)
    assert said == ["no key can be pressed any more: the terminal was closed"]
