"""Devices of lerobot that fail at the worst moment: an encoder between attempts, a leader that somebody reaches for."""

import time
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pytest
from vla_rl_lerobot.robot import LerobotRobot
from vla_rl_lerobot.takeover import LerobotTakeover

from robot_io.gate import GateConfig, Reason, SafetyGate
from vla_rl.core.clock import MonotonicClock, VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator

GATE = GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2)


class Arm:
    """Goes where it is told; one of its joints may read NaN."""

    name = "arm"
    observation_features: ClassVar = {"a.pos": float, "b.pos": float}
    action_features: ClassVar = {"a.pos": float, "b.pos": float}
    is_connected = True

    def __init__(self) -> None:
        self.position = {"a.pos": 0.8, "b.pos": 0.0}
        self.silent = ""
        self.sent: list[float] = []

    def get_observation(self) -> dict[str, Any]:
        return self.position | ({self.silent: float("nan")} if self.silent else {})

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self.sent.append(action["a.pos"])
        self.position = dict(action)
        return action


def test_no_attempt_begins_at_the_posture_of_the_attempt_before() -> None:
    arm, gate = Arm(), SafetyGate(GATE, 20.0)
    robot = LerobotRobot(arm, 20.0, "t", duration_s=0.5, clock=VirtualClock())
    still = np.array([0.8, 0.0], np.float32)
    hold = Demonstrator(lambda: (still, still))
    run_episode(robot, hold, gate, seed=0)
    assert arm.sent
    arm.position, arm.sent = {"a.pos": -0.8, "b.pos": 0.0}, []  # a person puts the arm elsewhere
    arm.silent = "b.pos"  # and the other joint's encoder fails
    with pytest.raises(UserError, match=r"rests at \[nan\] in dimensions \[1\]"):
        run_episode(robot, hold, gate, seed=1)
    assert not arm.sent


def test_after_a_pause_no_old_goal_is_sent_to_an_arm_that_cannot_be_read() -> None:
    """Neither by the gate nor by the stop: somebody has moved it meanwhile."""
    clock = VirtualClock()

    class Paused(Arm):
        readings = 0

        def get_observation(self) -> dict[str, Any]:
            self.readings += 1
            if self.readings == 20:
                clock.sleep_until_ns(clock.now_ns() + 60 * 10**9)
                self.position, self.sent = {"a.pos": 0.9, "b.pos": 0.0}, []
            if self.readings >= 20:
                raise ConnectionError("the bus does not answer")
            return super().get_observation()

    arm, gate, away = Paused(), SafetyGate(GATE, 20.0), np.array([-0.4, 0.0], np.float32)
    robot = LerobotRobot(arm, 20.0, "t", duration_s=1e3, clock=clock)
    summary = run_episode(robot, Demonstrator(lambda: (away, away)), gate, seed=0, max_ticks=200)
    assert summary.stopped
    assert gate.counts[Reason.LOOP_PAUSED]
    assert not arm.sent


@dataclass
class CautiousConfig:
    max_relative_target: float = 0.05


@dataclass
class ArmsConfig:
    """Of two arms."""

    port: str = ""
    left_arm_config: CautiousConfig = field(default_factory=CautiousConfig)


def test_a_machine_that_was_suspended_does_not_move_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """A laptop that is closed for a minute: what Linux calls monotonic stands still meanwhile."""
    awake, suspended_ns = time.clock_gettime_ns, 0
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: awake(clock) + suspended_ns)

    class Closed(Arm):
        def send_action(self, action: dict[str, float]) -> dict[str, float]:
            nonlocal suspended_ns
            suspended_ns = 60 * 10**9 if len(self.sent) == 4 else suspended_ns
            return super().send_action(action)

    arm, gate = Closed(), SafetyGate(GATE, 20.0)
    arm.position["a.pos"] = 0.0
    far = np.array([0.9, 0.0], np.float32)
    robot = LerobotRobot(arm, 20.0, "t", duration_s=1e3, clock=MonotonicClock())
    assert run_episode(robot, Demonstrator(lambda: (far, far)), gate, seed=0, max_ticks=10).stopped
    assert gate.counts[Reason.LOOP_PAUSED]
    assert len(set(arm.sent)) == 5


