"""Streams of a ROS 2 bag: numbers matched by the names that messages carry, and times from one clock.

Messages with names (JointState, JointTrajectory, MultiDOFJointState ...) are read by name, message for message. Parts
of a robot that come in separate messages of one topic are merged as the ROS 2 node merges them, see `merged`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import StoreError, UserError
from vla_rl_bags.files import BagReader, Numbers, capture_time_ns, numbers_of

Int64Array = NDArray[np.int64]

_RULE = re.compile(r"(?P<topic>[^<>=]+?)\s*(?:>=\s*(?P<least>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?))?")
_USE_RECORDING = "set header_stamps: false to use the times of recording"
_LATEST_S = 1.0  # no camera pipeline takes longer from the capture to the recording
# Place of a number in a message with names: the block that has one entry per joint, the joint, a field of its entry.
_PLACE = re.compile(r"((?:points\.-?\d+\.)?[a-z_]+)\.(\d+)(?:\.(.+))?")
_FIRST_POINT = re.compile(r"points\.0\.")
_POSITION = re.compile(r"(.*\.)?positions?")


@dataclass(frozen=True, slots=True)
class Stream:
    """One topic, or one field of it, as the mapping names it, captured at int64 [M] ns, ascending."""

    topic: str
    captured_ns: Int64Array

    @property
    def rate_hz(self) -> float:
        """Messages per second, from the median time between two; 0 for fewer than two."""
        return 1e9 / max(float(np.median(np.diff(self.captured_ns))), 1.0) if len(self.captured_ns) > 1 else 0.0

    def nearest(self, ticks_ns: Int64Array) -> Int64Array:
        """Return the index of the message captured nearest to each tick; of two equally near, the earlier one."""
        after = np.searchsorted(self.captured_ns, ticks_ns).clip(1, max(len(self.captured_ns) - 1, 1))
        before = after - 1
        after = np.minimum(after, len(self.captured_ns) - 1)
        closer = self.captured_ns[after] - ticks_ns < ticks_ns - self.captured_ns[before]
        return np.where(closer, after, before)

    def latest(self, ticks_ns: Int64Array) -> Int64Array:
        """Return the index of the last message captured at or before each tick; -1 where there is none yet."""
        return np.searchsorted(self.captured_ns, ticks_ns, side="right") - 1


@dataclass(frozen=True, slots=True)
class NumberStream(Stream):
    """Numbers of a topic, float64 [M, D], with the names of the D numbers; undeclared for messages without names.

    Attributes:
        joints: Joints in the order of the numbers; empty for messages without names.
        seen: All joints that the messages name.
    """

    values: NDArray[np.float64]
    dimensions: Dimensions = UNDECLARED
    joints: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PictureStream(Stream):
    """Times of M pictures, which are decoded only where a tick takes them.

    ``rank`` int64 [M] is the place of each message in the order of recording, in which ``recorded_ns`` stand.
    """

    rank: Int64Array
    recorded_ns: Int64Array


class StreamReader:
    """Reads streams of an open bag, and compares the two times that a message has.

    A stamp may go back by ``most_disorder_s`` behind an earlier message of its topic. Capture times are the header's
    stamps or the times of recording.
    """

    def __init__(self, bag: BagReader, header_stamps: bool, most_disorder_s: float) -> None:
        self._bag, self._header_stamps, self._most_disorder_s = bag, header_stamps, most_disorder_s
        self._delays_s: dict[str, float] = {}  # topic -> median time from the capture to the recording

    def pictures(self, topic: str) -> PictureStream:
        """Return the times of a camera."""
        times = [(recorded, capture_time_ns(message)) for recorded, _, message in self._bag.messages(topic)]
        captured = self._capture_times(topic, times)
        order = np.argsort(captured, kind="stable")
        return PictureStream(topic, captured[order], order, np.array([recorded for recorded, _ in times], np.int64))

    def numbers(self, topic: str, joints: Sequence[str] = ()) -> NumberStream:
        """Return the numbers of ``TOPIC`` or ``TOPIC#FIELD``, by name where the messages carry names.

        ``joints`` is the order of the joints, of which the topic may have a part; empty: that of the messages.

        Raises:
            UserError: For a joint that a message names twice, two kinds of message that share a joint, or numbers that
                do not fit the names.
        """
        name, _, path = topic.partition("#")
        where = f"{self._bag.path}: {topic}"
        times, found, empty = [], [], False
        for recorded, kind, message in self._bag.messages(name):
            numbers = numbers_of(self._bag, name, kind, message, path)
            empty |= not len(numbers.values)
            # A driver that measures efforts alone says nothing of positions.
            if len(numbers.values) or kind != "sensor_msgs/msg/JointState":
                times.append((recorded, capture_time_ns(message)))
                found.append(numbers)
        if empty and not (found and all(len(numbers.values) for numbers in found)):
            raise UserError(f"{where} holds no numbers in {path or 'its fields'}; name a field as TOPIC#FIELD")
        captured = self._capture_times(name, times)
        order = np.argsort(captured, kind="stable")
        messages = [found[index] for index in order]
        if any(numbers.joints for numbers in messages) or (joints and messages[0].joints is not None):
            return merged(where, topic, captured[order], messages, joints)
        if len({numbers.labels for numbers in messages}) > 1:
            sizes = sorted({len(numbers.labels) for numbers in messages})
            raise StoreError(f"{where}: its messages have {sizes} numbers; they must be equally many")
        return NumberStream(topic, captured[order], np.stack([numbers.values for numbers in messages]))

    def marks(self, rule: str, part: str) -> NumberStream:
        """Return a topic of true and false, or ``TOPIC>=NUMBER``, as float64 [M, 1] of 0 and 1.

        Raises:
            UserError: If it holds anything else; with the part of the mapping.
        """
        found = _RULE.fullmatch(rule)
        if found is None:
            raise UserError(f"{self._bag.path}: {part} is {rule!r}; expected TOPIC or TOPIC>=NUMBER")
        topic, least = found["topic"], found["least"]
        stream = self.numbers(topic)
        if stream.values.shape[1] == 1 and least is not None:
            return replace(stream, values=(stream.values >= float(least)).astype(np.float64))
        if stream.values.shape[1] != 1 or not np.isin(stream.values, (0.0, 1.0)).all():
            wrong = [value for value in stream.values.ravel().tolist() if value not in (0.0, 1.0)]
            held = f"{wrong[0]:g}" if stream.values.shape[1] == 1 else f"{stream.values.shape[1]} numbers per message"
            instead = " and label the episodes with vla-rl label" if part == "success" else ""
            raise UserError(
                f"{self._bag.path}: {topic} holds {held}; {part} expects true or false (1 or 0). Name a topic of "
                f"std_msgs/Bool or a threshold ({part}: {topic}>=0.95), or leave {part} out of the mapping{instead}"
            )
        return stream

    def check_clocks(self) -> None:
        """Raise UserError if the capture times of the topics read so far come from clocks that differ."""
        if len(self._delays_s) < 2:
            return
        slow, fast = (pick(self._delays_s, key=lambda topic: self._delays_s[topic]) for pick in (max, min))
        if self._delays_s[slow] - self._delays_s[fast] > _LATEST_S:
            raise UserError(
                f"{self._bag.path}: {slow} was captured {self._delays_s[slow]:.3f} s before it was recorded, {fast} "
                f"{self._delays_s[fast]:.3f} s. Their clocks differ; {_USE_RECORDING}"
            )

    def _capture_times(self, topic: str, times: Sequence[tuple[int, int]]) -> Int64Array:
        """Return the capture time of each message, int64 [M], from (recorded, stamp or 0)."""
        if not times:
            raise StoreError(f"{self._bag.path}: {topic} holds no messages")
        recorded, stamps = np.array(times, dtype=np.int64).T
        if not self._header_stamps or not stamps.any():
            self._delays_s[topic] = 0.0
            return recorded
        if unset := int((stamps == 0).sum()):
            raise UserError(
                f"{self._bag.path}: {unset} of {len(stamps)} messages of {topic} have no stamp; {_USE_RECORDING}"
            )
        back_s = (np.maximum.accumulate(stamps) - stamps) / 1e9
        if back_s.max() > self._most_disorder_s:
            raise UserError(
                f"{self._bag.path}: the stamps of {topic} go back by {back_s.max():.3f} s at message "
                f"{int(back_s.argmax())}, expected at most {self._most_disorder_s} s (max_gap_s). Cut the bag there, "
                f"or {_USE_RECORDING}"
            )
        self._delays_s[topic] = float(np.median(recorded - stamps)) / 1e9
        return stamps


def merged(
    where: str, topic: str, captured_ns: Int64Array, messages: Sequence[Numbers], joints: Sequence[str]
) -> NumberStream:
    """Match the numbers of M messages by name, and merge messages of different joints into one vector.

    The vector is as old as the oldest joint in it. What is newer waits until the oldest joints have caught up, so that
    positions lie together, as in `robot_io.ros2.robot.Ros2Robot.on_joints`.

    Args:
        where: Bag and topic, for errors.
        topic: As the mapping names it.
        captured_ns: int64 [M], ascending.
        messages: The M messages.
        joints: Order of the joints; empty: the order in which they come.
    """
    kinds = dict.fromkeys((numbers.joints or (), numbers.labels) for numbers in messages)
    seen = tuple(dict.fromkeys(joint for names, _ in kinds for joint in names))
    taken = tuple(joint for joint in dict.fromkeys(joints or seen) if joint in seen)
    if not taken:
        raise UserError(f"{where} has the joints {list(seen)}, asked for are {list(joints)}; correct `joints`")
    if any(not names for names, _ in kinds):
        raise UserError(f"{where} has messages without names beside those of the joints {list(seen)}; mend the driver")
    _refuse_doubled(where, [names for names, _ in kinds], taken)
    places = {kind: _places(where, *kind) for kind in kinds}
    columns = _columns(where, [*places.values()], taken)
    goes_to = {}
    for kind, found in places.items():
        pairs = [(columns[place], index) for index, place in enumerate(found) if place in columns]
        goes_to[kind] = [column for column, _ in pairs], [index for _, index in pairs]
    row, since, rows = np.zeros(len(columns)), dict[str, int](), dict[int, NDArray[np.float64]]()
    oldest_ns = None
    for moment_ns, numbers in zip(captured_ns.tolist(), messages, strict=True):
        targets, sources = goes_to[numbers.joints or (), numbers.labels]
        row[targets] = numbers.values[sources]
        since |= {joint: moment_ns for joint in numbers.joints or () if joint in taken}
        if len(since) == len(taken) and (min(since.values()) != oldest_ns or moment_ns == oldest_ns):
            oldest_ns = min(since.values())
            rows[oldest_ns] = row.copy()
    alone = len({block for _, block, _ in columns}) == 1
    names = tuple(joint + _suffix(block, item, alone) for joint, block, item in columns)
    return NumberStream(topic, np.array([*rows], np.int64), np.stack([*rows.values()]), Dimensions(names), taken, seen)


Place = tuple[str, str, str]
"""Joint, block and field of a number in a message with names."""


def _places(where: str, names: tuple[str, ...], labels: tuple[str, ...]) -> list[Place]:
    """Return the place of each number of a kind of message; refuse names that stand twice or do not fit."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        raise UserError(f"{where} names the joint {repeated[0]!r} twice in {list(names)}; mend the driver")
    found = [place for place in map(_PLACE.fullmatch, labels) if place is not None]
    for block in dict.fromkeys(place[1] for place in found):
        count = len({int(place[2]) for place in found if place[1] == block})
        if count != len(names):
            raise UserError(f"{where} has {count} numbers in {block} for the {len(names)} joints {list(names)}")
    if len(found) < len(labels):
        raise UserError(f"{where} has numbers that belong to no joint; name one field as TOPIC#FIELD")
    return [(names[int(place[2])], place[1], place[3] or "") for place in found]


