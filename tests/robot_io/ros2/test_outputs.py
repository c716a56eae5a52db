"""What each kind of output makes of the gate's commands: the numbers without ROS, the messages over the real rclpy."""

from typing import Any

import numpy as np
import pytest

from robot_io.ros2.outputs import KINDS, Curve, Output, OutputSettings, check_outputs, curve, smooth_velocities
from robot_io.ros2.parameters import Settings
from tests.fakes.jtc import JointTrajectoryController, Point
from tests.fakes.jtc import Settings as ControllerSettings
from tests.fakes.ros2_scripts import ros_or_skip, said_by
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.core.errors import ConfigError
from vla_rl.core.types import Float32Array

MS = 1_000_000
PERIOD_NS = 10 * MS


class Clocked:
    """An output of a trajectory without ROS, whose clock the test moves."""

    def __init__(self, points: int, joints: int = 2) -> None:
        self.now_ns = 10**9
        names = tuple("abcdefg"[:joints])
        settings = OutputSettings("arm", "", "trajectory", names, points)
        self.output = Output(settings, None, PERIOD_NS, lambda: self.now_ns)  # type: ignore[arg-type]
        self.points = points

    def curve(self, command: Float32Array) -> Curve:
        return curve(self.points, self.output.remember(command))


def at(said: Curve, time_ns: int) -> np.ndarray:
    """Where a controller is that follows the cubics of a curve, [A]."""
    assert said.velocities is not None
    times_s = (np.array(said.from_start_ns) + said.start_ns - time_ns) * -1e-9
    index = min(max(int(np.sum(times_s >= 0)) - 1, 0), len(times_s) - 2)
    length_s = (said.from_start_ns[index + 1] - said.from_start_ns[index]) * 1e-9
    part = float(np.clip(times_s[index] / length_s, 0, 1))
    start, end = said.positions[index].astype(float), said.positions[index + 1].astype(float)
    begins, ends = said.velocities[index] * length_s, said.velocities[index + 1] * length_s
    rest = (1 + 2 * part) * (1 - part) ** 2 * start + part**2 * (3 - 2 * part) * end
    moving: np.ndarray = rest + part * (1 - part) ** 2 * begins + part**2 * (part - 1) * ends
    return moving


def test_velocities_are_harmonic_means_and_zero_where_the_motion_turns() -> None:
    commands = np.array([[0, 0, 0, 0], [1, 1, 1, 0], [2, 4, 0, 3]], np.float32)
    found = smooth_velocities(commands, np.array([0.0, 1.0, 2.0]))
    np.testing.assert_allclose(found, [[1, 1.5, 0, 0], [0, 0, 0, 0]])
    # Unequal lengths, slopes 1 and 3: weight (1 + 2 * 2) / 9 of the one after, 1 * 3 / (5 / 9 * 3 + 4 / 9 * 1).
    found = smooth_velocities(np.array([[0], [1], [7]], np.float32), np.array([0.0, 1.0, 3.0]))
    np.testing.assert_allclose(found, [[3 / (15 / 9 + 4 / 9)], [0]])


def test_one_point_is_reached_a_period_after_it_arrives() -> None:
    clocked = Clocked(1)
    clocked.output.begin(np.zeros(2, np.float32))
    said = clocked.curve(np.array([1, 2], np.float32))
    assert (said.positions.tolist(), said.from_start_ns, said.velocities, said.start_ns) == (
        [[1, 2]],
        [PERIOD_NS],
        None,
        0,
    )


@pytest.mark.parametrize("points", [3, 5])
def test_a_curve_goes_on_from_the_one_before_and_never_past_a_command(points: int) -> None:
    """However late the messages, by up to points - 2 periods, no controller that changes to the new one jumps."""
    random = np.random.default_rng(points)
    clocked = Clocked(points)
    rest = np.array([0.3, -0.2], np.float32)
    clocked.output.begin(rest)
    commands, said = [rest] * (points + 1), None
    for tick in range(200):
        late_ns = int(random.integers(0, 3 * MS))
        clocked.now_ns = 10**9 + tick * PERIOD_NS + late_ns
        commands.append((commands[-1] + random.normal(0, 0.01, 2) * (tick % 40 < 30)).astype(np.float32))
        before, said = said, clocked.curve(commands[-1])
        assert said.velocities is not None
        assert not said.velocities[-1].any(), "it ends at rest"
        np.testing.assert_array_equal(said.positions[-1], commands[-1])
        recent = np.array(commands[-points - 1 :])
        times = np.linspace(0, said.from_start_ns[-1], 60)
        if tick == 0:
            continue
        path = np.array([at(said, said.start_ns + int(time)) for time in times])
        assert (path >= recent.min(axis=0) - 1e-6).all()
        assert (path <= recent.max(axis=0) + 1e-6).all()
        if tick > points:
            assert before is not None
            for late in range(1, points - 1):
                changed_ns = said.start_ns + late * PERIOD_NS - MS
                np.testing.assert_allclose(at(before, changed_ns), at(said, changed_ns), atol=1e-6)