class CautiousArm(Arm):
    """No goal is further than 0.05 from where the joint is. It runs into a wall."""

    config = ArmsConfig()

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        at = self.position["a.pos"]
        goal = {"a.pos": min(max(action["a.pos"], at - 0.05), at + 0.05), "b.pos": action["b.pos"]}
        self.sent.append(goal["a.pos"])
        shivers = 1e-4 * (len(self.sent) % 2)
        self.position = {"a.pos": min(goal["a.pos"], 0.2 + shivers), "b.pos": goal["b.pos"]}
        return goal


def test_a_driver_that_holds_its_goals_near_the_joints_hides_no_obstacle() -> None:
    arm, gate = CautiousArm(), SafetyGate(GATE, 20.0)
    arm.position["a.pos"] = 0.0
    robot = LerobotRobot(arm, 20.0, "t", clock=VirtualClock())
    far = np.array([0.9, 0.0], np.float32)
    summary = run_episode(robot, Demonstrator(lambda: (far, far)), gate, seed=0, max_ticks=60)
    assert summary.stopped
    assert gate.counts[Reason.FOLLOWING_ERROR]


@pytest.mark.parametrize("what", ["a joint is not read", "a joint reads a word", "half of a command comes back"])
def test_a_driver_that_says_nonsense_is_stopped_by_the_gate(what: str) -> None:
    """And does not end the loop past it."""

    class Nonsense(Arm):
        def get_observation(self) -> dict[str, Any]:
            said = super().get_observation()
            if len(self.sent) < 10 or what.startswith("half"):
                return said
            return {"a.pos": said["a.pos"]} | ({"b.pos": "?"} if "word" in what else {})

        def send_action(self, action: dict[str, float]) -> dict[str, float]:
            sent = super().send_action(action)
            return {"a.pos": sent["a.pos"]} if len(self.sent) > 10 and what.startswith("half") else sent

    arm, gate = Nonsense(), SafetyGate(GATE, 20.0)
    still = np.array([0.8, 0.0], np.float32)
    robot = LerobotRobot(arm, 20.0, "t", clock=VirtualClock())
    summary = run_episode(robot, Demonstrator(lambda: (still, still)), gate, seed=0, max_ticks=60)
    assert summary.stopped
    assert gate.counts[Reason.OBSERVATION_STALE]


class DeadLeader:
    name = "leader"
    action_features: ClassVar = {"a.pos": float}

    def get_action(self) -> dict[str, float]:
        raise ConnectionError("no status packet")


class Follower:
    action_names = ("a.pos",)
    command = np.array([0.3], np.float32)

    def last_command(self) -> Float32Array:
        return self.command

    def end(self, success: bool | None) -> None: ...


def test_a_person_who_takes_over_with_a_dead_leader_holds_the_robot() -> None:
    pressed = [False]
    takeover = LerobotTakeover(DeadLeader(), Follower(), engaged=lambda: pressed[0])
    proposed = np.array([0.9], np.float32)
    assert takeover.command(0, proposed) is None, "nobody wants the commands"
    pressed[0] = True  # the space bar
    command = takeover.command(1, proposed)
    assert command is not None, "the person has the commands, and the policy still acts"
    np.testing.assert_array_equal(command, Follower.command)


@pytest.mark.parametrize("said", [{}, {"a.pos": None}, None])
def test_a_leader_that_says_nonsense_holds_the_robot(said: Any) -> None:
    """As drivers do that have lost a packet. And does not end the loop past the gate."""

    class Nonsense(DeadLeader):
        def get_action(self) -> dict[str, float]:
            return said  # type: ignore[no-any-return]

    command = LerobotTakeover(Nonsense(), Follower(), engaged=lambda: True).command(0, np.array([0.9], np.float32))
    np.testing.assert_array_equal(command, Follower.command)


def test_a_switch_that_fails_holds_nobody_and_ends_nothing() -> None:
    def unplugged() -> bool:
        raise OSError("the keyboard is gone")

    takeover = LerobotTakeover(DeadLeader(), Follower(), engaged=unplugged)
    assert takeover.command(0, np.array([0.9], np.float32)) is None
