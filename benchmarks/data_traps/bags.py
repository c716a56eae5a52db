"""ROS 2 bags: joints in another order, clocks that differ, outcomes that are numbers, cameras that stand still."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from benchmarks.data_traps.traps import SilentlyWrong, expect, logged, trap
from vla_rl.core.types import Episode
from vla_rl.data.rosbag_import import BagMapping, import_bag
from vla_rl.data.store import EpisodeStore

JOINTS = "joints of a bag by name"
CLOCKS = "clocks of a bag"
MARKS = "marks of a bag"
PICTURES = "cameras of a bag"

_START_NS = 1_700_000_000_000_000_000
_PERIOD_MS = 50
_ARM = ("a", "b", "c", "grip")
Message = tuple[str, int, Any]
"""Topic, time of recording in ms since the start, message."""


@functools.cache
def _types() -> Any:
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_JAZZY)


def _make(kind: str, *fields: Any) -> Any:
    return _types().types[kind](*fields)


def _header(moment_ms: float | None) -> Any:
    """Return a header with a stamp at ms since the start; None: a stamp of zero."""
    moment_ns = 0 if moment_ms is None else _START_NS + int(moment_ms * 1e6)
    return _make("std_msgs/msg/Header", _make("builtin_interfaces/msg/Time", *divmod(moment_ns, 10**9)), "")


def _states(moment_ms: float | None, values: dict[str, float], velocity: Sequence[float] = ()) -> Any:
    position = np.array([*values.values()], np.float64)
    return _make(
        "sensor_msgs/msg/JointState", _header(moment_ms), [*values], position, np.array(velocity, float), np.zeros(0)
    )


def _trajectory(values: dict[str, float], velocities: Sequence[float] = ()) -> Any:
    duration, nothing = _make("builtin_interfaces/msg/Duration", 0, 0), np.zeros(0)
    point = _make(
        "trajectory_msgs/msg/JointTrajectoryPoint",
        np.array([*values.values()], np.float64),
        np.array(velocities, np.float64),
        nothing,
        nothing,
        duration,
    )
    return _make("trajectory_msgs/msg/JointTrajectory", _header(None), [*values], [point])


def _array(values: Sequence[float]) -> Any:
    layout = _make("std_msgs/msg/MultiArrayLayout", [], 0)
    return _make("std_msgs/msg/Float64MultiArray", layout, np.array(values, np.float64))


def _picture(moment_ms: float, value: int, size: tuple[int, int] = (4, 6)) -> Any:
    pixels = np.full((*size, 3), value % 256, np.uint8)
    return _make("sensor_msgs/msg/Image", _header(moment_ms), *size, "rgb8", 0, 3 * size[1], pixels.ravel())


def _moments(count: int = 21) -> range:
    return range(0, count * _PERIOD_MS, _PERIOD_MS)


def _arm(tick: int, names: Iterable[str] = _ARM) -> dict[str, float]:
    """Return positions that tell the joints apart: a is 0.1, b 1.1, c 2.1 and grip 3.1, plus the tick / 1000."""
    return {name: _ARM.index(name) + 0.1 + tick / 1000 for name in names}


def _commands(count: int = 21) -> list[Message]:
    return [("/commands", moment, _array([0.5, 0.5])) for moment in _moments(count)]


def _taken(folder: Path, messages: list[Message], **mapping: Any) -> Episode:
    """Write a bag and return the episode that it becomes at 20 Hz."""
    from rosbags.rosbag2 import Writer

    with Writer(folder / "bag", version=9) as writer:
        topics: dict[str, Any] = {}
        for topic, recorded_ms, message in sorted(messages, key=lambda entry: entry[1]):
            if topic not in topics:
                topics[topic] = writer.add_connection(topic, message.__msgtype__, typestore=_types())
            raw = _types().serialize_cdr(message, message.__msgtype__)
            writer.write(topics[topic], _START_NS + recorded_ms * 10**6, raw)
    store = EpisodeStore(folder / "store")
    (name,) = import_bag(folder / "bag", store, BagMapping(**mapping))
    return store.read(name)


def _expect_row(found: np.ndarray[Any, Any], right: Sequence[float], what: str) -> None:
    expect(np.allclose(found, right, atol=2e-3), f"{what} is {np.round(found, 3).tolist()}, expected {list(right)}")


@trap(JOINTS, "the names of a JointTrajectory stand in the reverse order of the mapping")
def reversed_trajectory(folder: Path) -> str:
    messages: list[Message] = []
    for tick, moment in enumerate(_moments()):
        messages.append(("/joint_states", moment, _states(moment, _arm(tick))))
        messages.append(("/commands", moment, _trajectory(_arm(tick, _ARM[::-1]))))
    episode = _taken(folder, messages, joints=_ARM)
    _expect_row(episode.state[0], [0.1, 1.1, 2.1, 3.1], "the state")
    _expect_row(episode.action_sent[0], [0.1, 1.1, 2.1, 3.1], "the action")
    expect(episode.action_dimensions.names == _ARM, f"the action is called {episode.action_dimensions.names}")
    return f"action {np.round(episode.action_sent[0], 3).tolist()} of {episode.action_dimensions.names}"


@trap(JOINTS, "a JointTrajectory with velocities, in reverse order from the middle of the bag on")
def reversed_velocities(folder: Path) -> str:
    messages: list[Message] = []
    for tick, moment in enumerate(_moments()):
        names = _ARM if tick < 10 else _ARM[::-1]
        positions = _arm(tick, names)
        messages.append(("/joint_states", moment, _states(moment, _arm(tick))))
        messages.append(("/commands", moment, _trajectory(positions, [10 * value for value in positions.values()])))
    episode = _taken(folder, messages, units={"a": "rad", "a.velocities": "rad/s"})
    _expect_row(episode.action_sent[20], [0.12, 1.12, 2.12, 3.12, 1.2, 11.2, 21.2, 31.2], "the action")
    expect(episode.action_dimensions.names[4:6] == ("a.velocities", "b.velocities"), str(episode.action_dimensions))
    expect(episode.action_dimensions.units[4] == "rad/s", str(episode.action_dimensions.units))
    return str(episode.action_dimensions)


@trap(JOINTS, "the order of a JointState changes half-way, without joints in the mapping")
def changed_order(folder: Path) -> str:
    messages = _commands()
    for tick, moment in enumerate(_moments()):
        names = ("c", "a", "b") if tick < 10 else ("a", "b", "c")
        messages.append(("/joint_states", moment, _states(moment, _arm(tick, names))))
    episode = _taken(folder, messages)
    _expect_row(np.ptp(episode.state, axis=0), [0.02, 0.02, 0.02], "the travel of the joints")
    expect(episode.state_dimensions.names == ("c", "a", "b"), f"the state is called {episode.state_dimensions.names}")
    expect(not episode.action_dimensions, "an array without names has names")
    expect(not episode.state_dimensions.units, "a bag declares no units")
    return f"{episode.state_dimensions.names}, travel {np.ptp(episode.state, axis=0).round(3).tolist()}"


@trap(JOINTS, "the order of a JointState changes half-way, and its velocities are the state")
def changed_order_of_velocities(folder: Path) -> str:
    messages = _commands()
    for tick, moment in enumerate(_moments()):
        names = _ARM if tick % 2 else _ARM[::-1]
        positions = _arm(tick, names)
        message = _states(moment, positions, [10 * value for value in positions.values()])
        messages.append(("/joint_states", moment, message))
    episode = _taken(folder, messages, joints=("grip", "a"), state=("/joint_states#position", "/joint_states#velocity"))
    _expect_row(episode.state[7], [3.107, 0.107, 31.07, 1.07], "the state")
    expect(
        episode.state_dimensions.names == ("grip", "a", "grip.velocity", "a.velocity"), str(episode.state_dimensions)
    )
    return str(episode.state_dimensions.names)


@trap(JOINTS, "a MultiDOFJointState in another order than the mapping")
def reordered_transforms(folder: Path) -> str:
    messages = _commands()
    for tick, moment in enumerate(_moments()):
        hands = ["right", "left"] if tick % 2 else ["left", "right"]
        transforms = []
        for name in hands:
            place = 1.0 if name == "left" else 2.0
            translation = _make("geometry_msgs/msg/Vector3", place, 0.0, 0.0)
            rotation = _make("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0)
            transforms.append(_make("geometry_msgs/msg/Transform", translation, rotation))
        message = _make("sensor_msgs/msg/MultiDOFJointState", _header(moment), hands, transforms, [], [])
        messages.append(("/hands", moment, message))
    episode = _taken(folder, messages, joints=("left", "right"), state=("/hands",))
    for state in episode.state:
        _expect_row(state, [1, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 1], "the state")
    names = episode.state_dimensions.names
    expect(names[7] == "right.transforms.translation.x", f"the number at 7 is called {names[7]!r}")
    return ", ".join(names[:3])


def _arm_and_gripper(gripper_until: int = 21, gripper: Iterable[str] = ("grip",), count: int = 21) -> list[Message]:
    """Return an arm at 20 Hz and a gripper 10 ms later on one topic."""
    messages = _commands(count)
    for tick, moment in enumerate(_moments(count)):
        messages.append(("/joint_states", moment, _states(moment, _arm(tick, ("a", "b", "c")))))
        if tick < gripper_until:
            messages.append(("/joint_states", moment + 10, _states(moment + 10, _arm(tick, gripper))))
    return messages


@trap(JOINTS, "arm and gripper in separate messages of one /joint_states")
def arm_and_gripper(folder: Path) -> str:
    episode = _taken(folder, _arm_and_gripper(), joints=("grip", "a", "b", "c"))
    _expect_row(episode.state[5], [3.105, 0.105, 1.105, 2.105], "the state")
    delay_ms = np.diff(episode.extras["captured_ns.state"]).max() / 1e6
    expect(delay_ms == _PERIOD_MS, f"the state is up to {delay_ms} ms old")
    return f"{len(episode)} steps of {episode.state_dimensions.names}"


@trap(JOINTS, "arm and gripper in separate messages, without joints in the mapping")
def arm_and_gripper_as_they_come(folder: Path) -> str:
    episode = _taken(folder, _arm_and_gripper())
    expect(episode.state_dimensions.names == _ARM, f"the state is called {episode.state_dimensions.names}")
    _expect_row(episode.state[5], [0.105, 1.105, 2.105, 3.105], "the state")
    return f"{len(episode)} steps of {episode.state_dimensions.names}"


@trap(JOINTS, "the driver of the gripper dies 2 s before the end on a shared /joint_states")
def dead_gripper(folder: Path) -> str:
    with logged() as lines:
        episode = _taken(folder, _arm_and_gripper(20, count=61))
    expect(len(episode) < 22, f"the episode has {len(episode)} steps, of which the gripper's driver saw 20")
    expect(any("/joint_states ends 2.0 s before" in line for line in lines), f"nothing is printed about it: {lines}")
    return lines[0]


@trap(JOINTS, "the gripper of the mapping never comes on /joint_states", remedy="Correct `joints`")
def missing_gripper(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(_taken(folder, _arm_and_gripper(0), joints=_ARM))} steps")


@trap(JOINTS, "two drivers publish one joint on /joint_states", remedy="one driver per joint")
def doubled_joint(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(_taken(folder, _arm_and_gripper(21, ('c', 'grip'))))} steps")


@trap(JOINTS, "the mapping names a joint twice", remedy="Correct `joints`")
def doubled_in_mapping(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(_taken(folder, _arm_and_gripper(), joints=('a', 'b', 'a')))} steps")


@trap(
    JOINTS, "the action lacks a joint of the mapping, the state has it", remedy="asked for are ['a', 'b', 'c', 'grip']"
)
def missing_in_action(folder: Path) -> NoReturn:
    messages: list[Message] = []
    for tick, moment in enumerate(_moments()):
        messages.append(("/joint_states", moment, _states(moment, _arm(tick))))
        messages.append(("/commands", moment, _trajectory(_arm(tick, ("c", "b", "a")))))
    raise SilentlyWrong(f"accepted: {len(_taken(folder, messages, joints=_ARM))} steps")


@trap(JOINTS, "a JointState has fewer positions than names", remedy="for the 4 joints")
def short_positions(folder: Path) -> NoReturn:
    messages = _commands()
    for tick, moment in enumerate(_moments()):
        message = _states(moment, _arm(tick))
        message.position = message.position[:3]
        messages.append(("/joint_states", moment, message))
    raise SilentlyWrong(f"accepted: {len(_taken(folder, messages))} steps")


@trap(JOINTS, "joints are named, but no message carries names", remedy="Leave `joints` out")
def names_for_arrays(folder: Path) -> NoReturn:
    messages = [*_commands(), *(("/state", moment, _array([1.0, 2.0])) for moment in _moments())]
    raise SilentlyWrong(f"accepted: {len(_taken(folder, messages, state=('/state',), joints=('b', 'a')))} steps")


@trap(JOINTS, "two arms with equal joint names in namespaces of their own")
def two_arms(folder: Path) -> str:
    messages = _commands()
    for tick, moment in enumerate(_moments()):
        messages.append(("/left/joint_states", moment, _states(moment, _arm(tick, ("a", "b")))))
        messages.append(("/right/joint_states", moment, _states(moment, _arm(tick, ("b", "a")))))
    episode = _taken(folder, messages, joints=("a", "b"), state=("/left/joint_states", "/right/joint_states"))
    _expect_row(episode.state[0], [0.1, 1.1, 0.1, 1.1], "the state")
    names = episode.state_dimensions.names
    expect(names[0] == "/left/joint_states:a" and names[3] == "/right/joint_states:b", f"the state is called {names}")
    return ", ".join(names)


@trap(JOINTS, "a state of one topic with names and one without")
def partly_named(folder: Path) -> str:
    messages = [*_commands(), *(("/gripper", moment, _array([7.0])) for moment in _moments())]
    messages += [("/joint_states", moment, _states(moment, _arm(0, ("b", "a")))) for moment in _moments()]
    episode = _taken(folder, messages, joints=("a", "b"), state=("/joint_states", "/gripper"))
    _expect_row(episode.state[0], [0.1, 1.1, 7.0], "the state")
    expect(not episode.state_dimensions, f"the state is called {episode.state_dimensions.names}")
    return "no names are declared"


@trap(JOINTS, "units for a vector that has no names", remedy="carries none")
def units_without_names(folder: Path) -> NoReturn:
    messages = [*_commands(), *(("/gripper", moment, _array([7.0])) for moment in _moments())]
    raise SilentlyWrong(f"{len(_taken(folder, messages, state=('/gripper',), units={'grip': 'm'}))} steps")


@trap(JOINTS, "a message type with constants (sensor_msgs/Range) is the state")
def constants(folder: Path) -> str:
    messages = _commands()
    for moment in _moments():
        message = _make("sensor_msgs/msg/Range", _header(moment), 1, 0.5, 0.02, 4.0, 1.25, 0.01)
        messages.append(("/range", moment, message))
    episode = _taken(folder, messages, state=("/range",))
    _expect_row(episode.state[0], [1, 0.5, 0.02, 4.0, 1.25, 0.01], "the state")
    return f"{episode.state.shape[1]} numbers"


@trap(CLOCKS, "some messages of a topic have a stamp of zero", remedy="header_stamps: false")
def missing_stamps(folder: Path) -> NoReturn:
    messages = _commands()
    for tick, moment in enumerate(_moments()):
        messages.append(("/joint_states", moment + 3, _states(None if tick % 5 == 0 else moment, _arm(tick))))
    raise SilentlyWrong(f"accepted: {len(_taken(folder, messages))} steps")


def _late_clock(folder: Path, **mapping: Any) -> Episode:
    """Return an episode of joints that are stamped by a clock 2.5 s behind the recorder's; commands have no stamps."""
    messages = _commands(101)
    for tick, moment in enumerate(_moments(101)):
        messages.append(("/joint_states", moment + 3, _states(moment - 2500, _arm(tick))))
    return _taken(folder, messages, **mapping)