def test_stamps_keep_the_pace_of_the_loop_and_follow_its_clock() -> None:
    clocked = Clocked(3)
    clocked.output.begin(np.zeros(2, np.float32))
    starts = []
    for tick in range(4000):
        # The loop is 500 ppm faster than the clock of the stamps: by the end it would be two periods ahead.
        clocked.now_ns = 10**9 + round(tick * PERIOD_NS * 1.0005) + (tick % 3) * MS
        starts.append(clocked.curve(np.zeros(2, np.float32)).start_ns)
    steps = np.diff(starts[3:])
    assert abs(steps - PERIOD_NS).max() < 0.2 * MS, "a third of the lateness of single calls is 1 ms"
    assert abs(starts[-1] - clocked.now_ns) < 2 * MS
    clocked.now_ns += 3 * PERIOD_NS
    assert clocked.curve(np.zeros(2, np.float32)).from_start_ns[-1] > 4.5 * PERIOD_NS, "the pause is in it"


def test_no_command_of_an_attempt_counts_in_the_next_one() -> None:
    clocked = Clocked(5)
    clocked.output.begin(np.zeros(2, np.float32))
    for value in range(10):
        clocked.now_ns += PERIOD_NS
        clocked.curve(np.full(2, value, np.float32))
    rest = np.array([0.5, -0.5], np.float32)
    clocked.now_ns += 10**9
    clocked.output.begin(rest)
    clocked.now_ns += 10**8
    said = clocked.curve(rest + np.float32(0.01))
    np.testing.assert_array_equal(said.positions, [rest + np.float32(0.01)])
    assert said.velocities is not None
    assert not said.velocities.any()
    assert said.start_ns == clocked.now_ns + 5 * PERIOD_NS
    for sent in range(2, 9):
        clocked.now_ns += PERIOD_NS
        assert len(clocked.curve(rest + np.float32(0.01)).positions) == min(sent, 6)


def test_a_robot_that_hangs_below_its_command_is_not_jerked_when_an_attempt_begins() -> None:
    """The controller holds at 0, the robot is measured 0.02 rad below: the first curves lead there without a jump."""
    clocked = Clocked(5, joints=1)
    settings = ControllerSettings(("a",), 500.0, interpolate_from_desired_state=True)
    controller, told = JointTrajectoryController(settings, np.zeros(1)), []
    clocked.output.begin(np.array([-0.02], np.float32))
    for cycle in range(100):
        clocked.now_ns = 10**9 + cycle * 2 * MS
        if cycle % 5 == 0:
            said = clocked.curve(np.array([-0.02], np.float32))
            assert said.velocities is not None
            points = [
                Point(time_ns * 1e-9, position.astype(float), velocity)
                for time_ns, position, velocity in zip(said.from_start_ns, said.positions, said.velocities, strict=True)
            ]
            assert not controller.send(("a",), points, clocked.now_ns * 1e-9, said.start_ns * 1e-9)
        told.append(float(controller.update(clocked.now_ns * 1e-9, np.array([-0.02]))[0]))
    assert told[-1] == pytest.approx(-0.02)
    assert np.abs(np.diff([0.0, *told])).max() < 0.003, "in a cycle of 2 ms; a step would be 0.02"


def settings(**values: Any) -> Settings:
    return settings_from({"joints": ["a", "b"], "outputs": ["arm"], **values})


