"""A child dies with its parent, leaves the signals of terminals to it, and ends in time."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vla_rl.core.processes import learner_threads

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
    time.sleep(10.0)
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


_SIGNALS = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
from vla_rl.core.processes import belong_to_parent, end_processes, starting_children

if __name__ != "__main__":  # in the child, as libraries that take long to import
    Path(sys.argv[1], "imports").touch()
    time.sleep(1.0)

def child(stubborn):
    belong_to_parent()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert {signal.getsignal(number) for number in (signal.SIGINT, signal.SIGHUP)} == {signal.SIG_IGN}
    assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(sys.argv[1], f"lives-{stubborn}").touch()
    time.sleep(60)

if __name__ == "__main__":
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    processes = [multiprocessing.get_context("spawn").Process(target=child, args=(name,)) for name in (True, False)]
    with starting_children():
        for process in processes:
            process.start()
    while len(list(Path(sys.argv[1]).glob("lives-*"))) < 2 and all(process.is_alive() for process in processes):
        time.sleep(0.01)
    started_s = time.monotonic()
    end_processes(processes, 0.5)
    assert [process.exitcode for process in processes] == [-signal.SIGKILL, -signal.SIGTERM]
    assert 0.4 < time.monotonic() - started_s < 10
"""


def test_a_child_has_signals_of_its_own_and_leaves_those_of_the_terminal_to_its_parent(tmp_path: Path) -> None:
    """Also while it imports, and where its parent ignores SIGTERM."""
    script = tmp_path / "family.py"
    script.write_text(_SIGNALS)
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as parent:
        while not (tmp_path / "imports").exists() and parent.poll() is None:
            time.sleep(0.02)
        os.killpg(parent.pid, signal.SIGINT)
        assert parent.communicate()[1] == ""
    assert parent.returncode == 0


@pytest.mark.parametrize(
    ("cores", "asked", "others", "threads"),
    [(4, 3, 2, 3), (4, 0, 0, 4), (4, 0, 3, 1), (2, 0, 5, 1), (64, 0, 0, 8), (64, 12, 0, 12), (1, 2, 0, 1)],
)
def test_a_learner_has_the_cores_that_are_left_or_what_was_asked_for(monkeypatch, cores, asked, others, threads):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(cores)))
    assert learner_threads(asked, others) == threads
