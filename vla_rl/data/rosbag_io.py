"""ROS 2 bags in (mcap and sqlite3): topics become episodes, synchronised by nearest capture time. No ROS is needed.

Every tick of an episode takes, of each topic, the message that was captured nearest to it: the time stamp in the
message's header, or where there is none the time at which the bag recorded it. Pictures are decoded only where a tick
takes them, an episode at a time.

Dependency law: no more than `rosbag_files`, which reads the messages.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import ConfigError, StoreError
from vla_rl.core.types import Episode, Float32Array, Origin, Source, Uint8Array
from vla_rl.data.rosbag_files import BagReader, capture_time_ns, decode_picture, vector
from vla_rl.data.store import EpisodeStore, add_unless_same

Int64Array = NDArray[np.int64]
_OUTCOME_DELAY_NS = 1_000_000_000  # an outcome may be said so long after the mark of an end, before the next begin


@dataclass(frozen=True)
class BagMapping:
    """Which topics of a bag become which parts of an episode.

    As YAML::

        cameras: {front: /camera/image_raw}
        state: [/joint_states, /gripper#data]
        joints: [shoulder, elbow]
        action: [/commands]
        intervention: /takeover
        success: /outcome
        episode: /recording
        control_hz: 20
        task: put the peg into the socket

    A topic is written ``/topic`` or ``/topic#field.of.message``; without a field, a JointState gives its positions and
    other messages all their numbers, one behind the other (a pose: x y z, then the quaternion x y z w).

    Attributes:
        cameras: our camera name -> topic of sensor_msgs Image or CompressedImage.
        state: the topics that make up the state, one behind the other.
        action: the topics of the command that was sent, one behind the other.
        joints: the order of the joints in every JointState; empty: as the messages have it.
        intervention: topic of std_msgs Bool, true while a person decides; empty: nobody took over.
        success: topic of std_msgs Bool, the outcome: the last message of an episode; empty: not labelled.
        episode: topic of std_msgs Bool, true begins an episode and false ends it; empty: the bag is one episode.
        control_hz: ticks per second.
        max_gap_s: the farthest that a message may be from its tick.
        image_size: height and width that pictures are scaled to; null: as they are.
        task: the task sentence.
        env_id: of the episodes.
        episode_prefix: episodes are called PREFIX-000000 and so on; empty: the name of the bag.
        demonstrations: whether a demonstrator acted where nobody took over (else a policy).
    """

    cameras: dict[str, str] = field(default_factory=dict)
    state: tuple[str, ...] = ("/joint_states",)
    action: tuple[str, ...] = ("/commands",)
    joints: tuple[str, ...] = ()
    intervention: str = ""
    success: str = ""
    episode: str = ""
    control_hz: float = 20.0
    max_gap_s: float = 0.1
    image_size: tuple[int, int] | None = None
    task: str = ""
    env_id: str = "ros2"
    episode_prefix: str = ""
    demonstrations: bool = True

    def __post_init__(self) -> None:
        if not self.control_hz > 0 or not self.max_gap_s > 0:
            raise ConfigError(
                f"bag mapping: control_hz is {self.control_hz} and max_gap_s {self.max_gap_s}; both must be positive"
            )
        if not self.state or not self.action:
            raise ConfigError("bag mapping: state and action need at least one topic each")


def import_bag(bag: Path, store: EpisodeStore, mapping: BagMapping) -> list[str]:
    """Add the episodes of a ROS 2 bag to a store.

    With a topic of interventions, the steps at which it is true are a person's, the others a policy's, and the origin
    is ``real``; else a demonstrator's episodes have the origin ``demo``. The capture times of all streams are kept as
    extra columns ``captured_ns.STREAM``. Episodes that the store already has, with the same content, are left out;
    another one under a taken id gets an id ending in ``.2``, ``.3`` ...

    Returns:
        the ids of the episodes that were added.

    Raises:
        StoreError: for a bag that cannot be read, lacks messages, has a gap, or holds no episode.
        UserError: for a topic that the bag does not have, or a message of another kind than its place needs.
    """
    with BagReader(Path(bag)) as opened:
        streams = _read_streams(opened, mapping)
        spans = _spans(opened, mapping, streams)
        prefix = mapping.episode_prefix or re.sub(r"[^A-Za-z0-9._-]", "_", opened.path.resolve().stem).lstrip("._-")
        added = []
        for number, span in enumerate(spans):
            name = f"{prefix[:90] or 'bag'}-{number:06d}"
            episode_id = add_unless_same(store, _assemble(opened, mapping, streams, span, name))
            if episode_id is not None:
                added.append(episode_id)
    return added


@dataclass(frozen=True, slots=True)
class _Stream:
    """One topic, or one field of it, in the order of capture.

    Attributes:
        topic: its name.
        captured_ns: int64 [M], ascending.
        values: float64 [M, D]; None for pictures.
        rank: int64 [M], of each message its place in the order of recording.
        recorded_ns: int64 [M], in the order of recording.
    """

    topic: str
    captured_ns: Int64Array
    values: NDArray[np.float64] | None
    rank: Int64Array
    recorded_ns: Int64Array

    def nearest(self, ticks_ns: Int64Array) -> Int64Array:
        """The index of the message captured nearest to each tick; of two equally near, the earlier one."""
        after = np.searchsorted(self.captured_ns, ticks_ns).clip(1, max(len(self.captured_ns) - 1, 1))
        before = after - 1
        after = np.minimum(after, len(self.captured_ns) - 1)
        closer = self.captured_ns[after] - ticks_ns < ticks_ns - self.captured_ns[before]
        return np.where(closer, after, before)

    def latest(self, ticks_ns: Int64Array) -> Int64Array:
        """The index of the last message captured at or before each tick; -1 where there is none yet."""
        return np.searchsorted(self.captured_ns, ticks_ns, side="right") - 1


def _read_streams(bag: BagReader, mapping: BagMapping) -> dict[str, list[_Stream]]:
    """All streams that the mapping names, by the part of the episode that they go to."""
    parts = {camera: [topic] for camera, topic in sorted(mapping.cameras.items())}
    for camera in parts:
        if camera in ("state", "action", "intervention", "success"):
            raise ConfigError(f"bag mapping: a camera cannot be called {camera!r}; choose another name")
    streams = {name: [_read_stream(bag, topic, None, ()) for topic in topics] for name, topics in parts.items()}
    for name, topics in (("state", mapping.state), ("action", mapping.action)):
        streams[name] = [_read_vector(bag, topic, mapping.joints) for topic in topics]
    for name, topic in (("intervention", mapping.intervention), ("success", mapping.success)):
        if topic:
            streams[name] = [_read_vector(bag, topic, ())]
    return streams


def _read_vector(bag: BagReader, topic: str, joints: Sequence[str]) -> _Stream:
    name, _, path = topic.partition("#")
    return _read_stream(bag, name, path, joints)


def _read_stream(bag: BagReader, topic: str, path: str | None, joints: Sequence[str]) -> _Stream:
    """One stream; ``path`` is the field to take numbers from, None for pictures, of which only the times are read."""
    captured, recorded, values = [], [], []
    for recorded_ns, kind, message in bag.messages(topic):
        recorded.append(recorded_ns)
        captured.append(capture_time_ns(message) or recorded_ns)
        if path is not None:
            values.append(vector(bag, topic, kind, message, path, joints))
    if not recorded:
        raise StoreError(f"{bag.path}: {topic} holds no messages")
    widths = {len(value) for value in values}
    if len(widths) > 1:
        raise StoreError(
            f"{bag.path}: the messages of {topic} have {sorted(widths)} numbers; they must be equally many"
        )
    order = np.argsort(np.array(captured, dtype=np.int64), kind="stable")
    return _Stream(
        topic,
        np.array(captured, dtype=np.int64)[order],
        np.array(values, dtype=np.float64)[order] if path is not None else None,
        order,
        np.array(recorded, dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class _Span:
    """When an episode was, in ns.

    Attributes:
        begin: the first moment at which it was marked and all of its streams speak.
        end: the last one.
        outcome_end: the last moment at which its outcome may be said.
    """

    begin: int
    end: int
    outcome_end: int


def _spans(bag: BagReader, mapping: BagMapping, streams: dict[str, list[_Stream]]) -> list[_Span]:
    """The spans of all episodes, in order. Raises StoreError if there are none."""
    needed = [stream for name, group in streams.items() if name not in ("intervention", "success") for stream in group]
    first = max(int(stream.captured_ns[0]) for stream in needed)
    last = min(int(stream.captured_ns[-1]) for stream in needed)
    end_of_bag = max(int(stream.captured_ns[-1]) for group in streams.values() for stream in group)
    marked = [(first, end_of_bag)]
    if mapping.episode:
        marks = _read_vector(bag, mapping.episode, ())
        assert marks.values is not None
        marked, begun = [], None
        for moment, value in zip(marks.captured_ns.tolist(), marks.values[:, 0], strict=True):
            if value and begun is None:
                begun = moment
            elif not value and begun is not None:
                marked.append((begun, moment))
                begun = None
        if begun is not None:  # the recording was switched off first
            marked.append((begun, end_of_bag))
    before_next = [begin - 1 for begin, _ in marked[1:]] + [end_of_bag]
    spans = [
        _Span(max(begin, first), min(end, last), min(end + _OUTCOME_DELAY_NS, latest))
        for (begin, end), latest in zip(marked, before_next, strict=False)
    ]
    spans = [span for span in spans if span.end >= span.begin]
    if not spans:
        raise StoreError(f"{bag.path} holds no episode: there is no moment at which all of its topics have messages")
    return spans


def _assemble(
    bag: BagReader, mapping: BagMapping, streams: dict[str, list[_Stream]], span: _Span, name: str
) -> Episode:
    """The episode of a span of time."""
    period_ns = 1e9 / mapping.control_hz
    count = int((span.end - span.begin) / period_ns + 1e-6) + 1
    ticks_ns = span.begin + np.rint(np.arange(count) * period_ns).astype(np.int64)  # [T]
    extras: dict[str, NDArray[Any]] = {}

    def chosen(part: str) -> list[tuple[_Stream, Int64Array]]:
        picks = [(stream, stream.nearest(ticks_ns)) for stream in streams[part]]
        for stream, index in picks:
            _check_gaps(bag, mapping, stream, stream.captured_ns[index], ticks_ns)
        extras[f"captured_ns.{part}"] = picks[0][0].captured_ns[picks[0][1]]
        return picks

    def stacked(part: str) -> Float32Array:
        columns = [stream.values[index] for stream, index in chosen(part) if stream.values is not None]
        return np.concatenate(columns, axis=1).astype(np.float32)

    images = {camera: _pictures(bag, mapping, *chosen(camera)[0]) for camera in sorted(mapping.cameras)}
    state, action = stacked("state"), stacked("action")
    source: Uint8Array = np.full(count, Source.DEMO if mapping.demonstrations else Source.POLICY, np.uint8)
    demonstrated = mapping.demonstrations
    if mapping.intervention:
        demonstrated = False
        by_person = _switched_on(streams["intervention"][0], ticks_ns)
        source = np.where(by_person, Source.HUMAN, Source.POLICY).astype(np.uint8)
    success = _outcome(streams["success"][0], span) if mapping.success else None
    return Episode(
        episode_id=name,
        images=images,
        state=state,
        action_policy=action,
        action_sent=action,
        source=source,
        task=mapping.task,
        success=success,
        terminated=bool(success),
        origin=Origin.DEMO if demonstrated else Origin.REAL,
        policy_version=-1 if demonstrated else 0,
        seed=None,
        control_hz=float(mapping.control_hz),
        env_id=mapping.env_id,
        extras=extras,
    ).validate()


def _check_gaps(
    bag: BagReader, mapping: BagMapping, stream: _Stream, captured: Int64Array, ticks_ns: Int64Array
) -> None:
    gap_s = np.abs(captured - ticks_ns) / 1e9
    worst = int(gap_s.argmax())
    if gap_s[worst] > mapping.max_gap_s:
        raise StoreError(
            f"{bag.path}: {stream.topic} has no message within {mapping.max_gap_s} s of {ticks_ns[worst] / 1e9:.3f} s "
            f"(the nearest is {gap_s[worst]:.3f} s away); raise max_gap_s, or mark the episodes around the gap"
        )


def _switched_on(stream: _Stream, ticks_ns: Int64Array) -> NDArray[np.bool_]:
    """What a topic of Bool last said at each tick; False before its first message."""
    assert stream.values is not None
    index = stream.latest(ticks_ns)
    return (index >= 0) & (stream.values[index, 0] != 0)


def _outcome(stream: _Stream, span: _Span) -> bool | None:
    """What was said last about the outcome of an episode; None for nothing."""
    assert stream.values is not None
    index = int(stream.latest(np.array([span.outcome_end]))[0])
    if index < 0 or stream.captured_ns[index] < span.begin:
        return None
    return bool(stream.values[index, 0])


def _pictures(bag: BagReader, mapping: BagMapping, stream: _Stream, index: Int64Array) -> Uint8Array:
    """The pictures of one camera at the messages ``index`` [T], uint8 [T, H, W, 3]."""
    ranks = stream.rank[index]
    needed = set(ranks.tolist())
    start_ns, stop_ns = int(stream.recorded_ns[min(needed)]), int(stream.recorded_ns[max(needed)]) + 1
    rank = int(np.searchsorted(stream.recorded_ns, start_ns))
    decoded: dict[int, Uint8Array] = {}
    for _, kind, message in bag.messages(stream.topic, start_ns, stop_ns):
        if rank in needed:
            decoded[rank] = decode_picture(bag, stream.topic, kind, message, mapping.image_size)
        rank += 1
    shapes = {picture.shape for picture in decoded.values()}
    if len(shapes) != 1 or len(decoded) != len(needed):
        raise StoreError(f"{bag.path}: the pictures of {stream.topic} have the shapes {sorted(shapes)}; expected one")
    return np.stack([decoded[rank] for rank in ranks.tolist()])
