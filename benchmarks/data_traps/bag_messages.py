"""Messages of an arm with a gripper, and the episode that a bag of them becomes."""

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from vla_rl_bags import BagMapping, import_bag

from benchmarks.data_traps.traps import expect
from vla_rl.core.types import Episode
from vla_rl.data.store import EpisodeStore

START_NS = 1_700_000_000_000_000_000
PERIOD_MS = 50
ARM = ("a", "b", "c", "grip")
Message = tuple[str, int, Any]
"""Topic, time of recording in ms since the start, message."""


@functools.cache
def message_types() -> Any:
    from rosbags.typesys import Stores, get_typestore

    return get_typestore(Stores.ROS2_JAZZY)


def make_message(kind: str, *fields: Any) -> Any:
    return message_types().types[kind](*fields)


def header(moment_ms: float | None) -> Any:
    """Return a header with a stamp at ms since the start; None: a stamp of zero."""
    moment_ns = 0 if moment_ms is None else START_NS + int(moment_ms * 1e6)
    return make_message(
        "std_msgs/msg/Header", make_message("builtin_interfaces/msg/Time", *divmod(moment_ns, 10**9)), ""
    )


def states(moment_ms: float | None, values: dict[str, float], velocity: Sequence[float] = ()) -> Any:
    position = np.array([*values.values()], np.float64)
    return make_message(
        "sensor_msgs/msg/JointState", header(moment_ms), [*values], position, np.array(velocity, float), np.zeros(0)
    )


def joint_trajectory(values: dict[str, float], velocities: Sequence[float] = ()) -> Any:
    duration, nothing = make_message("builtin_interfaces/msg/Duration", 0, 0), np.zeros(0)
    point = make_message(
        "trajectory_msgs/msg/JointTrajectoryPoint",
        np.array([*values.values()], np.float64),
        np.array(velocities, np.float64),
        nothing,
        nothing,
        duration,
    )
    return make_message("trajectory_msgs/msg/JointTrajectory", header(None), [*values], [point])


def array(values: Sequence[float]) -> Any:
    layout = make_message("std_msgs/msg/MultiArrayLayout", [], 0)
    return make_message("std_msgs/msg/Float64MultiArray", layout, np.array(values, np.float64))


def image(moment_ms: float, value: int, size: tuple[int, int] = (4, 6)) -> Any:
    pixels = np.full((*size, 3), value % 256, np.uint8)
    return make_message("sensor_msgs/msg/Image", header(moment_ms), *size, "rgb8", 0, 3 * size[1], pixels.ravel())


def moments(count: int = 21) -> range:
    return range(0, count * PERIOD_MS, PERIOD_MS)


def arm(tick: int, names: Iterable[str] = ARM) -> dict[str, float]:
    """Return positions that tell the joints apart: a is 0.1, b 1.1, c 2.1 and grip 3.1, plus the tick / 1000."""
    return {name: ARM.index(name) + 0.1 + tick / 1000 for name in names}


def commands(count: int = 21) -> list[Message]:
    return [("/commands", moment, array([0.5, 0.5])) for moment in moments(count)]


def imported(folder: Path, messages: list[Message], **mapping: Any) -> Episode:
    """Write a bag and return the episode that it becomes at 20 Hz."""
    from rosbags.rosbag2 import Writer

    with Writer(folder / "bag", version=9) as writer:
        topics: dict[str, Any] = {}
        for topic, recorded_ms, message in sorted(messages, key=lambda entry: entry[1]):
            if topic not in topics:
                topics[topic] = writer.add_connection(topic, message.__msgtype__, typestore=message_types())
            raw = message_types().serialize_cdr(message, message.__msgtype__)
            writer.write(topics[topic], START_NS + recorded_ms * 10**6, raw)
    store = EpisodeStore(folder / "store")
    (name,) = import_bag(folder / "bag", store, BagMapping(**mapping))
    return store.read(name)


def expect_row(found: np.ndarray[Any, Any], right: Sequence[float], what: str) -> None:
    expect(np.allclose(found, right, atol=2e-3), f"{what} is {np.round(found, 3).tolist()}, expected {list(right)}")
