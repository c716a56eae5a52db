"""Import ROS 2 bags (mcap and sqlite3): topics become episodes, synchronized by the nearest capture time.

No ROS is needed. Every tick of an episode takes, of each topic, the message that was captured nearest to it. The
capture time is the stamp in the message's header, or where the topic has no stamps the time of recording. Pictures are
decoded only where a tick takes them, one episode at a time.
"""

import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.config import config_from_dict
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import ConfigError, StoreError, UserError
from vla_rl.core.pictures import resized
from vla_rl.core.types import Episode, Float32Array, Origin, Source, Uint8Array
from vla_rl.data.store import EpisodeStore, add_new
from vla_rl_bags.files import BagReader, decode_picture
from vla_rl_bags.mapping import BagMapping
from vla_rl_bags.streams import Int64Array, NumberStream, PictureStream, Stream, StreamReader

logger = logging.getLogger(__name__)

_OUTCOME_DELAY_NS = 1_000_000_000  # an outcome may come so long after the mark of an end, before the next begin
_NOTABLE_S = 1.0  # drivers start one after the other; more than that is worth a line
_FROZEN_S = 1.0  # a camera that repeats its picture for so long while the state moves is frozen
_MOVES = 0.05  # of the range of a number of the state in the episode
_AT_REST = 1e-3  # rad or m: noise of a robot at rest


def import_bag(bag: Path, store: EpisodeStore, mapping: BagMapping | Mapping[str, Any]) -> list[str]:
    """Add the episodes of a ROS 2 bag to a store.

    The mapping may be given as the fields of a `BagMapping`, as in YAML.

    With a topic of interventions, the steps at which it is true are a person's, the others a policy's, and the origin
    is ``real``. Without one, a demonstrator's episodes have the origin ``demo``. The capture times of all streams are
    kept as extra columns ``captured_ns.STREAM``. See `add_new` for episodes that the store has.

    Returns:
        Ids of the episodes that were added.

    Raises:
        StoreError: For a bag that cannot be read, lacks messages, has a gap or a frozen camera, or holds no episode.
        UserError: For a topic that the bag does not have, or a message of the wrong kind. For joints that are missing
            or doubled, or clocks that differ.
    """
    if not isinstance(mapping, BagMapping):
        mapping = config_from_dict(BagMapping, dict(mapping), "bag mapping")
    with BagReader(Path(bag)) as opened:
        source = _read_topics(opened, mapping)
        prefix = mapping.episode_prefix or re.sub(r"[^A-Za-z0-9._-]", "_", opened.path.resolve().stem).lstrip("._-")
        spans = enumerate(_spans(source))
        return add_new(store, (_assemble(source, span, f"{prefix[:90] or 'bag'}-{n:06d}") for n, span in spans))


@dataclass(frozen=True)
class _Bag:
    """An open bag and the streams that the mapping names.

    Attributes:
        cameras: By our camera name.
        vectors, dimensions: ``state`` and ``action`` -> the streams that make it up, names and units of its numbers.
        marks: ``intervention``, ``success`` and ``episode`` -> 0 and 1, where the mapping names a topic.
        picture_sizes: Camera topic -> shape of its first picture.
    """

    reader: BagReader
    mapping: BagMapping
    cameras: Mapping[str, PictureStream]
    vectors: Mapping[str, Sequence[NumberStream]]
    dimensions: Mapping[str, Dimensions]
    marks: Mapping[str, NumberStream]
    picture_sizes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.reader.path

    def streams(self) -> list[Stream]:
        """Return the streams that every tick needs."""
        return [*self.cameras.values(), *(stream for group in self.vectors.values() for stream in group)]


