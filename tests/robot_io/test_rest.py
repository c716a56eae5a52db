"""Where an attempt begins: a posture that several readings agree on, inside the limits, and no jump away from it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from vla_rl_lerobot.robot import LerobotRobot

from robot_io.gate import SafetyGate
from robot_io.limits import RobotLimits
from robot_io.ros2.clock import RosTime
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.robot import Interface, Ros2Robot
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import EpisodicRobot, run_episode
from vla_rl.execution.plan import InlinePlanner

HZ = 20.0
LIMITS = RobotLimits(low=(-1.0, -1.0), high=(1.0, 1.0), max_velocity=(1.0, 1.0))
ONE_TICK = 1.0 / HZ + 1e-6
TRUE = (0.2, -0.3)


class Stays:
    """Wants the robot where it is."""

    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        return ActionChunk(np.tile(np.float32(TRUE), (8, 1)), observation.tick, 0, 0)


class LyingArm:
    """A lerobot robot of two joints at rest, whose encoder of the first joint errs by so much in some readings."""

    name = "lying_arm"
    observation_features: ClassVar = {"a.pos": float, "b.pos": float}
    action_features: ClassVar = observation_features
    is_connected = True

    def __init__(self, error: float, readings: range) -> None:
        self._error, self._readings, self._reading = error, readings, -1
        self.sent: list[list[float]] = []

    def get_observation(self) -> dict[str, float]:
        self._reading += 1
        error = self._error if self._reading in self._readings else 0.0
        return {"a.pos": TRUE[0] + error, "b.pos": TRUE[1]}

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self.sent.append(list(action.values()))
        return action


class Topics:
    """The same arm as a robot of topics, whose joints speak at every look at the clock; it is its own output."""

    def begin(self, rest: Any) -> None:
        """Nothing is kept of commands."""

    def send(self, command: Any) -> None:
        self.sent.append(command.tolist())

    def __init__(self, error: float, readings: range) -> None:
        self.sent: list[list[float]] = []
        self._error, self._readings, self._reading = error, readings, -1
        clock = RosTime(simulated=True)
        options = {"joints": ["a", "b"], "cameras": [], "stream_timeout_s": 0.5, "max_attempt_s": 1.0}
        self.robot = Ros2Robot(settings_from(options), clock, OperatorRequests(), Interface(HZ, None, 200.0), [self])
        self._clock, self._ns = clock, 10**9
        clock.on_clock(self._ns)
        clock.sleep_until_ns = self._sleep_until_ns  # type: ignore[method-assign]
        wait_for = self.robot._fresh.wait_for

        def speaks_meanwhile(condition: Any, timeout_s: float) -> bool:
            for _ in range(20):
                self._tick()
            return wait_for(condition, timeout_s)

        self.robot._fresh.wait_for = speaks_meanwhile  # type: ignore[method-assign]

    def _sleep_until_ns(self, deadline_ns: int) -> None:
        while self._clock.now_ns() < deadline_ns:
            self._tick()

    def _tick(self) -> None:
        self._reading += 1
        self._ns += 10_000_000
        self._clock.on_clock(self._ns)
        error = self._error if self._reading in self._readings else 0.0
        stamp = SimpleNamespace(sec=self._ns // 10**9, nanosec=self._ns % 10**9)
        header = SimpleNamespace(stamp=stamp)
        self.robot.on_joints(SimpleNamespace(header=header, name=["a", "b"], position=[TRUE[0] + error, TRUE[1]]))


def lerobot(error: float, readings: range) -> tuple[EpisodicRobot, list[list[float]]]:
    arm = LyingArm(error, readings)
    return LerobotRobot(arm, HZ, "", duration_s=1.0, clock=VirtualClock()), arm.sent


def topics(error: float, readings: range) -> tuple[EpisodicRobot, list[list[float]]]:
    bench = Topics(error, readings)
    return bench.robot, bench.sent


ROBOTS = pytest.mark.parametrize("make", [lerobot, topics])
# Of a robot of topics the newest readings count, 20 of which come while it waits; of a lerobot robot the first ones.
ONE = {lerobot: range(1), topics: range(19, 20)}
ALL = range(10**6)


def attempt(robot: EpisodicRobot, limits: RobotLimits = LIMITS) -> None:
    run_episode(robot, Executor(InlinePlanner(Stays())), SafetyGate(limits, HZ), seed=0)


@ROBOTS
@pytest.mark.parametrize("error", [1e6, 0.6, -0.1])
def test_one_bad_reading_is_no_place_to_begin_at(make: Any, error: float) -> None:
    robot, sent = make(error, ONE[make])
    with pytest.raises(UserError, match=r"readings of dimension 0 .* disagree"):
        attempt(robot)
    assert sent == [], "nothing was commanded"


@ROBOTS
def test_readings_that_agree_on_a_place_outside_the_limits_are_refused(make: Any) -> None:
    robot, sent = make(1e6, ALL)
    with pytest.raises(UserError, match=r"rests at .* in dimension 0, outside its limits -1 to 1\. .*0\.04"):
        attempt(robot)
    assert sent == []
    robot, sent = make(0.83, ALL)  # at 1.03: a little outside, as robots are found
    attempt(robot)
    assert sent[0][0] == pytest.approx(0.98, abs=1e-5), "it comes in by a tick of the limits"
    robot, sent = make(0.83, ALL)
    with pytest.raises(UserError, match="outside its limits"):
        attempt(robot, replace(LIMITS, rest_tolerance=(0.01, 0.01)))


@ROBOTS
def test_the_first_command_is_within_one_tick_of_where_the_robot_is(make: Any) -> None:
    robot, sent = make(0.0, ALL)
    attempt(robot)
    assert np.abs(np.array(sent[0]) - TRUE).max() <= ONE_TICK
    robot, sent = make(0.03, ONE[make])  # within a tick: the median counts
    attempt(robot)
    np.testing.assert_allclose(sent[0], TRUE, atol=1e-6)


def test_a_gripper_that_may_jump_has_to_be_read_soundly_too() -> None:
    gate = SafetyGate(replace(LIMITS, discrete_dims=(1,)), HZ)
    with pytest.raises(UserError, match="readings of dimension 1"):
        gate.reset(np.array([[0, 0.0], [0, 0.5], [0, 0.0]], np.float32))