def _columns(where: str, kinds: Sequence[Sequence[Place]], taken: Sequence[str]) -> dict[Place, int]:
    """Return the column of each place: block by block, in each the joints in order. All joints have equal entries."""
    entries = {
        tuple((block, item) for each, block, item in places if each == joint) for places in kinds for joint in taken
    }
    first, *others = entries - {()}  # (): of joints that come in other messages
    if others:
        raise UserError(
            f"{where}: its messages have {sorted({len(first), *map(len, others)})} numbers for a joint; they must be "
            "equally many of equal fields. Name one field as TOPIC#FIELD"
        )
    blocks = dict.fromkeys(block for block, _ in first)
    ordered = [(joint, block, item) for block in blocks for joint in taken for each, item in first if each == block]
    return {place: column for column, place in enumerate(ordered)}


def _refuse_doubled(where: str, kinds: Sequence[tuple[str, ...]], taken: Sequence[str]) -> None:
    """Refuse joints that two kinds of message have: they are two drivers, and either may be right."""
    for one, other in combinations({frozenset(names).intersection(taken) for names in kinds}, 2):
        if shared := sorted(one & other):
            raise UserError(
                f"{where} has the joint {shared[0]!r} in messages of {sorted(one)} and of {sorted(other)}; expected is "
                "one driver per joint. Record the drivers' topics apart, or name `joints` that do not overlap"
            )


def _suffix(block: str, item: str, alone: bool) -> str:
    """Return what follows the name of a joint in that of a dimension; nothing for its position."""
    block = _FIRST_POINT.sub("", block)
    shown = "" if _POSITION.fullmatch(block) and (alone or "." not in block) else f".{block}"
    return shown + (f".{item}" if item else "")
