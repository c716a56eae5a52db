"""A signal ends a process in time, a robot is brought to rest first, and what was recorded is kept."""

import os
import pty
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from benchmarks.interruption import MARK, pids_of
from tests.fakes.ros2_scripts import ros_or_skip
from vla_rl.core.signals import Terminated, deferred_signals, stops_on_signals

ROLLOUT = """
import sys
from pathlib import Path
import numpy as np
from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from vla_rl.cli.main import say_errors
from vla_rl.core.clock import MonotonicClock
from vla_rl.core.types import Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.sources import Demonstrator
from vla_rl.acting.attempt import Attempts

out = Path(sys.argv[1])
robot = MockRobot(MockRobotConfig(joints=2, control_hz=20.0, duration_s=20.0), clock=MonotonicClock())
stop = robot.stop
robot.stop = lambda: (stop(), (out / "stopped").touch())
still = np.zeros(2, np.float32)
gate = SafetyGate(GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2), 20.0)
attempts = Attempts(robot, gate, Origin.REAL, "mock")
store = EpisodeStore(out / "store")

def act():
    (out / "acts").touch()
    return still, still

def run():
    attempts.run(Demonstrator(act), "attempt-000000", 0, -1, keep=store.add)
    return 0

sys.exit(say_errors("vla-rl", "rollout", run))
"""

NODE = """
import sys
from pathlib import Path
import rclpy
from robot_io.ros2.spinning import run_ros

out = Path(sys.argv[1])

class Node:
    def __init__(self):
        self.node = rclpy.create_node("n")
        (out / "acts").touch()
    def __getattr__(self, name):
        return getattr(self.node, name)
    def close(self):
        (out / "stopped").touch()

run_ros(Node, "n", [])
"""


WORK = """
import collections, ctypes, itertools, os, signal, subprocess, sys, time, tty, warnings
from pathlib import Path
from vla_rl.cli.main import say_errors
from vla_rl.core.signals import continue_with, robot_is_connected

out, kind = Path(sys.argv[1]), sys.argv[2]

def swallows():
    while True:
        try:
            time.sleep(100)
        except KeyboardInterrupt:
            pass

def converts():
    try:
        time.sleep(100)
    except KeyboardInterrupt:
        raise KeyboardInterrupt

def has_robot():
    robot_is_connected()
    swallows()

def holds_the_interpreter():
    collections.deque(itertools.repeat(None), maxlen=0)

def blocks_in_c():
    libc, lock = ctypes.CDLL(None), ctypes.create_string_buffer(64)
    libc.pthread_mutex_lock(lock)
    libc.pthread_mutex_lock(lock)

def starts_others():
    subprocess.Popen(["sh", "-c", "(sleep 100 &); sleep 100"])
    subprocess.Popen(["sleep", "1.5"], start_new_session=True)  # such as a browser
    time.sleep(100)

def forks():
    warnings.simplefilter("ignore")  # of threads in a process that forks
    child = os.fork()
    if not child:
        time.sleep(100)
        os._exit(0)
    time.sleep(0.1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    (out / "acts").touch()
    time.sleep(0.5)
    return 0

def goes_on():
    time.sleep(0.5)
    return 0

def reads_keys():
    time.sleep(1)  # the guard has seen the terminal
    tty.setcbreak(0)
    (out / "acts").touch()
    swallows()

def run():
    continue_with("vla-rl", "train", "--resume", "a run")
    if kind not in ("forks", "reads_keys"):
        (out / "acts").touch()
    return globals()[kind]()

if kind == "goes_on":
    for number in (signal.SIGTERM, signal.SIGWINCH):
        signal.signal(number, lambda *_: None)
sys.exit(say_errors("vla-rl", "train", run, last=True))
"""
ANNOUNCED = (
    "vla-rl: {}: train ends within 5 s, after a second signal at once; what is saved is safe, continue with: vla-rl "
    "train --resume 'a run'"
)


@contextmanager
def acting(script: str, out: Path, *arguments: str, **options: object) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of a script that acts already; nothing of it is left afterwards."""
    out.mkdir(exist_ok=True)
    environment = {**options.pop("env", os.environ), MARK: str(out)}
    command = [sys.executable, "-c", script, str(out), *arguments]
    with (out / "log").open("wb") as log:
        options = {"stderr": log, "start_new_session": True, **options}
        process = subprocess.Popen(command, env=environment, **options)
    try:
        until_s = time.monotonic() + 60
        while not (out / "acts").exists():
            assert process.poll() is None
            assert time.monotonic() < until_s
            time.sleep(0.02)
        yield process
    finally:
        for pid in pids_of(str(out)):
            os.kill(pid, signal.SIGKILL)
        process.wait(30)


def ended_by(number: int, script: str, out: Path, environment: dict[str, str], again_s: float = 0.0) -> bool:
    """Whether the robot was stopped after the process had been told to end, and once more."""
    with acting(script, out, env=environment) as process:
        time.sleep(0.5)  # in the middle of the attempt
        process.send_signal(number)
        if again_s:
            time.sleep(again_s)
            process.send_signal(number)
        process.wait(60)
    return (out / "stopped").exists()


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Those of a program that was started from a terminal, whatever started the tests."""
    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_DFL) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_rollout_that_is_told_to_end_stops_the_robot_and_keeps_the_record(number: int, tmp_path: Path) -> None:
    assert ended_by(number, ROLLOUT, tmp_path, dict(os.environ))
    assert list((tmp_path / "store" / "episodes").glob("*.zip"))


