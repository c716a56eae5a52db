"""Progress: a bar on a terminal, nothing in a log, and a watcher who is told every step."""

import os
import pty
import subprocess
import sys
import termios
import time

import pytest

from vla_rl.core import progress
from vla_rl.core.progress import Progress, announced, track, watched_by

SLOW = """
import time
from vla_rl.core import progress
progress._DELAY_S = 0.1
for _ in progress.track(range(5), "work", "step"):
    time.sleep(0.1)
"""


def test_a_watcher_is_told_of_every_step_until_it_leaves() -> None:
    told: list[tuple[str, int, int | None]] = []
    with watched_by(lambda *step: told.append(step)):
        assert list(track([7, 8], "work", "step")) == [7, 8]
        with Progress("more", 5, "step", done=3) as progress:
            progress.advance("loss 0.1")
    list(track([1], "unseen", "step"))
    assert told == [("work", 0, 2), ("work", 1, 2), ("work", 2, 2), ("more", 3, 5), ("more", 4, 5)]


def test_only_work_that_lasts_is_announced(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress, "_NOTICE_DELAY_S", 0.05)
    caplog.set_level("INFO")
    with announced("quick work"):
        pass
    with announced("slow work"):
        deadline = time.monotonic() + 10
        while not caplog.messages and time.monotonic() < deadline:
            time.sleep(0.01)
    assert caplog.messages == ["slow work"]


def test_a_notebook_shows_a_bar() -> None:
    code = f"import sys, types; sys.modules['ipykernel'] = types.ModuleType('ipykernel')\n{SLOW}"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert b"work" in shown.stderr


def test_a_log_file_holds_no_bar_and_a_terminal_does() -> None:
    logged = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, check=True)
    assert logged.stderr == b""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    subprocess.run([sys.executable, "-c", SLOW], stderr=theirs, check=True)
    assert b"work" in os.read(ours, 65536)
    os.close(theirs)
    os.close(ours)
