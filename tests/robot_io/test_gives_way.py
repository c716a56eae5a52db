"""A robot that was stopped because something is in its way, or that was moved while nobody commanded it, holds where it
is: the last command would push on, or pull it back.
"""

from dataclasses import replace

import numpy as np
import pytest

from robot_io.gate import Reason, SafetyGate
from robot_io.joint_monitor import JointMonitorConfig
from robot_io.limits import RobotLimits
from vla_rl.core.clock import VirtualClock
from vla_rl.core.protocols import Condition
from vla_rl.core.types import Float32Array, Observation
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator

HZ, STIFFNESS, MAX_EFFORT, WALL = 20.0, 100.0, 20.0, 0.3
LIMITS = RobotLimits(
    low=(-1.0,), high=(1.0,), max_velocity=(2.0,), joint_monitor=JointMonitorConfig(max_effort=(MAX_EFFORT,))
)
SLOW = RobotLimits(low=(-1.0,), high=(1.0,), max_velocity=(0.5,))
TICK_STEP, TICK_NS = 0.5 / HZ, round(1e9 / HZ)


class Arm:
    """One position-controlled joint. Its motor holds the last command by itself, as those of the real robots do."""

    control_hz, terminated, truncated, success = HZ, False, False, None

    def __init__(self, position: float = 0.0) -> None:
        self.clock = VirtualClock()
        self.command = self.position = np.full(1, position, np.float32)
        self.jumps: list[float] = []

    @property
    def effort(self) -> Float32Array:
        return (STIFFNESS * (self.command - self.position)).astype(np.float32)

    def connect(self) -> None: ...

    def reset(self, seed: int) -> None: ...

    def read(self) -> Observation:
        return Observation({}, self.position, "", 0, {"state": self.clock.now_ns()})

    def rest_command(self) -> Float32Array:
        return self.position

    def condition(self) -> Condition:
        return Condition(self.position, self.command, self.clock.now_ns(), self.effort)

    def write(self, action: Float32Array) -> Float32Array:
        self.jumps.append(float(np.abs(action - self.position).max()))
        self.command = self.position = action.copy()
        return action

    def stop(self) -> None: ...

    def close(self) -> None: ...


class ArmAtAWall(Arm):
    """It cannot go beyond 0.3: a hand, a table."""

    def write(self, action: Float32Array) -> Float32Array:
        self.command, self.position = action.copy(), np.minimum(action, np.float32(WALL))
        return action


class PausedArm(Arm):
    """At the tenth reading the process stands still for a minute, in which somebody moves the arm by 1."""

    readings = 0

    def read(self) -> Observation:
        self.readings += 1
        if self.readings == 10:
            self.clock.sleep_until_ns(self.clock.now_ns() + 60 * 10**9)
            self.position = self.position + np.float32(1.0)
        return super().read()


class LatePausedArm(PausedArm):
    """Its driver says where it is some ticks after the pause, or not any more."""

    def __init__(self, position: float, late_readings: int) -> None:
        super().__init__(position)
        self.late_readings = late_readings
        self.told = self.condition()

    def condition(self) -> Condition:
        if not 10 <= self.readings < 10 + self.late_readings:
            self.told = super().condition()
        return self.told


def towards(target: float) -> Demonstrator:
    action = np.array([target], np.float32)
    return Demonstrator(lambda: (action, action))


def test_a_robot_that_was_stopped_for_its_effort_does_not_push_on() -> None:
    robot, gate = ArmAtAWall(), SafetyGate(LIMITS, HZ)
    summary = run_episode(robot, towards(0.9), gate, seed=0)
    assert summary.stopped
    assert gate.counts[Reason.EFFORT]
    assert abs(robot.effort[0]) <= MAX_EFFORT
    assert robot.position[0] == pytest.approx(WALL)


def test_it_gives_way_also_when_another_stop_came_first() -> None:
    """A person presses the emergency stop because the arm pushes on something: it is still braking."""
    limits = replace(LIMITS, max_velocity=(1.0,), max_acceleration=(1.0,), max_jerk=(50.0,))
    robot, gate = ArmAtAWall(), SafetyGate(limits, HZ)
    gate.reset(np.zeros(1, np.float32))
    for tick in range(60):
        now_ns = tick * 50_000_000
        interlocks = int(Reason.E_STOP) if tick >= 18 else 0
        gate.inspect(Condition(robot.position, robot.command, now_ns, robot.effort, interlocks, "pressed"))
        for command in gate.admit(np.float32([0.9]), now_ns, now_ns, now_ns).commands:
            robot.write(command)
    assert gate.latched
    assert gate.counts[Reason.EFFORT] > 0
    assert abs(robot.effort[0]) <= MAX_EFFORT


