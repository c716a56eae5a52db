"""What ros2_controllers' JointTrajectoryController does with position commands, in simulated time, without ROS.

After its documentation (doc/userdoc.rst, doc/trajectory.rst, the descriptions of its parameters) and its version 4.42
for Jazzy, with which `tests/robot_io/ros2/test_jtc.py` compares it cycle by cycle. Left out: velocity and effort
interfaces with their PID loops, speed scaling, continuous joints, deceleration on cancel, points without positions.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Point:
    """A trajectory_msgs/JointTrajectoryPoint: float64 [A] each, and seconds."""

    time_from_start: float
    positions: Vector
    velocities: Vector | None = None
    accelerations: Vector | None = None


@dataclass(frozen=True)
class Settings:
    """Parameters of the controller, by their names, with its defaults.

    Attributes:
        update_hz: of the controller manager.
        velocity_state: ``state_interfaces`` has velocity.
        trajectory_tolerance, goal_tolerance: ``constraints.JOINT.trajectory`` and ``.goal``; 0: none.
        goal_time: ``constraints.goal_time``; 0: it waits for ever.
    """

    joints: tuple[str, ...]
    update_hz: float = 500.0
    velocity_state: bool = True
    interpolate_from_desired_state: bool = False
    allow_partial_joints_goal: bool = False
    allow_nonzero_velocity_at_trajectory_end: bool = False
    cmd_timeout: float = 0.0
    trajectory_tolerance: float = 0.0
    goal_tolerance: float = 0.0
    goal_time: float = 0.0


@dataclass
class _Trajectory:
    points: Sequence[Point]
    stamp_s: float
    holding: bool = False
    start_s: float | None = None
    before_s: float = 0.0
    before: Point = field(default_factory=lambda: Point(0.0, np.empty(0)))


class JointTrajectoryController:
    """One active controller.

    Args:
        settings: its parameters.
        position: float64 [A], where the robot is on activation; it holds there.

    Attributes:
        desired: float64 [A], where it wanted the robot to be in the last cycle.
        why: why it holds, or refused the last trajectory; empty if neither.
    """

    def __init__(self, settings: Settings, position: Vector) -> None:
        self.settings = settings
        self._period_s = 1.0 / settings.update_hz
        self._commanded = Point(0.0, position, np.zeros_like(position), np.zeros_like(position))
        self._commanded_s: float | None = None
        self._position = position
        self._next: _Trajectory | None = _Trajectory([Point(0.0, position)], 0.0, holding=True)
        self._current = self._next
        self._time_s = 0.0
        self.desired = position
        self.why = ""

    def send(self, joints: Sequence[str], points: Sequence[Point], now_s: float, stamp_s: float = 0.0) -> str:
        """A message on ``~/joint_trajectory``; returns why it is refused, empty if it is not."""
        self.why = self._objection(joints, points, now_s, stamp_s)
        if not self.why:
            order = [list(joints).index(joint) if joint in joints else -1 for joint in self.settings.joints]
            self._next = _Trajectory([self._sorted(point, order) for point in points], stamp_s)
        return self.why

    def update(self, now_s: float, position: Vector, velocity: Vector | None = None) -> Vector:
        """One cycle: from the measured position (and velocity) to the position command, float64 [A] each."""
        self._position = position
        if self._next is not None:
            self._current, self._next = self._next, None
        trajectory = self._current
        first_sample = trajectory.start_s is None
        if trajectory.start_s is None:
            trajectory.start_s = trajectory.stamp_s or now_s
            self._begin(trajectory, now_s, position, velocity)
            self._time_s = now_s
        else:
            self._time_s += self._period_s
        # The setpoint is that of the next cycle: it is there when the hardware has taken it.
        desired, _ = _sample(trajectory, self._time_s)
        command, end_s = _sample(trajectory, self._time_s + self._period_s)
        self.desired = desired.positions
        error = np.abs(position - desired.positions).max()
        late_s = self._time_s - end_s if end_s is not None else 0.0
        self._judge(trajectory, error, end_s is not None, late_s, first_sample)
        if self._next is None or not self.why.startswith("tolerance"):
            self._commanded, self._commanded_s = command, now_s
        return self._commanded.positions

    def _begin(self, trajectory: _Trajectory, now_s: float, position: Vector, velocity: Vector | None) -> None:
        """Where the interpolation starts: the last command, or the measured state."""
        if self.settings.interpolate_from_desired_state:
            trajectory.before_s = now_s if self._commanded_s is None else self._commanded_s
            trajectory.before = self._commanded
        else:
            measured = velocity if self.settings.velocity_state else None
            trajectory.before_s, trajectory.before = now_s, Point(0.0, position, measured)

    def _judge(self, trajectory: _Trajectory, error: float, ended: bool, late_s: float, first_sample: bool) -> None:
        """Tolerances and the timeout: each makes the controller hold the measured position."""
        settings = self.settings
        if trajectory.holding:
            return
        if ended and settings.cmd_timeout > settings.goal_time and late_s > settings.cmd_timeout:
            self._hold("timeout: no command came for cmd_timeout after the last point")
        if (not ended or first_sample) and 0 < settings.trajectory_tolerance < error:
            self._hold("tolerance: the robot does not follow")
        if ended and 0 < settings.goal_tolerance < error and 0 < settings.goal_time < late_s:
            self._hold("tolerance: the goal was not reached in goal_time")

    def _hold(self, why: str) -> None:
        self.why = why
        self._next = _Trajectory([Point(0.0, self._position)], 0.0, holding=True)

    def _objection(self, joints: Sequence[str], points: Sequence[Point], now_s: float, stamp_s: float) -> str:
        settings = self.settings
        if len(joints) != len(settings.joints) and not settings.allow_partial_joints_goal:
            return "the joints do not match"
        if not joints or not points or set(joints) - set(settings.joints):
            return "no points, or an unknown joint"
        ending = points[-1].velocities
        if ending is not None and ending.any() and not settings.allow_nonzero_velocity_at_trajectory_end:
            return "the velocity of the last point is not zero"
        if stamp_s and stamp_s + points[-1].time_from_start < now_s:
            return "it ends in the past"
        times = [point.time_from_start for point in points]
        if any(later <= earlier for earlier, later in itertools.pairwise(times)):
            return "its times do not increase"
        return ""

    def _sorted(self, point: Point, order: Sequence[int]) -> Point:
        """In the controller's order; joints that are left out stay where they are."""
        given = np.array(order) >= 0

        def fill(values: Vector | None, rest: Vector) -> Vector | None:
            return None if values is None else np.where(given, values[np.maximum(order, 0)], rest)

        positions, nothing = fill(point.positions, self._position), np.zeros(len(order))
        assert positions is not None
        velocities, accelerations = fill(point.velocities, nothing), fill(point.accelerations, nothing)
        return Point(point.time_from_start, positions, velocities, accelerations)


