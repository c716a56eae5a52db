"""A quaternion and its negative are one rotation: whoever changes the sign asks for no motion."""

from dataclasses import replace

import numpy as np
import pytest

from robot_io.gate import Reason, SafetyGate
from robot_io.limits import RobotLimits
from robot_io.ros2.operator import TopicTakeover
from robot_io.ros2.outputs import with_quaternions
from robot_io.takeover import Clutch
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.protocols import Condition
from vla_rl.core.types import Float32Array

HZ, TICK_NS = 20.0, 50_000_000
LIGHT = RobotLimits(low=(-1.0,) * 7, high=(1.0,) * 7, max_velocity=(2.0,) * 7, quaternions=(3,))
SMOOTH = replace(LIGHT, max_acceleration=(8.0,) * 7, max_jerk=(200.0,) * 7)
FLIP = np.float32([1, 1, 1, -1, -1, -1, -1])


def pose(turned: float) -> Float32Array:
    """At 0.1, 0.2, 0.3, turned by so many radians about z."""
    return np.float32([0.1, 0.2, 0.3, 0, 0, np.sin(turned / 2), np.cos(turned / 2)])


@pytest.mark.parametrize("limits", [LIGHT, SMOOTH], ids=["light", "smooth"])
def test_a_sign_that_changes_from_tick_to_tick_moves_nothing(limits: RobotLimits) -> None:
    gates = SafetyGate(limits, HZ), SafetyGate(limits, HZ)
    for gate in gates:
        gate.reset(pose(0.0))
    for tick in range(40):
        now_ns, action = tick * TICK_NS, pose(0.02 * tick)
        steady = gates[0].admit(action, now_ns, now_ns, now_ns)
        flipping = gates[1].admit(action * FLIP**tick, now_ns, now_ns, now_ns)
        np.testing.assert_array_equal(flipping.commands, steady.commands)
        assert flipping.reasons == steady.reasons


def test_readings_of_the_other_sign_are_the_same_posture() -> None:
    gate = SafetyGate(LIGHT, HZ)
    rest = gate.reset(np.stack([pose(0.4), pose(0.4) * FLIP, pose(0.4)]))
    np.testing.assert_array_equal(rest, pose(0.4))
    for tick in range(40):
        now_ns = tick * TICK_NS
        gate.inspect(Condition(pose(0.4) * FLIP, rest, now_ns))
        verdict = gate.admit(rest, now_ns, now_ns, now_ns)
    assert not verdict.reasons, Reason(verdict.reasons)


def test_a_robot_that_was_turned_in_a_pause_holds_there_whatever_the_sign() -> None:
    gate = SafetyGate(LIGHT, HZ)
    rest = gate.reset(pose(0.0))
    gate.inspect(Condition(rest, rest, 0))
    gate.admit(rest, 0, 0, 0)
    for now_ns in (60 * TICK_NS, 61 * TICK_NS):
        gate.inspect(Condition(pose(2.0) * FLIP, rest, now_ns))
        verdict = gate.admit(rest, now_ns, now_ns, now_ns)
    np.testing.assert_array_equal(verdict.commands[-1], pose(2.0))


def test_the_node_knows_which_numbers_of_its_commands_are_quaternions() -> None:
    joints = [f"{arm}{axis}" for arm in "lr" for axis in ("x", "y", "z", "qx", "qy", "qz", "qw")]
    options = {
        "joints": [*joints, "hand"],
        "outputs": ["hand", "left", "right"],
        "output": {
            "hand": {"type": "array", "joints": ["hand"]},
            "left": {"type": "pose", "joints": joints[:7]},
            "right": {"type": "pose", "joints": joints[7:], "topic": "right/pose"},
        },
    }
    limits = RobotLimits(quaternions=(0,))
    assert with_quaternions(limits, settings_from(options).outputs).quaternions == (0, 4, 11)


def test_a_quaternion_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"quaternions \(4,\) begin four dimensions each, and there are 7"):
        SafetyGate(replace(LIGHT, quaternions=(4,)), HZ)


@pytest.mark.parametrize(
    "limits",
    [
        {"delta_dims": (0, 1, 2, 3, 4, 5, 6)},  # a policy's steps: four of zeros are no rotation, and no step either
        {"discrete_dims": (6,)},
        {"quaternions": (2, 3)},
    ],
    ids=["steps", "on and off", "one another"],
)
def test_a_quaternion_of_dimensions_that_are_something_else_is_refused(limits: dict[str, tuple[int, ...]]) -> None:
    with pytest.raises(ConfigError, match="Quaternions may not overlap each other, delta_dims or discrete_dims"):
        SafetyGate(replace(LIGHT, **{"quaternions": (3,), **limits}), HZ)


