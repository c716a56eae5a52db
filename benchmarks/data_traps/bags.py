"""ROS 2 bags whose joints come in another order, in several messages, twice, or not at all."""

from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import numpy as np

from benchmarks.data_traps.bag_messages import (
    ARM,
    PERIOD_MS,
    Message,
    arm,
    array,
    commands,
    expect_row,
    header,
    imported,
    joint_trajectory,
    make_message,
    moments,
    states,
)
from benchmarks.data_traps.traps import SilentlyWrong, expect, logged, trap

JOINTS = "joints of a bag by name"


@trap(JOINTS, "the names of a JointTrajectory stand in the reverse order of the mapping")
def reversed_trajectory(folder: Path) -> str:
    messages: list[Message] = []
    for tick, moment in enumerate(moments()):
        messages.append(("/joint_states", moment, states(moment, arm(tick))))
        messages.append(("/commands", moment, joint_trajectory(arm(tick, ARM[::-1]))))
    episode = imported(folder, messages, joints=ARM)
    expect_row(episode.state[0], [0.1, 1.1, 2.1, 3.1], "the state")
    expect_row(episode.action_sent[0], [0.1, 1.1, 2.1, 3.1], "the action")
    expect(episode.action_dimensions.names == ARM, f"the action is called {episode.action_dimensions.names}")
    return f"action {np.round(episode.action_sent[0], 3).tolist()} of {episode.action_dimensions.names}"


@trap(JOINTS, "a JointTrajectory with velocities, in reverse order from the middle of the bag on")
def reversed_velocities(folder: Path) -> str:
    messages: list[Message] = []
    for tick, moment in enumerate(moments()):
        names = ARM if tick < 10 else ARM[::-1]
        positions = arm(tick, names)
        messages.append(("/joint_states", moment, states(moment, arm(tick))))
        messages.append(
            ("/commands", moment, joint_trajectory(positions, [10 * value for value in positions.values()]))
        )
    episode = imported(folder, messages, units={"a": "rad", "a.velocities": "rad/s"})
    expect_row(episode.action_sent[20], [0.12, 1.12, 2.12, 3.12, 1.2, 11.2, 21.2, 31.2], "the action")
    expect(episode.action_dimensions.names[4:6] == ("a.velocities", "b.velocities"), str(episode.action_dimensions))
    expect(episode.action_dimensions.units[4] == "rad/s", str(episode.action_dimensions.units))
    return str(episode.action_dimensions)


@trap(JOINTS, "the order of a JointState changes half-way, without joints in the mapping")
def changed_order(folder: Path) -> str:
    messages = commands()
    for tick, moment in enumerate(moments()):
        names = ("c", "a", "b") if tick < 10 else ("a", "b", "c")
        messages.append(("/joint_states", moment, states(moment, arm(tick, names))))
    episode = imported(folder, messages)
    expect_row(np.ptp(episode.state, axis=0), [0.02, 0.02, 0.02], "the travel of the joints")
    expect(episode.state_dimensions.names == ("c", "a", "b"), f"the state is called {episode.state_dimensions.names}")
    expect(not episode.action_dimensions, "an array without names has names")
    expect(not episode.state_dimensions.units, "a bag declares no units")
    return f"{episode.state_dimensions.names}, travel {np.ptp(episode.state, axis=0).round(3).tolist()}"


@trap(JOINTS, "the order of a JointState changes half-way, and its velocities are the state")
def changed_order_of_velocities(folder: Path) -> str:
    messages = commands()
    for tick, moment in enumerate(moments()):
        names = ARM if tick % 2 else ARM[::-1]
        positions = arm(tick, names)
        message = states(moment, positions, [10 * value for value in positions.values()])
        messages.append(("/joint_states", moment, message))
    episode = imported(
        folder, messages, joints=("grip", "a"), state=("/joint_states#position", "/joint_states#velocity")
    )
    expect_row(episode.state[7], [3.107, 0.107, 31.07, 1.07], "the state")
    expect(
        episode.state_dimensions.names == ("grip", "a", "grip.velocity", "a.velocity"), str(episode.state_dimensions)
    )
    return str(episode.state_dimensions.names)