def _read_topics(reader: BagReader, mapping: BagMapping) -> _Bag:
    """Read all streams, and compare their clocks, names and rates."""
    for camera in mapping.cameras:
        if camera in ("state", "action"):
            raise ConfigError(f"a camera cannot be called {camera!r}; choose another name")
    streams = StreamReader(reader, mapping.header_stamps, mapping.max_gap_s)
    cameras = {camera: streams.pictures(topic) for camera, topic in sorted(mapping.cameras.items())}
    parts = {"state": mapping.state, "action": mapping.action}
    vectors = {part: [streams.numbers(topic, mapping.joints) for topic in topics] for part, topics in parts.items()}
    topics = {"intervention": mapping.intervention, "success": mapping.success, "episode": mapping.episode}
    marks = {part: streams.marks(topic, part) for part, topic in topics.items() if topic}
    streams.check_clocks()
    dimensions = {part: _dimensions(reader.path, group, mapping) for part, group in vectors.items()}
    if mapping.joints and not any(stream.joints for group in vectors.values() for stream in group):
        raise UserError(
            f"{reader.path}: no topic carries names, asked for are {list(mapping.joints)}. Leave `joints` out"
        )
    names = {name for each in dimensions.values() for name in each.names}
    if unknown := sorted(mapping.units.keys() - names):
        raise UserError(
            f"{reader.path}: `units` names {unknown[0]!r}, the state and action have {sorted(names) or 'no names'}. "
            "Name dimensions that they have; a vector has no names if one of its topics carries none"
        )
    for stream in vectors["action"]:
        if not 0.9 < stream.rate_hz / mapping.control_hz < 1.1:
            each = "repeated" if stream.rate_hz < mapping.control_hz else "left out"
            logger.warning(
                "%s: %s has %.4g messages per second and control_hz is %.4g, so commands are %s. Set control_hz to the "
                "rate of the commands to take each once",
                *(reader.path, stream.topic, stream.rate_hz, mapping.control_hz, each),
            )
    return _Bag(reader, mapping, cameras, vectors, dimensions, marks)


def _dimensions(path: Path, streams: Sequence[NumberStream], mapping: BagMapping) -> Dimensions:
    """Return the names and units of the state or the action; undeclared if one of its topics has no names.

    Raises:
        UserError: If a joint of the mapping is missing, or stands in two topics of which each has a part of the joints.
    """
    named = [stream for stream in streams if stream.dimensions]
    found = [joint for stream in named for joint in stream.joints]
    names = [name for stream in named for name in stream.dimensions.names]
    repeated = [name for name in names if names.count(name) > 1]
    faults = [f"{joint!r} never comes" for joint in mapping.joints if named and joint not in found]
    faults += [f"{joint!r} stands twice" for joint in mapping.joints if mapping.joints.count(joint) > 1]
    if mapping.joints and len({stream.joints for stream in named}) > 1:
        faults += [f"{name!r} comes from several topics" for name in repeated]
    if faults:
        topics = " and ".join(stream.topic for stream in named or streams)
        seen = [*dict.fromkeys(joint for stream in named for joint in stream.seen)]
        raise UserError(
            f"{path}: {topics} has the joints {seen}, asked for are {list(mapping.joints)}: {faults[0]}. Correct "
            "`joints` of the mapping, or leave it out"
        )
    if len(named) < len(streams):
        return UNDECLARED
    if repeated:  # such as those of two arms in namespaces of their own
        names = [f"{stream.topic.partition('#')[0]}:{name}" for stream in named for name in stream.dimensions.names]
    return Dimensions(tuple(names), tuple(mapping.units.get(name, "") for name in names))


class _Span(NamedTuple):
    """Time of an episode, ns: while it was marked and all of its streams have messages, and until its outcome comes."""

    begin: int
    end: int
    outcome_end: int


def _common_time(bag: _Bag) -> tuple[int, int]:
    """Return the first and the last moment at which all streams have messages; log what lies outside."""
    needed = bag.streams()
    late = max(needed, key=lambda stream: stream.captured_ns[0])
    early = min(needed, key=lambda stream: stream.captured_ns[-1])
    first, last = int(late.captured_ns[0]), int(early.captured_ns[-1])
    before_s = (first - min(int(stream.captured_ns[0]) for stream in needed)) / 1e9
    after_s = (max(int(stream.captured_ns[-1]) for stream in needed) - last) / 1e9
    for lost_s, topic, edge in (
        (before_s, late.topic, "begins %.1f s after"),
        (after_s, early.topic, "ends %.1f s before"),
    ):
        if lost_s > _NOTABLE_S:
            logger.warning("%s: %s %s other topics; their messages there are left out", bag.path, topic, edge % lost_s)
    return first, last