def test_what_is_told_as_velocities_rests_by_itself() -> None:
    """Back to where it is would be a velocity, and one beyond all limits."""
    for rate_dims, held in (((), 0.4), ((0,), 0.0)):
        gate = SafetyGate(LIMITS, HZ)
        gate.reset(np.zeros(1, np.float32))
        for now_ns in (0, TICK_NS):
            gate.inspect(Condition(np.float32([0.4]), np.zeros(1, np.float32), now_ns, rate_dims=rate_dims))
            verdict = gate.admit(np.zeros(1, np.float32), now_ns, now_ns, now_ns)
        assert Reason.FOLLOWING_ERROR in Reason(verdict.reasons)
        assert verdict.commands[-1, 0] == np.float32(held)


def test_a_gripper_that_squeezes_too_hard_gives_way_and_one_that_holds_does_not() -> None:
    limits = RobotLimits(
        low=(-1.0,) * 2,
        high=(1.0,) * 2,
        max_velocity=(9.0,) * 2,
        joint_monitor=JointMonitorConfig(max_effort=(5.0, 5.0), effort_after_ms=0.0, yielding_dims=(1,)),
    )
    told, read = np.zeros(2, np.float32), np.float32([0.1, 0.3])
    for efforts, held in (([9.0, 1.0], 0.0), ([1.0, 9.0], 0.3)):
        gate = SafetyGate(limits, HZ)
        gate.reset(told)
        gate.inspect(Condition(read, told, 0, np.float32(efforts)))
        assert gate.admit(told, 0, 0, 0).commands[-1].tolist() == pytest.approx([0.1, held])


LATE_NS = 60 * 10**9


@pytest.mark.parametrize(
    ("before", "position", "held"),
    [(0.05, 0.05, 0.0), (0.05, 0.07, 0.0), (0.0, 0.02, 0.0), (0.0, 0.05, 0.05), (0.05, 0.0, 0.0), (0.0, 0.9, 0.9)],
)
def test_after_a_pause_only_joints_that_were_moved_give_way(before: float, position: float, held: float) -> None:
    """A servo under load is a little off: told to be where it is, it would sag further. What a person has moved by more
    than a tick may not be thrown back in one command. A motion that came to its end was not moved.
    """
    gate, told = SafetyGate(SLOW, HZ), np.zeros(1, np.float32)
    gate.reset(told)
    verdicts = []
    for now_ns, reading in ((0, 0.0), (1, before), (LATE_NS, position), (LATE_NS + 1, position)):
        gate.inspect(Condition(np.float32([reading]), told, now_ns))
        verdicts.append(gate.admit(told, now_ns, now_ns, now_ns))
    verdict = verdicts[-1]
    assert verdict.stopped
    assert Reason.LOOP_PAUSED in Reason(verdicts[2].reasons)
    assert verdict.commands[-1, 0] == np.float32(held)


@pytest.mark.parametrize("readings", [(0.0, 0.0, 0.09, 0.09, 0.09), (0.0, np.nan, 0.09, 0.09)])
def test_neither_a_second_pause_nor_a_reading_that_is_none_hides_that_a_joint_was_moved(
    readings: tuple[float, ...],
) -> None:
    gate, told = SafetyGate(SLOW, HZ), np.zeros(1, np.float32)
    gate.reset(told)
    now_ns = 0
    for number, reading in enumerate(readings):
        gate.inspect(Condition(np.float32([reading]), told, now_ns))
        verdict = gate.admit(told, now_ns, now_ns, now_ns)
        now_ns += LATE_NS if 1 <= number < len(readings) - 2 else 1
    assert verdict.commands.tolist() == [[pytest.approx(0.09)]]


def test_a_pause_before_the_first_command_is_one_too() -> None:
    """The process stood still after its robot was read: the posture of before may not be commanded."""
    gate, told = SafetyGate(SLOW, HZ), np.zeros(1, np.float32)
    gate.reset(told)
    gate.inspect(Condition(told, told, 0))
    verdict = gate.admit(told, LATE_NS, 0, LATE_NS)
    assert (verdict.commands.shape, verdict.held) == ((0, 1), True)
    for read_ns in (LATE_NS + 1, LATE_NS + 2):
        gate.inspect(Condition(np.float32([0.08]), told, read_ns))
        verdict = gate.admit(told, read_ns, read_ns, read_ns)
    assert verdict.commands.tolist() == [[pytest.approx(0.08)]]
    assert not verdict.stopped


