"""A child dies with its parent, also with one that is gone before the child has said whose it is."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_WITHIN_S = 60.0
_FAMILY = """
import multiprocessing, os, sys, time
from pathlib import Path
from vla_rl.core.processes import belong_to_parent

def child(folder, early):
    if early:
        belong_to_parent()
    (folder / "child").write_text(str(os.getpid()))
    while not early and os.getppid() == multiprocessing.parent_process().pid:
        time.sleep(0.01)
    if not early:
        belong_to_parent()
    time.sleep(1.0)
    (folder / "alive").touch()

if __name__ == "__main__":
    arguments = (Path(sys.argv[1]), sys.argv[2] == "early")
    process = multiprocessing.get_context("spawn").Process(target=child, args=arguments)
    process.start()
    process.join()
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_child_dies_with_its_parent(tmp_path: Path, when: str) -> None:
    script = tmp_path / "family.py"
    script.write_text(_FAMILY)
    parent = subprocess.Popen([sys.executable, str(script), str(tmp_path), when])
    deadline_s = time.monotonic() + _WITHIN_S
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    child = int((tmp_path / "child").read_text())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    while _is_there(child):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    assert not (tmp_path / "alive").exists()


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