def _spans(bag: _Bag) -> list[_Span]:
    """Return the spans of all episodes, in order. Raises StoreError if there are none."""
    first, last = _common_time(bag)
    end_of_bag = max(int(stream.captured_ns[-1]) for stream in [*bag.streams(), *bag.marks.values()])
    marked = [(first, end_of_bag)]
    if marks := bag.marks.get("episode"):
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


def _assemble(bag: _Bag, span: _Span, name: str) -> Episode:
    """Return the episode of a span of time."""
    mapping = bag.mapping
    period_ns = 1e9 / mapping.control_hz
    count = int((span.end - span.begin) / period_ns + 1e-6) + 1
    ticks_ns = span.begin + np.rint(np.arange(count) * period_ns).astype(np.int64)  # [T]
    picks = {part: [_pick(bag, stream, ticks_ns) for stream in group] for part, group in bag.vectors.items()}
    looks = {camera: _pick(bag, stream, ticks_ns) for camera, stream in bag.cameras.items()}
    extras: dict[str, NDArray[Any]] = {
        f"captured_ns.{camera}": stream.captured_ns[looks[camera]] for camera, stream in bag.cameras.items()
    }
    vectors: dict[str, Float32Array] = {}
    for part, group in bag.vectors.items():
        columns = [stream.values[index] for stream, index in zip(group, picks[part], strict=True)]
        vectors[part] = np.concatenate(columns, axis=1).astype(np.float32)
        extras[f"captured_ns.{part}"] = group[0].captured_ns[picks[part][0]]
    images = {camera: _pictures(bag, stream, looks[camera]) for camera, stream in bag.cameras.items()}
    for camera, stream in bag.cameras.items():
        _refuse_frozen(bag, stream, stream.captured_ns[looks[camera]], images[camera], vectors["state"])
    source: Uint8Array = np.full(count, Source.DEMO if mapping.demonstrations else Source.POLICY, np.uint8)
    demonstrated = mapping.demonstrations
    if mapping.intervention:
        demonstrated = False
        by_person = _switched_on(bag.marks["intervention"], ticks_ns)
        source = np.where(by_person, Source.HUMAN, Source.POLICY).astype(np.uint8)
    success = _outcome(bag.marks["success"], span) if mapping.success else None
    final = _after(bag, span.begin + round(count * period_ns), picks["state"], looks)
    return Episode(
        episode_id=name,
        images=images,
        state=vectors["state"],
        action_policy=vectors["action"],
        action_sent=vectors["action"],
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
        state_dimensions=bag.dimensions["state"],
        action_dimensions=bag.dimensions["action"],
        **final,
    ).validate()


def _after(bag: _Bag, tick_ns: int, picks: Sequence[Int64Array], looks: Mapping[str, Int64Array]) -> dict[str, Any]:
    """Return the observation one tick after the last command; nothing if a stream has no later message near it."""
    tick, final = np.array([tick_ns]), []
    lasts = [*zip(bag.vectors["state"], picks, strict=True), *((bag.cameras[name], looks[name]) for name in looks)]
    for stream, index in lasts:
        near = stream.nearest(tick)
        if near[0] <= index[-1] or abs(stream.captured_ns[near[0]] - tick_ns) > bag.mapping.max_gap_s * 1e9:
            return {}
        final.append(near)
    states = zip(bag.vectors["state"], final, strict=False)
    state = np.concatenate([stream.values[near[0]] for stream, near in states]).astype(np.float32)
    cameras = zip(looks, final[len(picks) :], strict=True)
    pictures = {name: _pictures(bag, bag.cameras[name], near)[0] for name, near in cameras}
    return {"final_state": state, "final_images": pictures}