@pytest.mark.parametrize("age_ms", [200.0, 1e6])
def test_after_a_pause_nothing_is_sent_until_a_reading_of_afterwards_is_there(age_ms: float) -> None:
    """However old a reading may be: one of before says nothing."""
    gate, told = SafetyGate(replace(SLOW, max_observation_age_ms=age_ms), HZ), np.zeros(1, np.float32)
    gate.reset(told)
    gate.inspect(Condition(told, told, 0))
    gate.admit(told, 0, 0, 0)
    verdict = gate.admit(told, LATE_NS, LATE_NS, LATE_NS)
    assert (verdict.commands.shape, verdict.held, verdict.stopped) == ((0, 1), True, False)
    for read_ns in (LATE_NS + 1, LATE_NS + 2):
        gate.inspect(Condition(np.float32([0.9]), told, read_ns))
        verdict = gate.admit(told, read_ns, LATE_NS, LATE_NS)
    assert verdict.stopped
    assert verdict.commands.tolist() == [[np.float32(0.9)]]


def commands_after(readings: list[float], pause_ns: int = 0) -> list[list[float]]:
    """Return the commands of the ticks in which a gate that rests at 0 gets these readings."""
    gate, told = SafetyGate(SLOW, HZ), np.zeros(1, np.float32)
    gate.reset(told)
    now_ns, sent = 0, []
    if pause_ns:
        gate.inspect(Condition(told, told, 0))
        gate.admit(told, 0, 0, 0)
    for tick, position in enumerate(readings):
        now_ns = pause_ns + tick * TICK_NS
        gate.inspect(Condition(np.float32([position]), told, now_ns))
        sent.append(gate.admit(told, now_ns, now_ns, now_ns).commands[:, 0].round(3).tolist())
    return sent


@pytest.mark.parametrize("pause_ns", [0, LATE_NS])
def test_one_reading_that_is_off_moves_no_robot(pause_ns: int) -> None:
    """It is the first after the start, or after a pause."""
    assert commands_after([0.6, 0.0, 0.0, 0.0], pause_ns) == [[], [0.0], [0.0], [0.0]]


@pytest.mark.parametrize("pause_ns", [0, LATE_NS])
def test_two_readings_that_agree_say_where_a_robot_was_moved(pause_ns: int) -> None:
    assert commands_after([0.6, 0.6, 0.6], pause_ns) == [[], [pytest.approx(0.6)], [pytest.approx(0.6)]]


def test_a_robot_that_is_being_moved_at_the_start_is_sent_nothing_until_it_is_still() -> None:
    """Also by less than what counts as away from a command."""
    assert commands_after([0.05, 0.1, 0.15, 0.15]) == [[], [], [], [pytest.approx(0.15)]]


def test_one_reading_that_is_off_after_a_silence_moves_no_robot() -> None:
    gate, told = SafetyGate(SLOW, HZ), np.zeros(1, np.float32)
    gate.reset(told)
    sent = []
    for tick in range(20):
        now_ns = tick * TICK_NS
        read_ns = 9 * TICK_NS if 9 < tick < 15 else now_ns
        gate.inspect(Condition(np.float32([0.6]) if tick == 15 else told, told, read_ns))
        sent.append(gate.admit(told, now_ns, read_ns, now_ns).commands)
    assert np.concatenate(sent).max() == 0.0


@pytest.mark.parametrize("kind", ["steps", "velocities"])
def test_a_robot_that_also_takes_steps_or_velocities_gets_no_old_target_after_a_pause(kind: str) -> None:
    """They end by the robot's own `stop`, which leaves targets alone; a command would carry the targets along."""
    steps, rates = ((1,), ()) if kind == "steps" else ((), (1,))
    limits = RobotLimits(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(0.5,) * 2, delta_dims=steps)
    gate, told = SafetyGate(limits, HZ), np.zeros(2, np.float32)
    gate.reset(told)
    gate.inspect(Condition(told, told, 0, rate_dims=rates))
    gate.admit(told, 0, 0, 0)
    assert not len(gate.admit(told, LATE_NS, LATE_NS, LATE_NS).commands)
    assert gate.at_rest
    for read_ns in (LATE_NS + 1, LATE_NS + 2):
        gate.inspect(Condition(np.float32([0.9, 0.0]), told, read_ns, rate_dims=rates))
        verdict = gate.admit(told, read_ns, LATE_NS, LATE_NS)
    assert verdict.commands.tolist() == [[np.float32(0.9), 0.0]]


