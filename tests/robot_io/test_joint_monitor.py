"""What is measured of a moving robot is looked at: following error, frozen joints, effort, impossible places."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from vla_rl_lerobot.robot import LerobotRobot

from robot_io.gate import Reason, SafetyGate
from robot_io.joint_monitor import JointMonitorConfig
from robot_io.limits import RobotLimits
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Condition
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import InlinePlanner

MS = 1_000_000
HZ, TICK_MS = 20.0, 50
MONITOR = JointMonitorConfig(
    following_tolerance=(0.2, 0.2, 0.2),
    following_after_ms=300.0,
    frozen_travel=(0.02, 0.02, 0.02),
    frozen_after_ms=400.0,
    max_effort=(5.0, 5.0, 5.0),
    effort_after_ms=200.0,
    beyond_after_ms=100.0,
)
LIMITS = RobotLimits(low=(-1.0, -1.0, 0.0), high=(1.0, 1.0, 0.1), max_velocity=(1.0,) * 3, joint_monitor=MONITOR)

Feel = Callable[[int, Float32Array], tuple[Float32Array, Float32Array | None]]


def follows(ms: int, command: Float32Array) -> tuple[Float32Array, Float32Array | None]:
    """A healthy robot: a little behind, a little noise."""
    return command + np.float32([-0.01, -0.01, 0.001]) * np.float32(1 + 0.01 * (ms % 7)), None


def drive(feel: Feel, limits: RobotLimits = LIMITS, ticks: int = 60, names: tuple[str, ...] = ()) -> Any:
    """Sweep the first two joints, and shut the third. Returns the gate and the time of the latched stop, ms."""
    gate = SafetyGate(limits, HZ, names=names)
    command = gate.reset(np.zeros(3, np.float32))
    for tick in range(ticks):
        now_ns = tick * TICK_MS * MS
        position, effort = feel(tick * TICK_MS, command)
        gate.inspect(Condition(position, command, now_ns, effort))
        goal = np.float32([0.8 * np.sin(tick / 20), -0.8 * np.sin(tick / 20), 0.0])
        verdict = gate.admit(goal, now_ns, now_ns, now_ns)
        command = verdict.commands[-1] if len(verdict.commands) else command
        if verdict.stopped:
            return gate, tick * TICK_MS, Reason(verdict.reasons)
    return gate, None, Reason(0)


def test_a_healthy_robot_is_left_alone() -> None:
    gate, stopped_ms, _ = drive(follows)
    assert stopped_ms is None
    assert not gate.latched


@pytest.mark.parametrize("dim", [0, 1])
def test_a_joint_that_does_not_follow_latches_the_stop(dim: int) -> None:
    def blocked(ms: int, command: Float32Array) -> tuple[Float32Array, None]:
        position, _ = follows(ms, command)
        position[dim] = np.clip(position[dim], -0.1, 0.1)  # an obstacle
        return position + np.float32(1e-5 * ms), None

    gate, stopped_ms, reasons = drive(blocked, names=("pan", "lift", "gripper"))
    assert reasons == Reason.FOLLOWING_ERROR | Reason.LATCHED
    goal = 0.8 * np.abs(np.sin(np.arange(60) / 20))
    seen_ms = TICK_MS * int(np.argmax(goal > 0.3))
    assert seen_ms + 300 <= stopped_ms <= seen_ms + 300 + 3 * TICK_MS
    assert f"{('pan', 'lift')[dim]} is " in gate.why
    assert gate.counts[Reason.FOLLOWING_ERROR] > 0


def test_a_single_frozen_joint_among_lively_ones_latches_the_stop() -> None:
    def frozen(ms: int, command: Float32Array) -> tuple[Float32Array, None]:
        position, _ = follows(ms, command)
        if ms >= 500:
            position[1] = np.float32(-0.31)
        return position, None

    # The other watch is told to be patient: it would notice this too, later.
    limits = replace(LIMITS, joint_monitor=replace(MONITOR, following_tolerance=(9.0,) * 3))
    gate, stopped_ms, reasons = drive(frozen, limits)
    assert Reason.FROZEN in reasons
    assert 500 + 400 <= stopped_ms <= 500 + 400 + 4 * TICK_MS
    assert "dimension 1 stands still while its command moves" in gate.why


def test_a_frozen_joint_whose_command_goes_to_and_fro_is_noticed_too() -> None:
    gate = SafetyGate(replace(LIMITS, joint_monitor=replace(MONITOR, following_tolerance=(9.0,) * 3)), HZ)
    command = gate.reset(np.zeros(3, np.float32))
    for tick in range(20):
        now_ns = tick * TICK_MS * MS
        gate.inspect(Condition(np.zeros(3, np.float32), command, now_ns))
        command = np.float32([0.04 * (tick % 2), 0.0, 0.0])
        gate.admit(command, now_ns, now_ns, now_ns)
    assert gate.latched
    assert gate.counts[Reason.FROZEN]


def test_a_robot_at_rest_reads_the_same_for_hours_and_a_gripper_may_hold_what_it_holds() -> None:
    def rests(ms: int, command: Float32Array) -> tuple[Float32Array, None]:
        return np.where([True, True, False], command, np.float32(0.0)).astype(np.float32), None

    gate = SafetyGate(replace(LIMITS, joint_monitor=replace(MONITOR, yielding_dims=(2,))), HZ)
    command = gate.reset(np.float32([0.3, 0.2, 0.0]))
    for tick in range(200):
        now_ns = tick * TICK_MS * MS
        gate.inspect(Condition(rests(0, command)[0], command, now_ns))
        # The third joint is told to open, and something holds it.
        command = gate.admit(np.float32([0.3, 0.2, 0.1]), now_ns, now_ns, now_ns).commands[-1]
    assert not gate.latched


def test_effort_beyond_its_limit_latches_the_stop_where_it_is_measured() -> None:
    def pushes(ms: int, command: Float32Array) -> tuple[Float32Array, Float32Array]:
        peak = 200 <= ms < 300  # too short
        return follows(ms, command)[0], np.float32([0.0, -7.0 if peak or ms >= 600 else 4.9, np.nan])

    gate, stopped_ms, reasons = drive(pushes)
    assert Reason.EFFORT in reasons
    assert 600 + 200 <= stopped_ms <= 600 + 200 + 3 * TICK_MS
    assert "dimension 1 pushes with -7" in gate.why
    assert drive(pushes, replace(LIMITS, joint_monitor=replace(MONITOR, max_effort=())))[1] is None


def test_a_reading_beyond_the_limits_latches_the_stop_when_it_lasts() -> None:
    def beyond(ms: int, command: Float32Array) -> tuple[Float32Array, None]:
        position, _ = follows(ms, command)
        if ms == 300 or ms >= 700:
            position[0] = 1e6
        return position, None

    gate, stopped_ms, reasons = drive(
        beyond, replace(LIMITS, joint_monitor=replace(MONITOR, following_tolerance=(1e9,) * 3))
    )
    assert Reason.OUT_OF_RANGE in reasons
    assert 700 + 100 <= stopped_ms <= 700 + 100 + 3 * TICK_MS
    assert "dimension 0 reads 1e+06, outside its limits" in gate.why


def test_an_encoder_that_flickers_between_places_and_no_place_is_noticed() -> None:
    """Every second reading is right, and the policy is shown the others too."""

    def flickers(ms: int, command: Float32Array) -> tuple[Float32Array, None]:
        position, _ = follows(ms, command)
        if ms >= 700 and ms % (2 * TICK_MS) == 0:
            position[0] = 1e6
        return position, None

    _, stopped_ms, reasons = drive(flickers)
    assert Reason.OUT_OF_RANGE in reasons
    assert 700 + 100 <= stopped_ms <= 700 + 100 + 3 * TICK_MS


@pytest.mark.parametrize("reading", [np.nan, -np.inf])
@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("from_ms", [0, 700])
def test_a_joint_whose_reading_is_no_number_latches_the_stop(reading: float, every: int, from_ms: int) -> None:
    """Also from the first reading on, and if every second reading is right."""

    def breaks(ms: int, command: Float32Array) -> tuple[Float32Array, None]:
        position, _ = follows(ms, command)
        if ms >= from_ms and ms % (every * TICK_MS) == 0:
            position[1] = reading
        return position, None

    gate, stopped_ms, reasons = drive(breaks)
    assert stopped_ms is not None
    assert stopped_ms <= from_ms + MONITOR.beyond_after_ms + 3 * TICK_MS
    assert reasons & (Reason.OUT_OF_RANGE | Reason.FOLLOWING_ERROR)
    assert "dimension 1" in gate.why


def test_after_a_pause_a_reading_that_is_no_number_moves_nothing() -> None:
    gate = SafetyGate(LIMITS, HZ)
    rest = gate.reset(np.zeros(3, np.float32))
    now_ns = 10 * TICK_MS * MS
    gate.inspect(Condition(rest, rest, 0))
    gate.admit(rest, 0, 0, 0)
    gate.inspect(Condition(np.float32([np.nan, 0.5, 0.0]), rest, now_ns + 1000 * MS))
    verdict = gate.admit(np.float32([0.5, 0.5, 0.0]), now_ns + 1000 * MS, now_ns + 1000 * MS, now_ns + 1000 * MS)
    assert verdict.held
    assert gate.latched
    assert (verdict.commands == np.float32([0.0, 0.5, 0.0])).all(), "what can be read holds where it is"


def test_a_robot_that_was_moved_between_the_readings_and_the_first_command_is_not_pulled_back() -> None:
    gate = SafetyGate(LIMITS, HZ)
    rest, moved = gate.reset(np.zeros(3, np.float32)), np.float32([0.06, 0.0, 0.0])
    for now_ns in (0, 1):
        gate.inspect(Condition(moved, rest, now_ns))
        verdict = gate.admit(np.float32([0.5, 0.0, 0.0]), now_ns, 0, 0)
        assert (verdict.commands == moved).all(), "nothing, then where it is"
    assert verdict.stopped
    assert len(verdict.commands)
    assert Reason.FOLLOWING_ERROR in Reason(verdict.reasons)


def test_only_a_person_releases_what_the_watch_has_seen() -> None:
    gate, stopped_ms, _ = drive(lambda ms, command: (np.float32([9.0, 0, 0]), None))
    assert stopped_ms is not None
    rest = gate.reset(np.zeros(3, np.float32))
    assert gate.admit(np.float32([0.04, 0, 0]), 10**10, 10**10, 10**10).stopped
    gate.rearm()
    assert gate.why == ""
    gate.reset(rest)
    gate.inspect(Condition(rest, rest, 2 * 10**10))
    assert not gate.admit(np.float32([0.04, 0, 0]), 2 * 10**10, 2 * 10**10, 2 * 10**10).held


class BrokenArm:
    """A lerobot robot whose second joint stops reading after 30 readings."""

    name = "broken_arm"
    is_connected = True

    def __init__(self) -> None:
        self.observation_features = self.action_features = {f"{joint}.pos": float for joint in ("a", "b", "c")}
        self.goal = dict.fromkeys(self.action_features, 0.0)
        self.readings = 0

    def get_observation(self) -> dict[str, float]:
        self.readings += 1
        shown = dict(self.goal)
        if self.readings <= 30:
            self.stuck = shown["b.pos"]
        return {**shown, "b.pos": self.stuck}

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        self.goal = dict(action)
        return action


class Sweeps:
    """Moves the first two joints to and fro."""

    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        angle = 0.5 * np.sin((observation.tick + np.arange(8)) / 20)
        return ActionChunk(np.stack([angle, -angle, 0 * angle], 1).astype(np.float32), observation.tick, 0, 0)


def test_a_lerobot_robot_is_watched_by_the_same_module() -> None:
    robot = LerobotRobot(BrokenArm(), HZ, "", duration_s=6.0, clock=VirtualClock())
    gate = SafetyGate(LIMITS, HZ, names=robot.action_names)
    summary = run_episode(robot, Executor(InlinePlanner(Sweeps())), gate, seed=0)
    assert summary.stopped
    assert summary.ticks <= 27 + (400 + 4 * TICK_MS) / TICK_MS
    assert "b.pos stands still" in gate.why


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"following_tolerance": (0.1,)}, r"joint_monitor\.following_tolerance has 1 numbers"),
        ({"frozen_after_ms": float("nan")}, r"joint_monitor\.frozen_after_ms is nan"),
        ({"max_effort": (1.0, np.inf, 1.0)}, r"joint_monitor\.max_effort .* must be finite"),
        ({"yielding_dims": (3,)}, r"joint_monitor\.yielding_dims \(3,\) are not among 3 dimensions"),
        ({"effort_after_ms": -1.0}, r"joint_monitor\.effort_after_ms is -1"),
    ],
)
def test_a_watch_that_could_not_see_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SafetyGate(replace(LIMITS, joint_monitor=replace(MONITOR, **change)), HZ)