def _pick(bag: _Bag, stream: Stream, ticks_ns: Int64Array) -> Int64Array:
    """Return the index of the message for each tick. Raises StoreError for a tick without one."""
    index = stream.nearest(ticks_ns)
    gap_s = np.abs(stream.captured_ns[index] - ticks_ns) / 1e9
    worst = int(gap_s.argmax())
    if gap_s[worst] > bag.mapping.max_gap_s:
        whole = " with every joint" if isinstance(stream, NumberStream) and stream.joints else ""
        raise StoreError(
            f"{bag.path}: {stream.topic} has no message within {bag.mapping.max_gap_s} s of "
            f"{ticks_ns[worst] / 1e9:.3f} s (the nearest{whole} is {gap_s[worst]:.3f} s away). Raise max_gap_s, "
            "or mark the episodes around the gap"
        )
    return index


def _switched_on(stream: NumberStream, ticks_ns: Int64Array) -> NDArray[np.bool_]:
    """Return the last value of a topic of Bool at each tick; False before its first message."""
    index = stream.latest(ticks_ns)
    return (index >= 0) & (stream.values[index, 0] != 0)


def _outcome(stream: NumberStream, span: _Span) -> bool | None:
    """Return the last outcome of an episode; None if there is none."""
    index = int(stream.latest(np.array([span.outcome_end]))[0])
    is_old = index < 0 or stream.captured_ns[index] < span.begin
    return None if is_old else bool(stream.values[index, 0])


def _pictures(bag: _Bag, stream: PictureStream, index: Int64Array) -> Uint8Array:
    """Return the pictures of one camera at the messages ``index`` [T], uint8 [T, H, W, 3]."""
    ranks = stream.rank[index]
    needed = set(ranks.tolist())
    start_ns, stop_ns = int(stream.recorded_ns[min(needed)]), int(stream.recorded_ns[max(needed)]) + 1
    rank = int(np.searchsorted(stream.recorded_ns, start_ns))
    decoded: dict[int, Uint8Array] = {}
    for _, kind, message in bag.reader.messages(stream.topic, start_ns, stop_ns):
        if rank in needed:
            picture = decode_picture(bag.reader, stream.topic, kind, message)
            if picture.shape != (first := bag.picture_sizes.setdefault(stream.topic, picture.shape)):
                raise StoreError(
                    f"{bag.path}: the pictures of {stream.topic} have the shapes {list(first)} and "
                    f"{list(picture.shape)}; expected one. Record one size, or cut the bag where it changes"
                )
            decoded[rank] = resized(picture, bag.mapping.image_size)
        rank += 1
    if len(decoded) != len(needed):
        raise StoreError(f"{bag.path}: {stream.topic} has {len(decoded)} of {len(needed)} pictures; copy the bag anew")
    return np.stack([decoded[rank] for rank in ranks.tolist()])


def _refuse_frozen(
    bag: _Bag, stream: PictureStream, captured_ns: Int64Array, pictures: Uint8Array, state: Float32Array
) -> None:
    """Raise StoreError if a camera repeats one of its pictures [T, H, W, 3] while the state [T, S] moves."""
    differs = [(one != other).any() for one, other in itertools.pairwise(pictures)]
    starts = np.flatnonzero([True, *differs])  # of runs of equal pictures
    moved_at_least = np.maximum(_MOVES * np.ptp(state, axis=0), _AT_REST)
    for start, stop in zip(starts, [*starts[1:], len(pictures)], strict=True):
        lasts_s = (captured_ns[stop - 1] - captured_ns[start]) / 1e9
        moved = np.ptp(state[start:stop], axis=0)
        if lasts_s >= _FROZEN_S and (moved > moved_at_least).any():
            since_s = captured_ns[start] / 1e9
            raise StoreError(
                f"{bag.path}: {stream.topic} repeats one picture for {lasts_s:.2f} s from {since_s:.3f} s on, while "
                f"the state moves by {moved.max():.3g}. Leave the camera out, or mark the episodes around it"
            )