def _sample(trajectory: _Trajectory, time_s: float) -> tuple[Point, float | None]:
    """Where the trajectory is, and when it ended; None if it has not."""
    assert trajectory.start_s is not None
    times = [trajectory.before_s, *(trajectory.start_s + point.time_from_start for point in trajectory.points)]
    points = [trajectory.before, *trajectory.points]
    if times[1] - time_s > _ROUNDING_S:
        return _between(times[0], points[0], times[1], points[1], time_s), None
    for index in range(1, len(points) - 1):
        if times[index] - _ROUNDING_S <= time_s < times[index + 1] - _ROUNDING_S:
            return _between(times[index], points[index], times[index + 1], points[index + 1], time_s), None
    last, still = points[-1], np.zeros_like(points[-1].positions)
    velocities = still if last.velocities is None else last.velocities
    return Point(0.0, last.positions, velocities, last.accelerations), times[-1]


_ROUNDING_S = 1e-9  # its times are whole nanoseconds


def _between(start_s: float, start: Point, end_s: float, end: Point, time_s: float) -> Point:
    """Linear, cubic or quintic: the polynomial that has the fields which both points have at both ends.

    A start without velocities, as of hardware that measures none, rests.
    """
    duration_s = end_s - start_s
    still = np.zeros_like(start.positions)
    fields_start, fields_end = [start.positions], [end.positions]
    if end.velocities is not None:
        fields_start.append((still if start.velocities is None else start.velocities) * duration_s)
        fields_end.append(end.velocities * duration_s)
        if end.accelerations is not None:
            fields_start.append((still if start.accelerations is None else start.accelerations) * duration_s**2)
            fields_end.append(end.accelerations * duration_s**2)
    count = len(fields_start)
    coefficients = _fit(count) @ np.array(fields_start + fields_end)
    part = min(max((time_s - start_s) / duration_s, 0.0), 1.0)
    position, velocity, acceleration = (_derivative(2 * count, part, order) @ coefficients for order in range(3))
    return Point(0.0, position, velocity / duration_s, acceleration / duration_s**2)


@functools.cache
def _fit(count: int) -> NDArray[np.float64]:
    """From the first ``count`` derivatives at 0, then at 1, to the coefficients of the polynomial."""
    conditions = [_derivative(2 * count, at, order) for at in (0.0, 1.0) for order in range(count)]
    return np.linalg.inv(np.array(conditions))


def _derivative(size: int, at: float, order: int) -> Vector:
    """That of 1, t, t^2, ... t^(size - 1) at a time."""
    terms = (math.perm(power, order) * at ** max(power - order, 0) for power in range(size))
    return np.array(list(terms))
