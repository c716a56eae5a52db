"""Whatever fails, the robot comes to rest within the declared time and does not move again (spec test 11)."""

from collections import Counter

import numpy as np
import pytest
from toys import SilentPlanner

from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockFaults, MockRobot, MockRobotConfig
from vla_rl.core.clock import VirtualClock
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.virtual import Latency, LatencyConfig, VirtualPlanner

JOINTS, HORIZON, HZ = 3, 16, 30.0
MAX_DELAY = 6
ROBOT = MockRobotConfig(joints=JOINTS, control_hz=HZ, image_size=8, duration_s=8.0)
GATE = GateConfig(
    low=(-1.0,) * JOINTS, high=(1.0,) * JOINTS, max_velocity=(2.0,) * JOINTS, max_observation_age_ms=150.0
)
SMOOTH = GateConfig(
    low=GATE.low,
    high=GATE.high,
    max_velocity=GATE.max_velocity,
    max_acceleration=(10.0,) * JOINTS,
    max_jerk=(200.0,) * JOINTS,
    max_observation_age_ms=150.0,
)
EXECUTION = ExecutionConfig(execute_ticks=6, hold_ticks=10)
TICK_S = 1 / HZ
# Jerk-limited braking from 2 rad/s: 2 / 10 + 10 / 200 s.
BRAKING_S = 0.25
# The declared times, from the fault to rest; the ticks are to see it, to let the tick pass, to act.
STOPS_WITHIN_S = {
    "nan_action": 0.3 + 3 * TICK_S,
    "nan_state": 0.15 + 0.3 + 3 * TICK_S,
    "frozen_camera": 0.15 + 0.3 + 3 * TICK_S,
    "dead_camera": 0.15 + 0.3 + 3 * TICK_S,
    # From the last request that was answered: its delay, its chunk, the hold.
    "killed_inference": (MAX_DELAY + HORIZON + EXECUTION.hold_ticks + 2) * TICK_S,
    "stalled_loop": ROBOT.command_timeout_ms * 1e-3 + 2 * TICK_S,
}


class WavePolicy:
    """Waves the joints; from some tick on it says NaN."""

    version = 0

    def __init__(self, nan_from_tick: float = np.inf) -> None:
        self._nan_from_tick = nan_from_tick

    def reset(self, seed: int) -> None:
        self._phase = seed % 7

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        ticks = observation.tick + np.arange(HORIZON)
        actions = np.sin(ticks / 9 + self._phase)[:, None].repeat(JOINTS, 1).astype(np.float32)
        actions[ticks >= self._nan_from_tick] = np.nan
        return ActionChunk(actions, observation.tick, 0, 0)


def run_trial(trial: int) -> tuple[str, float]:
    """Run one attempt with one fault at a random moment; returns the fault and the time from it to rest, s."""
    random = np.random.default_rng(trial)
    kind = list(STOPS_WITHIN_S)[trial % len(STOPS_WITHIN_S)]
    at_s = random.integers(15, 90) / HZ
    faults = {
        "nan_state": MockFaults(state_nan_s=at_s),
        "frozen_camera": MockFaults(camera_freezes_s=at_s),
        "dead_camera": MockFaults(camera_dies_s=at_s),
        "stalled_loop": MockFaults(stall_s=at_s, stall_duration_s=random.uniform(0.6, 2.0)),
    }.get(kind, MockFaults())
    robot = MockRobot(ROBOT, faults, VirtualClock())
    policy = WavePolicy(round(at_s * HZ) if kind == "nan_action" else np.inf)
    latency = LatencyConfig(Latency.RECORDED, samples=tuple(random.uniform(0, MAX_DELAY, 10)))
    planner = SilentPlanner(
        VirtualPlanner(policy, robot.clock, HZ, latency),
        answers=int(random.integers(1, 12)) if kind == "killed_inference" else 10**9,
    )
    smooth = bool(random.integers(2))
    gate = SafetyGate(SMOOTH if smooth else GATE, HZ, commands_per_tick=int(random.integers(1, 4)))
    summary = run_episode(robot, Executor(planner, EXECUTION), gate, seed=trial)
    assert summary.stopped == (kind != "stalled_loop"), f"{kind} at {at_s:.2f} s; a stalled loop cannot stop anything"
    assert robot.stopped_ns is not None
    if kind == "killed_inference":
        at_s = planner.silent_since_tick / HZ
    stop_s = robot.stopped_ns * 1e-9
    if gate.latched:
        again = run_episode(robot, Executor(planner, EXECUTION), gate, seed=trial)
        assert again.ticks == 1, "a latched stop is not left by starting another attempt"
        assert again.stopped
    at_rest = robot.rest_command()
    robot.clock.sleep_until_ns(robot.clock.now_ns() + 10**9)
    robot.write(np.ones(JOINTS, np.float32))
    robot.clock.sleep_until_ns(robot.clock.now_ns() + 10**9)
    np.testing.assert_array_equal(robot.read().state, at_rest, "nothing moves after a stop")
    return kind, stop_s - at_s - (BRAKING_S if smooth else 0.0)


def test_the_robot_stops_within_the_declared_time_in_a_thousand_faults() -> None:
    counts: Counter[str] = Counter()
    for trial in range(1200):
        kind, stop_s = run_trial(trial)
        assert stop_s <= STOPS_WITHIN_S[kind], f"trial {trial}: {kind} took {stop_s:.3f} s"
        counts[kind] += 1
    assert set(counts.values()) == {200}


def test_without_a_fault_nothing_stops() -> None:
    for commands_per_tick in (1, 3):
        robot = MockRobot(ROBOT, clock=VirtualClock())
        gate = SafetyGate(SMOOTH, HZ, commands_per_tick)
        planner = VirtualPlanner(WavePolicy(), robot.clock, HZ, LatencyConfig(typical=3.0))
        summary = run_episode(robot, Executor(planner, EXECUTION), gate, seed=0)
        assert not summary.stopped
        assert summary.duration_s == pytest.approx(ROBOT.duration_s, abs=2 * TICK_S)
        assert robot.commands == summary.ticks * commands_per_tick