@trap(
    CLOCKS, "the robot's clock is 2.5 s behind that of the recorder, which stamps the commands", "header_stamps: false"
)
def late_clock(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(_late_clock(folder))} steps")


@trap(CLOCKS, "the same bag with the remedy that the refusal names")
def late_clock_by_recording(folder: Path) -> str:
    episode = _late_clock(folder, header_stamps=False)
    _expect_row(episode.state[50], [0.15, 1.15, 2.15, 3.15], "the state at the middle")
    return f"{len(episode)} steps"


@trap(CLOCKS, "all stamps are of a simulation's clock, which began at 0 an hour ago", remedy="header_stamps: false")
def clock_of_a_simulation(folder: Path) -> NoReturn:
    messages = _commands()
    for tick, moment in enumerate(_moments()):
        messages.append(("/joint_states", moment, _states(moment + 3_600_000 - _START_NS / 1e6, _arm(tick))))
    raise SilentlyWrong(f"accepted: {len(_taken(folder, messages))} steps")


@trap(CLOCKS, "the clock of the joints is set back by 0.4 s half-way", remedy="header_stamps: false")
def stamps_go_back(folder: Path) -> NoReturn:
    messages = _commands(41)
    for tick, moment in enumerate(_moments(41)):
        stamp_ms = moment if tick < 20 else moment - 400
        messages.append(("/joint_states", moment + 3, _states(stamp_ms, _arm(tick))))
    raise SilentlyWrong(f"accepted: {len(_taken(folder, messages))} steps")