@trap(JOINTS, "a MultiDOFJointState in another order than the mapping")
def reordered_transforms(folder: Path) -> str:
    messages = commands()
    for tick, moment in enumerate(moments()):
        hands = ["right", "left"] if tick % 2 else ["left", "right"]
        transforms = []
        for name in hands:
            place = 1.0 if name == "left" else 2.0
            translation = make_message("geometry_msgs/msg/Vector3", place, 0.0, 0.0)
            rotation = make_message("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0)
            transforms.append(make_message("geometry_msgs/msg/Transform", translation, rotation))
        message = make_message("sensor_msgs/msg/MultiDOFJointState", header(moment), hands, transforms, [], [])
        messages.append(("/hands", moment, message))
    episode = imported(folder, messages, joints=("left", "right"), state=("/hands",))
    for state in episode.state:
        expect_row(state, [1, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 1], "the state")
    names = episode.state_dimensions.names
    expect(names[7] == "right.transforms.translation.x", f"the number at 7 is called {names[7]!r}")
    return ", ".join(names[:3])


def _arm_and_gripper(gripper_until: int = 21, gripper: Iterable[str] = ("grip",), count: int = 21) -> list[Message]:
    """Return an arm at 20 Hz and a gripper 10 ms later on one topic."""
    messages = commands(count)
    for tick, moment in enumerate(moments(count)):
        messages.append(("/joint_states", moment, states(moment, arm(tick, ("a", "b", "c")))))
        if tick < gripper_until:
            messages.append(("/joint_states", moment + 10, states(moment + 10, arm(tick, gripper))))
    return messages


@trap(JOINTS, "arm and gripper in separate messages of one /joint_states")
def arm_and_gripper(folder: Path) -> str:
    episode = imported(folder, _arm_and_gripper(), joints=("grip", "a", "b", "c"))
    expect_row(episode.state[5], [3.105, 0.105, 1.105, 2.105], "the state")
    delay_ms = np.diff(episode.extras["captured_ns.state"]).max() / 1e6
    expect(delay_ms == PERIOD_MS, f"the state is up to {delay_ms} ms old")
    return f"{len(episode)} steps of {episode.state_dimensions.names}"


@trap(JOINTS, "arm and gripper in separate messages, without joints in the mapping")
def arm_and_gripper_as_they_come(folder: Path) -> str:
    episode = imported(folder, _arm_and_gripper())
    expect(episode.state_dimensions.names == ARM, f"the state is called {episode.state_dimensions.names}")
    expect_row(episode.state[5], [0.105, 1.105, 2.105, 3.105], "the state")
    return f"{len(episode)} steps of {episode.state_dimensions.names}"


@trap(JOINTS, "the driver of the gripper dies 2 s before the end on a shared /joint_states")
def dead_gripper(folder: Path) -> str:
    with logged() as lines:
        episode = imported(folder, _arm_and_gripper(20, count=61))
    expect(len(episode) < 22, f"the episode has {len(episode)} steps, of which the gripper's driver saw 20")
    expect(any("/joint_states ends 2.0 s before" in line for line in lines), f"nothing is printed about it: {lines}")
    return lines[0]


@trap(JOINTS, "the gripper of the mapping never comes on /joint_states", remedy="Correct `joints`")
def missing_gripper(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(imported(folder, _arm_and_gripper(0), joints=ARM))} steps")


@trap(JOINTS, "two drivers publish one joint on /joint_states", remedy="one driver per joint")
def doubled_joint(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(imported(folder, _arm_and_gripper(21, ('c', 'grip'))))} steps")


@trap(JOINTS, "the mapping names a joint twice", remedy="Correct `joints`")
def doubled_in_mapping(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(imported(folder, _arm_and_gripper(), joints=('a', 'b', 'a')))} steps")


@trap(
    JOINTS, "the action lacks a joint of the mapping, the state has it", remedy="asked for are ['a', 'b', 'c', 'grip']"
)
def missing_in_action(folder: Path) -> NoReturn:
    messages: list[Message] = []
    for tick, moment in enumerate(moments()):
        messages.append(("/joint_states", moment, states(moment, arm(tick))))
        messages.append(("/commands", moment, joint_trajectory(arm(tick, ("c", "b", "a")))))
    raise SilentlyWrong(f"accepted: {len(imported(folder, messages, joints=ARM))} steps")


@trap(JOINTS, "a JointState has fewer positions than names", remedy="for the 4 joints")
def short_positions(folder: Path) -> NoReturn:
    messages = commands()
    for tick, moment in enumerate(moments()):
        message = states(moment, arm(tick))
        message.position = message.position[:3]
        messages.append(("/joint_states", moment, message))
    raise SilentlyWrong(f"accepted: {len(imported(folder, messages))} steps")


@trap(JOINTS, "joints are named, but no message carries names", remedy="Leave `joints` out")
def names_for_arrays(folder: Path) -> NoReturn:
    messages = [*commands(), *(("/state", moment, array([1.0, 2.0])) for moment in moments())]
    raise SilentlyWrong(f"accepted: {len(imported(folder, messages, state=('/state',), joints=('b', 'a')))} steps")


@trap(JOINTS, "two arms with equal joint names in namespaces of their own")
def two_arms(folder: Path) -> str:
    messages = commands()
    for tick, moment in enumerate(moments()):
        messages.append(("/left/joint_states", moment, states(moment, arm(tick, ("a", "b")))))
        messages.append(("/right/joint_states", moment, states(moment, arm(tick, ("b", "a")))))
    episode = imported(folder, messages, joints=("a", "b"), state=("/left/joint_states", "/right/joint_states"))
    expect_row(episode.state[0], [0.1, 1.1, 0.1, 1.1], "the state")
    names = episode.state_dimensions.names
    expect(names[0] == "/left/joint_states:a" and names[3] == "/right/joint_states:b", f"the state is called {names}")
    return ", ".join(names)


@trap(JOINTS, "a state of one topic with names and one without")
def partly_named(folder: Path) -> str:
    messages = [*commands(), *(("/gripper", moment, array([7.0])) for moment in moments())]
    messages += [("/joint_states", moment, states(moment, arm(0, ("b", "a")))) for moment in moments()]
    episode = imported(folder, messages, joints=("a", "b"), state=("/joint_states", "/gripper"))
    expect_row(episode.state[0], [0.1, 1.1, 7.0], "the state")
    expect(not episode.state_dimensions, f"the state is called {episode.state_dimensions.names}")
    return "no names are declared"


@trap(JOINTS, "units for a vector that has no names", remedy="carries none")
def units_without_names(folder: Path) -> NoReturn:
    messages = [*commands(), *(("/gripper", moment, array([7.0])) for moment in moments())]
    raise SilentlyWrong(f"{len(imported(folder, messages, state=('/gripper',), units={'grip': 'm'}))} steps")


@trap(JOINTS, "a message type with constants (sensor_msgs/Range) is the state")
def constants(folder: Path) -> str:
    messages = commands()
    for moment in moments():
        message = make_message("sensor_msgs/msg/Range", header(moment), 1, 0.5, 0.02, 4.0, 1.25, 0.01)
        messages.append(("/range", moment, message))
    episode = imported(folder, messages, state=("/range",))
    expect_row(episode.state[0], [1, 0.5, 0.02, 4.0, 1.25, 0.01], "the state")
    return f"{episode.state.shape[1]} numbers"