@pytest.mark.parametrize("again_s", [0.0002, 0.002, 0.02])
def test_a_terminal_that_is_closed_tells_it_twice(again_s: float, tmp_path: Path) -> None:
    """Its shell and the kernel, a moment apart."""
    assert ended_by(signal.SIGHUP, ROLLOUT, tmp_path, dict(os.environ), again_s)
    assert list((tmp_path / "store" / "episodes").glob("*.zip"))


@pytest.mark.usefixtures("default_signals")
def test_a_good_moment_comes_though_the_terminal_tells_it_twice() -> None:
    with stops_on_signals(), deferred_signals() as asked:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert isinstance(asked(), Terminated)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_node_that_is_told_to_end_stops_the_robot(number: int, tmp_path: Path) -> None:
    assert ended_by(number, NODE, tmp_path, ros_or_skip())


def test_what_was_started_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    """As nohup does."""
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + ROLLOUT.replace(
        "duration_s=20.0", "duration_s=2.0"
    )
    with acting(ignoring, tmp_path) as process:
        process.send_signal(signal.SIGHUP)
        assert process.wait(60) == 0


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_an_interrupt_of_another_kind_keeps_the_exit_code(number: int, code: int, tmp_path: Path) -> None:
    """Ray, for one, raises KeyboardInterrupt for whatever interrupts it."""
    with acting(WORK, tmp_path, "converts") as process:
        process.send_signal(number)
        assert process.wait(30) == code
    name = signal.Signals(number).name
    ended = "terminated" if code == 143 else "interrupted"
    assert (tmp_path / "log").read_text().splitlines() == [
        ANNOUNCED.format(name),
        f"vla-rl: {ended}; what is saved is safe, go on with --resume",
    ]


@pytest.mark.slow
def test_work_that_takes_no_notice_of_a_signal_ends_in_time(tmp_path: Path) -> None:
    """Each kind beside the others, for they wait for the same time."""
    assert seconds_to_the_end(tmp_path, signal.SIGTERM) < 5.0
    for kind in ("swallows", "blocks_in_c"):
        assert (tmp_path / kind / "log").read_text() == ANNOUNCED.format("SIGTERM") + "\n"
    assert "did not end by itself and was killed" in (tmp_path / "holds_the_interpreter" / "log").read_text()


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    assert seconds_to_the_end(tmp_path, signal.SIGINT, again=True) < 2.5


def seconds_to_the_end(folder: Path, number: int, again: bool = False) -> float:
    """Of the slowest, from the last signal."""
    kinds = {"swallows": 128 + number, "blocks_in_c": 128 + number, "holds_the_interpreter": -signal.SIGKILL}
    with ExitStack() as stack:
        processes = {kind: stack.enter_context(acting(WORK, folder / kind, kind)) for kind in kinds}
        for _ in range(1 + again):
            time.sleep(0.5)
            sent_s = time.monotonic()
            for process in processes.values():
                process.send_signal(number)
        assert {kind: process.wait(30) for kind, process in processes.items()} == kinds
        return time.monotonic() - sent_s


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_that_it_started_outlives_it(number: int, tmp_path: Path) -> None:
    with acting(WORK, tmp_path, "starts_others") as process:
        process.send_signal(number)
        process.wait(30)
        sent_s = time.monotonic()
        while left := _without_own_session(pids_of(str(tmp_path))):  # the watchdog ends a moment after a killed process
            assert time.monotonic() - sent_s < 10, left


def _without_own_session(pids: list[int]) -> list[bytes]:
    """The commands of these processes but the one that began a session of its own."""
    commands = []
    for pid in pids:
        with suppress(OSError):  # it has ended
            commands.append(Path(f"/proc/{pid}/cmdline").read_bytes())
    return [command for command in commands if command and b"1.5" not in command]


def test_signals_of_a_forked_process_are_its_own(tmp_path: Path) -> None:
    with acting(WORK, tmp_path, "forks") as process:
        assert process.wait(30) == 0
    assert not (tmp_path / "log").read_text(), "its parent goes on"


def test_signals_with_handlers_of_their_own_end_nothing(tmp_path: Path) -> None:
    with acting(WORK, tmp_path, "goes_on") as process:
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGWINCH)
        assert process.wait(30) == 0
    assert not (tmp_path / "log").read_text()


def test_the_terminal_is_put_back_where_the_process_cannot(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    try:
        with acting(WORK, tmp_path, "reads_keys", stdin=theirs, stdout=theirs, stderr=theirs) as process:
            assert termios.tcgetattr(theirs) != before
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                time.sleep(0.5)
            assert process.wait(30) == 130
        assert termios.tcgetattr(theirs) == before
    finally:
        os.close(ours)
        os.close(theirs)


@pytest.mark.slow
def test_a_robot_is_brought_to_rest_before_a_process_ends_by_force(tmp_path: Path) -> None:
    with acting(WORK, tmp_path, "has_robot") as process:
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGHUP)  # a terminal that is closed
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5)
        process.send_signal(signal.SIGTERM)
        sent_s = time.monotonic()
        assert process.wait(30) == 143
        assert 2.0 < time.monotonic() - sent_s < 5.0
    assert "ends once the robot is at rest, after a second signal within 5 s" in (tmp_path / "log").read_text()