@trap(CLOCKS, "commands at 10 Hz are imported at 20 Hz")
def slow_commands(folder: Path) -> str:
    messages = [("/commands", moment, _array([moment, 0.5])) for moment in _moments(41)[::2]]
    messages += [("/joint_states", moment, _states(moment, _arm(tick))) for tick, moment in enumerate(_moments(41))]
    with logged() as lines:
        _taken(folder, messages)
    told = [line for line in lines if "10 messages per second and control_hz is 20" in line]
    expect(len(told) == 1, f"nothing is printed about the rate of the commands: {lines}")
    return told[0]


def _bool(value: bool) -> Any:
    return _make("std_msgs/msg/Bool", value)


def _with_mark(folder: Path, mark: Any, **mapping: Any) -> Episode:
    messages = [*_commands(), ("/mark", 500, mark)]
    messages += [("/joint_states", moment, _states(moment, _arm(tick))) for tick, moment in enumerate(_moments())]
    return _taken(folder, messages, **mapping)


@trap(MARKS, "the outcome is a Float64 of 0.27", remedy="vla-rl label")
def coverage(folder: Path) -> NoReturn:
    raise SilentlyWrong(
        f"accepted: success is {_with_mark(folder, _make('std_msgs/msg/Float64', 0.27), success='/mark').success}"
    )