def test_outputs_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'velocities' is no kind of output.*Did you mean 'velocity'"):
        settings(output={"arm": {"type": "velocities"}})
    with pytest.raises(ConfigError, match=r"takes 1 numbers, output\.arm.joints names 2: a, b"):
        settings(output={"arm": {"type": "gripper"}})
    axes = ["x", "y", "z", "rx", "ry", "rz"]
    cartesian = settings(output={"arm": {"type": "twist", "joints": axes}})
    assert cartesian.command_joints == tuple(axes), "the axes of a twist are no joints"
    with pytest.raises(ConfigError, match="commands joint 'x'"):
        settings(output={"arm": {"type": "array", "joints": axes}})
    with pytest.raises(ConfigError, match="takes steps"):
        check_outputs(cartesian.outputs, [0, 1, 2])
    check_outputs(cartesian.outputs, range(6))
    for kind in ("trajectory", "velocity", "follow_joint_trajectory"):
        with pytest.raises(ConfigError, match=r"takes targets; dimensions \[1\] of the limits are steps"):
            check_outputs(settings(output={"arm": {"type": kind}}).outputs, [1])
    check_outputs(settings(output={"arm": {"type": "array"}}).outputs, [1])


def test_the_usual_names_are_those_of_the_type() -> None:
    assert settings().outputs[0].topic == "arm_controller/joint_trajectory"
    assert settings(output={"arm": {"type": "velocity"}}).outputs[0].topic == "arm_controller/commands"
    assert settings(output={"arm": {"type": "velocity", "topic": "v"}}).outputs[0].topic == "v"


def test_two_outputs_do_not_speak_to_one_controller_nor_two_cameras_show_one_picture() -> None:
    """Two arms with servos of the usual name, and parameters that were copied: each would move as the other should."""
    axes = ["x", "y", "z", "rx", "ry", "rz"]
    arms = {arm: {"type": "twist", "joints": [f"{arm}_{axis}" for axis in axes]} for arm in ("left", "right")}
    with pytest.raises(ConfigError, match=r"outputs left and right have the same topic servo_node/delta_twist_cmds"):
        settings(outputs=["left", "right"], output=arms)
    arms["right"]["topic"] = "right_servo/delta_twist_cmds"
    assert len(settings(outputs=["left", "right"], output=arms).outputs) == 2
    with pytest.raises(ConfigError, match=r"cameras front and wrist have the same topic camera/image_raw"):
        settings(
            cameras=["front", "wrist"], camera={name: {"topic": "camera/image_raw"} for name in ("front", "wrist")}
        )


def test_a_joint_that_stands_there_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"parameter joints names 'a' twice"):
        settings(joints=["a", "b", "a"], output={"arm": {"joints": ["a", "b"]}})


