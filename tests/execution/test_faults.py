"""Whatever fails, the robot comes to rest within the declared time and does not move again (spec test 11)."""

from collections import Counter

import numpy as np
import pytest

from robot_io.gate import SafetyGate
from robot_io.mock_robot import MockRobot
from robot_io.motion_limits import MotionLimits
from tests.fakes.faulty_attempts import (
    EXECUTION,
    HZ,
    ROBOT,
    SMOOTH,
    STOPS_WITHIN_S,
    TICK_S,
    WavePolicy,
    broken_limits,
    run_trial,
)
from vla_rl.core.clock import VirtualClock
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.virtual import LatencyConfig, VirtualPlanner


@pytest.mark.slow
def test_the_robot_stops_within_the_declared_time_in_a_thousand_faults() -> None:
    counts: Counter[str] = Counter()
    for trial in range(1002):
        kind, stop_s, wrong = run_trial(trial)
        assert not wrong, f"trial {trial}: {kind}: {wrong}"
        assert stop_s <= STOPS_WITHIN_S[kind], f"trial {trial}: {kind} took {stop_s:.3f} s"
        counts[kind] += 1
    assert set(counts.values()) == {167}


def test_a_gate_that_never_stops_fails_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SafetyGate, "_latch", lambda self, faults, now_ns: 0)
    for trial, kind in ((1, "nan_state"), (2, "frozen_camera"), (3, "dead_camera")):
        found, stop_s, wrong = run_trial(trial)
        assert found == kind
        assert wrong
        assert stop_s > STOPS_WITHIN_S[kind]


def test_a_loop_that_drives_the_robot_after_its_stop_fails_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = MockRobot.stop

    def go_on(robot: MockRobot) -> None:
        stop(robot)
        robot.write(np.full(3, 0.9, np.float32))

    monkeypatch.setattr(MockRobot, "stop", go_on)
    assert all(run_trial(trial)[2] for trial in range(12))


def test_a_gate_that_freezes_instead_of_braking_fails_the_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not any(run_trial(trial)[2] for trial in range(12))
    monkeypatch.setattr(SafetyGate, "at_rest", True)
    monkeypatch.setattr(MotionLimits, "brake", lambda self, count: np.tile(self.previous, (count, 1)))
    wrong = [run_trial(trial)[2] for trial in range(12)]
    assert "the commands broke the limits of acceleration" in wrong


def test_without_a_fault_nothing_stops() -> None:
    for commands_per_tick in (1, 3):
        robot = MockRobot(ROBOT, clock=VirtualClock())
        gate = SafetyGate(SMOOTH, HZ, commands_per_tick)
        planner = VirtualPlanner(WavePolicy(), robot.clock, HZ, LatencyConfig(typical=3.0))
        summary = run_episode(robot, Executor(planner, EXECUTION), gate, seed=0)
        assert not summary.stopped
        assert summary.duration_s == pytest.approx(ROBOT.duration_s, abs=2 * TICK_S)
        assert robot.commands >= summary.ticks * commands_per_tick, "and those that braked it at the end"
        commands = np.array([command for _, command in robot.writes])
        assert not broken_limits(commands, SMOOTH, HZ * commands_per_tick)