@trap(MARKS, "the outcome is an Int32 of -1", remedy="vla-rl label")
def negative_outcome(folder: Path) -> NoReturn:
    raise SilentlyWrong(
        f"accepted: success is {_with_mark(folder, _make('std_msgs/msg/Int32', -1), success='/mark').success}"
    )


@trap(MARKS, "the outcome is a Float64 of 1.0 and so means true")
def outcome_of_one(folder: Path) -> str:
    episode = _with_mark(folder, _make("std_msgs/msg/Float64", 1.0), success="/mark")
    expect(episode.success is True, f"success is {episode.success}")
    return "success is True"


@trap(MARKS, "the outcome is a Float64 of 0.27, with a threshold in the mapping")
def coverage_with_threshold(folder: Path) -> str:
    mark = _make("std_msgs/msg/Float64", 0.27)
    found = [_with_mark(folder / rule, mark, success=f"/mark{rule}").success for rule in (">=0.95", ">= .2")]
    expect(found == [False, True], f"success is {found}")
    return f"success is {found}"


@trap(MARKS, "the mark of takeovers is a joystick axis of 0.4", remedy="std_msgs/Bool")
def half_a_takeover(folder: Path) -> NoReturn:
    episode = _with_mark(folder, _make("std_msgs/msg/Float32", 0.4), intervention="/mark")
    raise SilentlyWrong(f"accepted: sources are {sorted(set(episode.source.tolist()))}")


