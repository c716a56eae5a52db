"""A terminal that is closed, a connection that drops: the robot is brought to rest, and what it did is kept."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fakes.ros2_scripts import ros_or_skip
from vla_rl.core.stopping import Terminated, stop_at_a_good_moment, stops_on_sigterm

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
from vla_rl.runs.attempt import Attempts

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


def ended_by(number: int, script: str, out: Path, environment: dict[str, str], again_s: float = 0.0) -> bool:
    """Whether the robot was stopped after the process had been told to end, and once more."""
    process = subprocess.Popen([sys.executable, "-c", script, str(out)], env=environment, start_new_session=True)
    until_s = time.monotonic() + 60
    while not (out / "acts").exists():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    time.sleep(0.5)
    process.send_signal(number)
    if again_s:
        time.sleep(again_s)
        process.send_signal(number)
    process.wait(30)
    return (out / "stopped").exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_rollout_that_is_told_to_end_stops_the_robot_and_keeps_the_record(number: int, tmp_path: Path) -> None:
    assert ended_by(number, ROLLOUT, tmp_path, dict(os.environ))
    assert list((tmp_path / "store" / "episodes").glob("*.zip"))


@pytest.mark.parametrize("again_s", [0.0002, 0.002, 0.02])
def test_a_terminal_that_is_closed_tells_it_twice(again_s: float, tmp_path: Path) -> None:
    """Its shell and the kernel, a moment apart."""
    assert ended_by(signal.SIGHUP, ROLLOUT, tmp_path, dict(os.environ), again_s)
    assert list((tmp_path / "store" / "episodes").glob("*.zip"))


def test_a_good_moment_comes_though_the_terminal_tells_it_twice() -> None:
    with stops_on_sigterm(), stop_at_a_good_moment() as asked:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGHUP)
        assert isinstance(asked(), Terminated)
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_node_that_is_told_to_end_stops_the_robot(number: int, tmp_path: Path) -> None:
    assert ended_by(number, NODE, tmp_path, ros_or_skip(domain=88))


def test_what_was_started_to_outlive_its_terminal_does(tmp_path: Path) -> None:
    """As nohup does."""
    ignoring = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + ROLLOUT.replace(
        "duration_s=20.0", "duration_s=2.0"
    )
    out = tmp_path
    process = subprocess.Popen([sys.executable, "-c", ignoring, str(out)], start_new_session=True)
    until_s = time.monotonic() + 60
    while not (out / "acts").exists():
        assert time.monotonic() < until_s
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == 0