def about(axis: int, angle: float) -> Float32Array:
    """A turn by so many radians about x, y or z, as x, y, z, w."""
    turned = np.zeros(4, np.float32)
    turned[axis], turned[3] = np.sin(angle / 2), np.cos(angle / 2)
    return turned


def at(turned: Float32Array) -> Float32Array:
    return np.concatenate([np.float32([0.1, 0.2, 0.3]), turned])


@pytest.mark.parametrize("length", [1.0, 1.02], ids=["unit", "as a device rounds"])
def test_a_relative_takeover_turns_the_tool_as_the_device_is_turned(length: float) -> None:
    """Their sum is another rotation: of a device half a turn away, hardly any."""
    rest, clutch = at(about(2, 0.5)), Clutch(quaternions=[3])
    held = clutch.command(at(about(2, 3.0) * np.float32(length)), rest)
    np.testing.assert_allclose(held, rest, atol=1e-6, err_msg="no posture of the device makes it jump")
    turned = clutch.command(at(about(2, 3.4) * np.float32(length)), held)
    np.testing.assert_allclose(turned, at(about(2, 0.9)), atol=1e-6)


def test_a_relative_takeover_turns_about_the_axes_along_which_it_moves() -> None:
    """Not about those of the tool: its x, y, z are moved in the frame of the commands."""
    clutch = Clutch(quaternions=[3])
    clutch.command(at(about(0, 0.0)), at(about(2, np.pi / 2)))
    turned = clutch.command(at(about(0, np.pi / 2)), at(about(2, np.pi / 2)))
    np.testing.assert_allclose(turned[3:], [0.5, -0.5, 0.5, 0.5], atol=1e-6)  # about z, then about x


def test_a_device_that_says_no_rotation_holds_the_robot() -> None:
    """A pose that nobody has filled in yet."""
    clutch, rest = Clutch(quaternions=[3]), at(about(2, 0.5))
    np.testing.assert_array_equal(clutch.command(at(np.zeros(4, np.float32)), rest), rest)


def test_takeovers_over_topics_know_the_quaternions() -> None:
    rest = at(about(2, 0.5))
    person = TopicTakeover(lambda: rest, lambda: 0, True, Clutch(quaternions=[3]), timeout_ms=100.0)
    person.engage(True)
    for angle in (3.0, 3.4):
        person.move(at(about(2, angle)))
        command = person.command(0, rest)
    np.testing.assert_allclose(command, at(about(2, 0.9)), atol=1e-6)


@pytest.mark.parametrize("length", [0.0, 0.3])
def test_a_quaternion_without_length_is_no_rotation_and_holds_the_robot(length: float) -> None:
    """A pose that nobody has filled in, or a policy that knows none: a controller would make any turn of it."""
    gate = SafetyGate(LIGHT, HZ)
    rest = gate.reset(at(about(2, 0.5)))
    for tick in range(20):
        now_ns = tick * TICK_NS
        verdict = gate.admit(at(about(0, 1.0) * np.float32(length)), now_ns, now_ns, now_ns)
        assert Reason.INVALID_QUATERNION in Reason(verdict.reasons)
        np.testing.assert_array_equal(verdict.commands[-1], rest)
    assert verdict.stopped, "it has lasted"


def test_no_attempt_begins_at_a_posture_without_rotation() -> None:
    """A driver that publishes zeros before it knows where its tool is."""
    with pytest.raises(UserError, match=r"rests at a quaternion of length 0 in dimensions 3 to 6.*expected 1"):
        SafetyGate(LIGHT, HZ).reset(at(np.zeros(4, np.float32)))


def test_what_gives_way_to_a_reading_without_rotation_keeps_its_own() -> None:
    gate = SafetyGate(LIGHT, HZ)
    rest = gate.reset(at(about(2, 0.5)))
    gate.inspect(Condition(rest, rest, 0))
    gate.admit(rest, 0, 0, 0)
    read = at(np.zeros(4, np.float32))
    read[0] = 0.9
    for now_ns in (60 * TICK_NS, 61 * TICK_NS):
        gate.inspect(Condition(read, rest, now_ns))
        verdict = gate.admit(rest, now_ns, now_ns, now_ns)
    np.testing.assert_array_equal(verdict.commands[-1], np.float32([0.9, *rest[1:]]))