@trap(MARKS, "the mark of episodes is an array of two numbers", remedy="std_msgs/Bool")
def two_marks(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(_with_mark(folder, _array([1.0, 0.0]), episode='/mark'))} steps")


def _with_camera(folder: Path, pictures: list[Message], still: bool = False, **mapping: Any) -> Episode:
    messages = _commands(61) + pictures
    for tick, moment in enumerate(_moments(61)):
        messages.append(("/joint_states", moment, _states(moment, _arm(0 if still else 10 * tick))))
    return _taken(folder, messages, cameras={"front": "/camera"}, **mapping)


@trap(PICTURES, "a camera repeats its picture for the last 2 s while the arm moves", remedy="Leave the camera out")
def frozen_camera(folder: Path) -> NoReturn:
    pictures = [("/camera", moment, _picture(moment, min(tick, 20))) for tick, moment in enumerate(_moments(61))]
    raise SilentlyWrong(f"accepted: {len(_with_camera(folder, pictures))} steps")


@trap(PICTURES, "a camera sees nothing move for 2 s while the arm rests")
def still_camera(folder: Path) -> str:
    pictures = [("/camera", moment, _picture(moment, min(tick, 20))) for tick, moment in enumerate(_moments(61))]
    return f"{len(_with_camera(folder, pictures, still=True))} steps"


@trap(PICTURES, "the size of a camera changes half-way, and the mapping scales it", remedy="Record one size")
def changed_size(folder: Path) -> NoReturn:
    pictures = []
    for tick, moment in enumerate(_moments(61)):
        pictures.append(("/camera", moment, _picture(moment, tick, (4, 6) if tick < 30 else (6, 4))))
    raise SilentlyWrong(f"accepted: {len(_with_camera(folder, pictures, image_size=(4, 4)))} steps")