SCRIPT = """
import importlib, json, os, threading, time
import numpy as np
import rclpy
from rclpy.action import ActionServer, CancelResponse
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.executors import MultiThreadedExecutor
from robot_io.ros2.outputs import KINDS, OutputSettings, open_output

rclpy.init()
node, world = rclpy.create_node("policy_node"), rclpy.create_node("world")
executor = MultiThreadedExecutor(4)
executor.add_node(node)
executor.add_node(world)
threading.Thread(target=executor.spin, daemon=True).start()
SIZES = {"twist": 6, "pose": 7, "gripper": 1}
said, slowest_s = {}, 0.0


def until(condition, within_s=10.0):
    end_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.01)
    return bool(condition())


def plain(message):
    if hasattr(message, "get_fields_and_field_types"):
        return {name: plain(getattr(message, name)) for name in message.get_fields_and_field_types()}
    if isinstance(message, (list, tuple)) or hasattr(message, "tolist"):
        return [plain(part) for part in message]
    return message


for name, kind in KINDS.items():
    module, _, interface = kind.interface.rpartition(".")
    interface = getattr(importlib.import_module(module), interface)
    joints = tuple(f"j{index}" for index in range(SIZES.get(name, 2)))
    settings = OutputSettings("arm", f"robot/{name}", name, joints, points=3 if "traj" in name else 1, frame="base",
                              tolerance=0.01, max_effort=5.0)
    output = open_output(node, settings, 50_000_000)
    rest = np.zeros(len(joints), np.float32)
    if name == "pose":
        rest[6] = 2.0
    output.begin(rest)
    received = []
    if kind.is_action:
        began_s = time.monotonic()
        output.send(rest + np.float32(0.5))  # nobody is there
        slowest_s = max(slowest_s, time.monotonic() - began_s)
        answer = {"alone": output.sender.listeners()}

        def execute(goal, received=received, interface=interface):
            received.append(plain(goal.request))
            time.sleep(0.5)  # the goals of a robot take their time
            goal.succeed()
            return interface.Result()

        server = ActionServer(world, interface, f"robot/{name}", execute, callback_group=ReentrantCallbackGroup())
        assert until(output.sender._client.server_is_ready)
        output.begin(rest)
    else:
        answer = {}
        world.create_subscription(interface, f"robot/{name}", lambda m, r=received: r.append(plain(m)), 10)
    assert until(lambda: output.sender.listeners() == 1)
    answer["senders"] = output.sender.senders()
    began_s = time.monotonic()
    for value in (0.1, 0.3, 0.3):
        output.send(rest + np.float32(value))
        time.sleep(0.05)
    slowest_s = max(slowest_s, (time.monotonic() - began_s - 0.15) / 3)
    until(lambda: len(received) >= (2 if name == "gripper" else 3))
    time.sleep(0.2)
    rival = open_output(world, settings, 50_000_000)
    until(lambda: output.sender.senders() == 2)
    answer["beside a rival"] = output.sender.senders()
    rival.sender.destroy()
    said[name] = {**answer, "received": received}
said["slowest"] = slowest_s
print(json.dumps(said), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def said() -> Any:
    return said_by(SCRIPT, environment=ros_or_skip())


def near(values: Any) -> Any:
    return pytest.approx(values, abs=1e-5)


@pytest.mark.slow
def test_every_kind_is_heard_and_rivals_are_seen(said: dict[str, Any]) -> None:
    for name, kind in KINDS.items():
        assert said[name]["senders"] == 1, name
        assert said[name]["beside a rival"] == 2, name
        if kind.is_action:
            assert said[name]["alone"] == 0, name
    assert said["slowest"] < 0.05, "the loop waits for no controller"


@pytest.mark.slow
def test_a_velocity_is_that_of_the_commands_and_zero_where_they_hold(said: dict[str, Any]) -> None:
    assert [message["data"] for message in said["velocity"]["received"]] == [near([2, 2]), near([4, 4]), near([0, 0])]


@pytest.mark.slow
def test_an_array_is_the_command(said: dict[str, Any]) -> None:
    assert [message["data"] for message in said["array"]["received"]] == [
        near([0.1] * 2),
        near([0.3] * 2),
        near([0.3] * 2),
    ]


@pytest.mark.slow
def test_a_twist_is_a_step_per_period(said: dict[str, Any]) -> None:
    message = said["twist"]["received"][1]
    assert list(message["twist"]["linear"].values()) == near([6, 6, 6])
    assert list(message["twist"]["angular"].values()) == near([6, 6, 6])
    assert message["header"]["frame_id"] == "base"
    assert message["header"]["stamp"]["sec"] > 0, "servos drop messages without a stamp"


@pytest.mark.slow
def test_the_quaternion_of_a_pose_has_length_one(said: dict[str, Any]) -> None:
    pose = said["pose"]["received"][0]["pose"]
    assert list(pose["position"].values()) == near([0.1, 0.1, 0.1])
    raw = np.array([0.1, 0.1, 0.1, 2.1])
    assert list(pose["orientation"].values()) == near((raw / np.linalg.norm(raw)).tolist())


@pytest.mark.slow
def test_a_gripper_gets_a_goal_when_its_command_changes(said: dict[str, Any]) -> None:
    goals = [message["command"] for message in said["gripper"]["received"]]
    assert goals == [near({"position": 0.1, "max_effort": 5.0}), near({"position": 0.3, "max_effort": 5.0})]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trajectory", "follow_joint_trajectory"])
def test_a_trajectory_carries_the_last_commands(said: dict[str, Any], name: str) -> None:
    received = said[name]["received"]
    assert len(received) == 3, "the goals of an action do not wait for each other"
    last = received[2] if name == "trajectory" else received[2]["trajectory"]
    assert last["joint_names"] == ["j0", "j1"]
    assert [point["positions"] for point in last["points"]] == [near([value] * 2) for value in (0.1, 0.3, 0.3)]
    velocities = [point["velocities"][0] for point in last["points"]]
    assert velocities == [pytest.approx(8 / 3, rel=0.1), near(0), near(0)]
    times_s = [point["time_from_start"]["sec"] + point["time_from_start"]["nanosec"] * 1e-9 for point in last["points"]]
    assert times_s == [0.0, *(pytest.approx(0.05 * count, abs=0.005) for count in (1, 2))]