def test_a_robot_of_which_it_is_not_known_where_it_is_is_told_to_stop_at_once() -> None:
    """Its velocities would go on until the stop latches."""

    class Rolling(LatePausedArm):
        stopped_at: tuple[int, ...] = ()

        def stop(self) -> None:
            self.stopped_at += (self.readings,)

    robot = Rolling(-0.5, 10**6)
    assert run_episode(robot, towards(-0.5), SafetyGate(SLOW, HZ), seed=0).stopped
    assert robot.stopped_at[0] == 10


def test_nothing_is_left_to_brake_while_it_is_not_known_where_the_robot_is() -> None:
    limits = replace(SLOW, max_acceleration=(1.0,), max_jerk=(50.0,), max_gap_ms=80.0)
    gate, told, ms = SafetyGate(limits, HZ), np.zeros(1, np.float32), 10**6
    gate.reset(told)
    gate.inspect(Condition(told, told, 0))
    for tick in range(10):
        gate.admit(np.float32([0.9]), tick * 50 * ms, tick * 50 * ms, tick * 50 * ms)
    assert not gate.at_rest
    now_ns = (450 + 90) * ms
    assert not len(gate.admit(np.float32([0.9]), now_ns, now_ns, now_ns).commands)
    assert gate.at_rest


@pytest.mark.parametrize("late_readings", [2, 10**6])
def test_a_driver_that_is_late_after_a_pause_lets_no_old_command_through(late_readings: int) -> None:
    robot, gate = LatePausedArm(-0.5, late_readings), SafetyGate(SLOW, HZ)
    summary = run_episode(robot, towards(-0.5), gate, seed=0)
    assert summary.stopped
    assert summary.ticks <= 10 + SLOW.stop_after_ms * HZ / 1e3 + 1
    assert robot.position == pytest.approx(0.5), "where somebody has put it"


def test_after_a_pause_the_arm_is_not_pulled_back_to_the_last_command() -> None:
    robot, gate = PausedArm(-0.5), SafetyGate(SLOW, HZ)
    summary = run_episode(robot, towards(-0.5), gate, seed=0)
    assert summary.stopped
    assert gate.counts[Reason.LOOP_PAUSED]
    assert max(robot.jumps) <= TICK_STEP + 1e-6


def test_a_driver_that_comes_back_with_another_zero_does_not_throw_the_arm_to_the_old_command() -> None:
    """It was away for less than what latches the stop. In its new numbers the last command is elsewhere."""
    gate, told = SafetyGate(SLOW, HZ), np.zeros(1, np.float32)
    gate.reset(told)
    for tick in range(20):
        now_ns = tick * 50_000_000
        read_ns = 9 * 50_000_000 if 9 < tick < 15 else now_ns
        read = np.float32([0.6]) if tick >= 15 else told
        gate.inspect(Condition(read, told, read_ns))
        verdict = gate.admit(np.zeros(1, np.float32), now_ns, read_ns, now_ns)
        if tick == 15:
            assert not len(verdict.commands), "no old command in the new numbers"
        else:
            told = verdict.commands[-1]
        if verdict.stopped:
            break
    assert tick == 16, "as soon as two readings agree"
    assert told.tolist() == [np.float32(0.6)]
    assert "is at 0.6 after a silence, its command is 0" in gate.why


@pytest.mark.parametrize("read", [np.float32([np.nan, 0.06, 0.06]), np.float32([0.06, 0.06, np.nan])], ids=str)
def test_what_reads_nothing_and_a_gripper_keep_what_they_were_told(read: Float32Array) -> None:
    """A hand that holds something is not where it was told to be, and must not open."""
    limits = RobotLimits(low=(-1.0,) * 3, high=(1.0,) * 3, max_velocity=(1.0,) * 3, discrete_dims=(1,))
    gate = SafetyGate(replace(limits, joint_monitor=JointMonitorConfig(max_effort=(5.0, 5.0, 5.0))), HZ)
    rest = gate.reset(np.zeros(3, np.float32))
    for now_ns in (0, TICK_NS):
        gate.inspect(Condition(read, rest, now_ns, np.float32([9.0, 0.0, 9.0])))
        verdict = gate.admit(np.float32([0.01, 1.0, 0.01]), now_ns, now_ns, now_ns)
    assert verdict.stopped
    told = np.where(np.isnan(read), np.float32(0), read)
    np.testing.assert_array_equal(verdict.commands[-1], [told[0], 0.0, told[2]])
