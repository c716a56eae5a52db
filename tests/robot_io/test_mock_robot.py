"""The mock robot, the freshness of readings, and the clutch of leader devices."""

import numpy as np
import pytest

from robot_io.mock_robot import MockRobot, MockRobotConfig
from robot_io.staleness import StalenessFilter
from robot_io.takeover import Clutch
from tests.fakes.failing_robot import FailingRobot, MockFaults
from vla_rl.core.protocols import Robot
from vla_rl.core.types import Float32Array

SECOND = 1_000_000_000


def at(robot: MockRobot, time_s: float) -> None:
    robot.clock.sleep_until_ns(round(time_s * SECOND))


def test_joints_follow_with_their_lag() -> None:
    robot = MockRobot(MockRobotConfig(joints=2, lag_s=0.1))
    assert isinstance(robot, Robot)
    start = robot.rest_command()
    robot.write(start + np.float32(1))
    at(robot, 0.1)
    np.testing.assert_allclose(robot.read().state, start + 1 - np.exp(-1), rtol=1e-5)


def test_the_seed_gives_the_posture() -> None:
    robot = MockRobot()
    postures = []
    for seed in (1, 2, 1):
        robot.reset(seed)
        postures.append(robot.rest_command())
    np.testing.assert_array_equal(postures[0], postures[2])
    assert (postures[0] != postures[1]).any()


def test_without_commands_the_robot_stops_itself() -> None:
    robot = MockRobot(MockRobotConfig(joints=1, command_timeout_ms=200, lag_s=1.0))
    robot.write(robot.rest_command() + np.float32(1))
    at(robot, 1.0)
    resting = robot.read().state
    assert robot.stopped_ns == 200_000_000
    assert robot.truncated
    robot.write(resting + np.float32(1))
    at(robot, 2.0)
    np.testing.assert_array_equal(robot.read().state, resting)


@pytest.mark.parametrize(
    ("faults", "stale"),
    [
        (MockFaults(), set()),
        (MockFaults(camera_freezes_s=0.5), {"front"}),
        (MockFaults(camera_dies_s=0.5), {"front"}),
        (MockFaults(state_nan_s=0.5), {"state"}),
    ],
)
def test_faulty_streams_grow_old(faults: MockFaults, stale: set[str]) -> None:
    robot = FailingRobot(faults)
    for tick in range(30):
        at(robot, tick / 30)
        observation = robot.read()
        robot.write(robot.rest_command())
        assert np.isfinite(observation.state).all()
    now_ns = robot.clock.now_ns()
    assert {name for name, captured_ns in observation.captured_ns.items() if captured_ns < now_ns} == stale
    assert all(now_ns - observation.captured_ns[name] > 0.4 * SECOND for name in stale)


def test_a_stall_blocks_one_reading() -> None:
    robot = FailingRobot(MockFaults(stall_s=0.1, stall_duration_s=0.7))
    at(robot, 0.1)
    robot.read()
    assert robot.clock.now_ns() == pytest.approx(0.8 * SECOND)
    robot.read()
    assert robot.clock.now_ns() == pytest.approx(0.8 * SECOND)


def test_a_still_scene_is_fresh_where_frames_may_repeat() -> None:
    image = np.zeros((20, 20, 3), np.uint8)
    for detect_frozen, expected in [(True, 10), (False, 20)]:
        freshness = StalenessFilter(detect_frozen)
        freshness.image("front", image, 10)
        freshness.image("front", image.copy(), 20)
        assert freshness.captured_ns["front"] == expected


def test_a_state_that_was_never_good_is_infinitely_old() -> None:
    freshness = StalenessFilter(detect_frozen=True)
    assert np.isnan(freshness.state(np.full(2, np.nan, np.float32), 500)).all()
    assert freshness.captured_ns["state"] == 0


def test_the_clutch_moves_relative_to_where_it_engaged() -> None:
    last: Float32Array = np.array([0.5, 0.2], np.float32)
    clutch = Clutch(absolute_dims=[1])
    np.testing.assert_allclose(clutch.command(np.array([3.0, 0.9], np.float32), last), [0.5, 0.9])
    np.testing.assert_allclose(clutch.command(np.array([3.1, 0.8], np.float32), last), [0.6, 0.8], rtol=1e-6)
    clutch.release()
    np.testing.assert_allclose(clutch.command(np.array([3.1, 0.8], np.float32), last), [0.5, 0.8], rtol=1e-6)
    np.testing.assert_array_equal(clutch.command(np.full(2, np.nan, np.float32), last), last, "NaN holds the robot")
    np.testing.assert_allclose(clutch.command(np.ones(2, np.float32), last), [0.5, 1.0], err_msg="and is anchored anew")


def test_a_device_that_says_nan_ends_the_step() -> None:
    last: Float32Array = np.array([0.5, 0.2], np.float32)
    held = Clutch(step_dims=[1]).command(np.array([np.nan, 0.0], np.float32), last)
    np.testing.assert_allclose(held, [0.5, 0.0])
    assert last[1] == np.float32(0.2), "what was sent is another matter"


@pytest.mark.parametrize(("width", "shape"), [(0, (20, 20, 3)), (12, (20, 12, 3)), (31, (20, 31, 3))])
def test_pictures_need_not_be_square(width: int, shape: tuple[int, ...]) -> None:
    robot = MockRobot(MockRobotConfig(image_size=20, image_width=width))
    picture = robot.read().images["front"]
    assert picture.shape == shape
    assert picture.max() == 240, "the square is in the picture"
