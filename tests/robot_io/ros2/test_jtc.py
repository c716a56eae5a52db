"""The emulator of JointTrajectoryController: rules of its documentation, and the real one, cycle by cycle.

Quoted is ros2_controllers' joint_trajectory_controller/doc and the descriptions of its parameters.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from benchmarks.jtc import EXAMPLE, WAYS, judge, measure
from tests.fakes.jtc import JointTrajectoryController, Point, Settings
from tests.fakes.ros2_control import build, scripts
from tests.fakes.ros2_rig import run_with_ros
from tests.fakes.ros2_scripts import ros_or_skip, side_by_side
from vla_rl.core.errors import UserError

HZ = 100.0


class Arm:
    """Two joints at 0 that do what they are told in one cycle; a controller at 100 Hz."""

    def __init__(self, **parameters: Any) -> None:
        parameters = {"interpolate_from_desired_state": True, **parameters}
        self.controller = JointTrajectoryController(Settings(("a", "b"), HZ, **parameters), np.zeros(2))
        self.cycle, self.position = 0, np.zeros(2)
        self.run(1)

    @property
    def now_s(self) -> float:
        return 1.0 + self.cycle / HZ

    def send(self, *points: Point, joints: Sequence[str] = ("a", "b"), stamp_s: float = 0.0) -> str:
        return self.controller.send(joints, points, self.now_s, stamp_s)

    def run(self, cycles: int, stuck: bool = False) -> list[float]:
        """What joint a is told in each."""
        told = []
        for _ in range(cycles):
            command = self.controller.update(self.now_s, self.position, np.zeros(2))
            self.position = self.position if stuck else command
            self.cycle += 1
            told.append(float(command[0]))
        return told


def point(time_s: float, position: float, velocity: float | None = None, acceleration: float | None = None) -> Point:
    fields = (None if value is None else np.full(2, value) for value in (velocity, acceleration))
    return Point(time_s, np.full(2, position), *fields)


def test_positions_alone_are_joined_by_lines() -> None:
    """ "Linear: Used, if only position is specified." """
    arm = Arm(interpolate_from_desired_state=False)
    assert not arm.send(point(0.1, 1.0))
    assert arm.run(11) == pytest.approx([*np.arange(1, 11) / 10, 1.0])


def test_velocities_make_cubics_and_accelerations_quintics() -> None:
    """ "Cubic: Used, if position and velocity are specified." A quintic from rest to rest: 10 s^3 - 15 s^4 + 6 s^5."""
    parts = np.arange(1, 11) / 10
    arm = Arm(interpolate_from_desired_state=False)
    arm.send(point(0.1, 1.0, 0.0))
    assert arm.run(10) == pytest.approx(3 * parts**2 - 2 * parts**3)
    arm = Arm(interpolate_from_desired_state=False)
    arm.send(point(0.1, 1.0, 0.0, 0.0))
    assert arm.run(10) == pytest.approx(10 * parts**3 - 15 * parts**4 + 6 * parts**5)


def test_a_new_trajectory_starts_from_the_measured_state_or_from_the_last_command() -> None:
    """ "The controller ignores the states provided by hardware interface but using last commands as states for starting
    the trajectory interpolation." The time of that command is the cycle before: the first step is twice as long.
    """
    for desired, first in ((False, 0.0 + (1.0 - 0.0) / 10), (True, 0.5 + (1.0 - 0.5) * 2 / 11)):
        arm = Arm(interpolate_from_desired_state=desired)
        arm.send(point(0.1, 1.0))
        arm.run(5 - desired, stuck=True)
        start = arm.controller._commanded.positions[0]
        arm.send(point(0.1, 1.0))
        expected = start + (1.0 - start) * 2 / 11 if desired else first
        assert arm.run(1, stuck=True) == pytest.approx([expected])


def test_the_end_of_a_trajectory_must_rest_unless_it_is_allowed_not_to() -> None:
    """ "If false, the last velocity point has to be zero or the goal will be rejected" """
    assert Arm().send(point(0.1, 1.0, 0.5)) == "the velocity of the last point is not zero"
    assert not Arm(allow_nonzero_velocity_at_trajectory_end=True).send(point(0.1, 1.0, 0.5))


def test_all_joints_have_to_be_there_unless_parts_are_allowed() -> None:
    """ "Allow joint goals defining trajectory for only some joints." """
    one = Point(0.1, np.ones(1))
    assert Arm().send(one, joints=["a"]) == "the joints do not match"
    assert Arm(allow_partial_joints_goal=True).send(one, joints=["c"]) == "no points, or an unknown joint"
    arm = Arm(allow_partial_joints_goal=True)
    assert not arm.send(one, joints=["b"])
    arm.run(12)
    assert arm.position.tolist() == [0.0, 1.0]


def test_points_of_the_past_are_skipped_and_a_trajectory_of_the_past_is_refused() -> None:
    """ "the first waypoint is discarded and only the second one is realized"; "If there are no useful parts [...] the
    new trajectory is rejected"
    """
    arm = Arm()
    assert not arm.send(point(0.0, 1.0), point(0.1, 2.0), stamp_s=arm.now_s - 0.05)
    assert arm.run(6) == pytest.approx([1.6, 1.7, 1.8, 1.9, 2.0, 2.0])
    assert arm.send(point(0.1, 3.0), stamp_s=arm.now_s - 0.2) == "it ends in the past"
    assert arm.run(1) == [2.0], "the one before goes on"
    assert arm.send(point(0.1, 1.0), point(0.1, 2.0)) == "its times do not increase"


def test_commands_that_stay_away_make_it_hold_where_the_robot_is() -> None:
    """ "Timeout after which the input command is considered stale. Timeout is counted from the end" """
    arm = Arm(cmd_timeout=0.2)
    arm.send(point(0.1, 1.0))
    arm.run(10)
    arm.position = np.full(2, 0.8)  # somebody pushes it
    assert arm.run(20, stuck=True) == [1.0] * 20
    assert arm.run(3, stuck=True)[-1] == pytest.approx(0.8)
    assert "cmd_timeout" in arm.controller.why
    arm.send(point(0.1, 1.0))
    assert arm.run(12)[-1] == 1.0


def test_a_robot_that_does_not_follow_is_held() -> None:
    """ "If state tolerances are violated, the trajectory is aborted and the current position is held." """
    arm = Arm(trajectory_tolerance=0.25)
    arm.send(point(0.1, 1.0))
    told = arm.run(10, stuck=True)
    assert max(told) == pytest.approx(0.364, abs=0.1)
    assert told[-1] == 0.0
    assert arm.controller.why.startswith("tolerance")


def test_a_robot_that_does_not_arrive_in_goal_time_is_held() -> None:
    arm = Arm(goal_tolerance=0.1, goal_time=0.1)
    arm.send(point(0.1, 1.0))
    arm.run(5)
    told = arm.run(30, stuck=True)
    assert told[-1] == pytest.approx(arm.position[0])
    assert arm.position[0] < 0.6


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[Any]]:
    try:
        program = build(tmp_path_factory.mktemp("controllers"), ros_or_skip())
    except UserError as missing:
        pytest.skip(str(missing))
    module = "tests.fakes.ros2_control"
    return {
        name: side_by_side.submit(run_with_ros, module, [str(program), name], ros_or_skip(), 120.0)
        for name in scripts()
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", scripts())
def test_it_commands_what_the_real_controller_commands(real: dict[str, Future[Any]], name: str) -> None:
    told = np.array(real[name].result(), np.float64)
    heard = ~np.isnan(told).any(axis=1)
    assert heard.mean() > 0.95
    emulated = scripts()[name].run_emulated()
    assert np.ptp(emulated, axis=0).min() > 0.2, "it moves"
    np.testing.assert_allclose(emulated[heard], told[heard], atol=1e-9)


def test_the_settings_of_the_example_are_smooth_and_stop_at_the_last_command() -> None:
    found = measure()
    assert found["jtc_tracking_error"] < 1e-3
    assert found["jtc_delay_ms"] == 50.0
    assert found["jtc_acceleration"] < 40.0, "the gate's limit is 8 rad/s^2; single points have more than 1000"
    assert found["jtc_beyond"] < 1e-6


@pytest.mark.slow
def test_other_ways_are_rough_or_go_on_without_the_node() -> None:
    assert judge(WAYS["1 point"])["acceleration"] > 20 * judge(WAYS[EXAMPLE])["acceleration"]
    assert judge(WAYS["rest of the chunk"])["beyond"] > 0.1, "what is sent ahead no gate can stop any more"
