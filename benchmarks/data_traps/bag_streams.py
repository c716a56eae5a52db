"""ROS 2 bags with clocks that differ, outcomes that are numbers, and cameras that stand still."""

from pathlib import Path
from typing import Any, NoReturn

from benchmarks.data_traps.bag_messages import (
    START_NS,
    Message,
    arm,
    array,
    commands,
    expect_row,
    image,
    imported,
    make_message,
    moments,
    states,
)
from benchmarks.data_traps.traps import SilentlyWrong, expect, logged, trap
from vla_rl.core.types import Episode

CLOCKS, MARKS, PICTURES = "clocks of a bag", "marks of a bag", "cameras of a bag"


@trap(CLOCKS, "some messages of a topic have a stamp of zero", remedy="header_stamps: false")
def missing_stamps(folder: Path) -> NoReturn:
    messages = commands()
    for tick, moment in enumerate(moments()):
        messages.append(("/joint_states", moment + 3, states(None if tick % 5 == 0 else moment, arm(tick))))
    raise SilentlyWrong(f"accepted: {len(imported(folder, messages))} steps")


def _late_clock(folder: Path, **mapping: Any) -> Episode:
    """Return an episode of joints that are stamped by a clock 2.5 s behind the recorder's; commands have no stamps."""
    messages = commands(101)
    for tick, moment in enumerate(moments(101)):
        messages.append(("/joint_states", moment + 3, states(moment - 2500, arm(tick))))
    return imported(folder, messages, **mapping)


@trap(
    CLOCKS,
    "the robot's clock is 2.5 s behind the recorder's clock, and the recorder stamps the commands",
    "header_stamps: false",
)
def late_clock(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(_late_clock(folder))} steps")


@trap(CLOCKS, "the same bag with the remedy that the refusal names")
def late_clock_by_recording(folder: Path) -> str:
    episode = _late_clock(folder, header_stamps=False)
    expect_row(episode.state[50], [0.15, 1.15, 2.15, 3.15], "the state at the middle")
    return f"{len(episode)} steps"


@trap(CLOCKS, "all stamps are of a simulation's clock, which began at 0 an hour ago", remedy="header_stamps: false")
def clock_of_a_simulation(folder: Path) -> NoReturn:
    messages = commands()
    for tick, moment in enumerate(moments()):
        messages.append(("/joint_states", moment, states(moment + 3_600_000 - START_NS / 1e6, arm(tick))))
    raise SilentlyWrong(f"accepted: {len(imported(folder, messages))} steps")


@trap(CLOCKS, "the clock of the joints is set back by 0.4 s half-way", remedy="header_stamps: false")
def stamps_go_back(folder: Path) -> NoReturn:
    messages = commands(41)
    for tick, moment in enumerate(moments(41)):
        stamp_ms = moment if tick < 20 else moment - 400
        messages.append(("/joint_states", moment + 3, states(stamp_ms, arm(tick))))
    raise SilentlyWrong(f"accepted: {len(imported(folder, messages))} steps")


@trap(CLOCKS, "commands at 10 Hz are imported at 20 Hz")
def slow_commands(folder: Path) -> str:
    messages = [("/commands", moment, array([moment, 0.5])) for moment in moments(41)[::2]]
    messages += [("/joint_states", moment, states(moment, arm(tick))) for tick, moment in enumerate(moments(41))]
    with logged() as lines:
        imported(folder, messages)
    told = [line for line in lines if "10 messages per second and control_hz is 20" in line]
    expect(len(told) == 1, f"nothing is printed about the rate of the commands: {lines}")
    return told[0]


def _bool(value: bool) -> Any:
    return make_message("std_msgs/msg/Bool", value)


def _with_mark(folder: Path, mark: Any, **mapping: Any) -> Episode:
    messages = [*commands(), ("/mark", 500, mark)]
    messages += [("/joint_states", moment, states(moment, arm(tick))) for tick, moment in enumerate(moments())]
    return imported(folder, messages, **mapping)


@trap(MARKS, "the outcome is a Float64 of 0.27", remedy="vla-rl label")
def coverage(folder: Path) -> NoReturn:
    mark = make_message("std_msgs/msg/Float64", 0.27)
    raise SilentlyWrong(f"accepted: success is {_with_mark(folder, mark, success='/mark').success}")


@trap(MARKS, "the outcome is an Int32 of -1", remedy="vla-rl label")
def negative_outcome(folder: Path) -> NoReturn:
    mark = make_message("std_msgs/msg/Int32", -1)
    raise SilentlyWrong(f"accepted: success is {_with_mark(folder, mark, success='/mark').success}")


@trap(MARKS, "the outcome is a Float64 of 1.0 and so means true")
def outcome_of_one(folder: Path) -> str:
    episode = _with_mark(folder, make_message("std_msgs/msg/Float64", 1.0), success="/mark")
    expect(episode.success is True, f"success is {episode.success}")
    return "success is True"


@trap(MARKS, "the outcome is a Float64 of 0.27, with a threshold in the mapping")
def coverage_with_threshold(folder: Path) -> str:
    mark = make_message("std_msgs/msg/Float64", 0.27)
    found = [_with_mark(folder / rule, mark, success=f"/mark{rule}").success for rule in (">=0.95", ">= .2")]
    expect(found == [False, True], f"success is {found}")
    return f"success is {found}"


@trap(MARKS, "the mark of takeovers is a joystick axis of 0.4", remedy="std_msgs/Bool")
def half_a_takeover(folder: Path) -> NoReturn:
    episode = _with_mark(folder, make_message("std_msgs/msg/Float32", 0.4), intervention="/mark")
    raise SilentlyWrong(f"accepted: sources are {sorted(set(episode.source.tolist()))}")


@trap(MARKS, "the mark of episodes is an array of two numbers", remedy="std_msgs/Bool")
def two_marks(folder: Path) -> NoReturn:
    raise SilentlyWrong(f"accepted: {len(_with_mark(folder, array([1.0, 0.0]), episode='/mark'))} steps")


def _with_camera(folder: Path, pictures: list[Message], still: bool = False, **mapping: Any) -> Episode:
    messages = commands(61) + pictures
    for tick, moment in enumerate(moments(61)):
        messages.append(("/joint_states", moment, states(moment, arm(0 if still else 10 * tick))))
    return imported(folder, messages, cameras={"front": "/camera"}, **mapping)


@trap(PICTURES, "a camera repeats its picture for the last 2 s while the arm moves", remedy="Leave the camera out")
def frozen_camera(folder: Path) -> NoReturn:
    pictures = [("/camera", moment, image(moment, min(tick, 20))) for tick, moment in enumerate(moments(61))]
    raise SilentlyWrong(f"accepted: {len(_with_camera(folder, pictures))} steps")


@trap(PICTURES, "a camera sees nothing move for 2 s while the arm rests")
def still_camera(folder: Path) -> str:
    pictures = [("/camera", moment, image(moment, min(tick, 20))) for tick, moment in enumerate(moments(61))]
    return f"{len(_with_camera(folder, pictures, still=True))} steps"


@trap(PICTURES, "the size of a camera changes half-way, and the mapping scales it", remedy="Record one size")
def changed_size(folder: Path) -> NoReturn:
    pictures = []
    for tick, moment in enumerate(moments(61)):
        pictures.append(("/camera", moment, image(moment, tick, (4, 6) if tick < 30 else (6, 4))))
    raise SilentlyWrong(f"accepted: {len(_with_camera(folder, pictures, image_size=(4, 4)))} steps")
