"""Which loss may use which step: episodes of policy, human and demonstration steps -> segments -> one explicit mask per
loss.

A person who takes over repairs what the policy broke. If the outcome of such an episode labeled all of its steps, the
states from which the policy fails would look viable. So every loss sees only the steps whose label means what the loss
needs:

======================================  =======================  =================  =============================
segment                                 viability                efficiency         actor
======================================  =======================  =================  =============================
autonomous episode, and policy suffix   the outcome              of successes       rollout
policy before or between takeovers      none, or 0 (see rules)   none               excluded
intervention (dense human steps)        never                    of successes       intervention
demonstration                           never                    of successes       demonstration
======================================  =======================  =================  =============================

Rules for the policy segment that ends in a takeover:

- ``paper``: no label. If a fraction f of the failing episodes is rescued, failures become rare among the labels. The
  value of the initial state then tends to s / (s + (1 - f)(1 - s)) instead of the success rate s.
- ``takeover_is_failure``: label 0, because a takeover is evidence that the policy would have failed. Removes that bias.

A person's device may command fewer dimensions than the robot has (the arm, but not the gripper). During an intervention
the others still show the policy's values, and `imitated_dims` keeps them out of the actor's loss.

Two options are for slow and hesitant people: `takeover_lead_steps` and `idle_steps`. They only take steps away from a
loss.

An unlabeled outcome (``success=None``) gives no label, trains no efficiency and excludes the policy's steps from the
actor; what people did is still imitated. Pure numpy, vectorized over a flat array of many episodes. Source: arXiv
2606.17043, intervention-aware credit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vla_rl.core.errors import ConfigError, UserError, did_you_mean
from vla_rl.core.types import Float32Array, Origin, Source, Uint8Array
from vla_rl.core.validation import check_ranges

BoolArray = NDArray[np.bool_]
Int64Array = NDArray[np.int64]

RULES = ("paper", "takeover_is_failure")
WINDOW = 5
"""Length of the window in which human steps are counted, in ``min_human_steps``; the paper's 50 steps."""
IDLE_MOTION = 0.01
"""Motion below which a person pauses, in standard deviations of each action dimension over the data."""
_UNKNOWN = -1


class SegmentKind(IntEnum):
    """What a step is a part of. Stored as uint8."""

    AUTONOMOUS = 0
    BEFORE_TAKEOVER = 1
    INTERVENTION = 2
    SUFFIX = 3
    DEMONSTRATION = 4


class ActorKind(IntEnum):
    """How the actor may use the chunk that starts at a step. Stored as uint8."""

    EXCLUDED = 0
    ROLLOUT = 1
    INTERVENTION = 2
    DEMONSTRATION = 3


@dataclass(frozen=True)
class CreditConfig:
    """The choices of credit assignment.

    Attributes:
        rule: ``paper`` or ``takeover_is_failure``, see the module's docstring.
        min_human_steps: Number of human steps that make an intervention, within some window of `WINDOW` times as many
            consecutive steps. Fewer are a touch, not a takeover: they count as the policy's steps.
        endings_are_takeovers: the human steps that an episode ends with are an intervention, however few. A success
            ends the episode, so it cuts rescues short. Without this, a rescue of nine steps at the end would make the
            whole episode a success of the policy. False is the paper.
        intervention_dims: the action dimensions that a person commands when taking over, counted from 0; empty: all.
            The actor does not imitate the others during an intervention.
        takeover_lead_steps: the first so many steps of an intervention are not imitated: the person is getting hold of
            the device, the robot hardly moves. They stay in the efficiency loss: the time passed. Where a person begins
            the episode, there is no takeover, and all of their steps count.
        idle_steps: Length from which a person's pause is not imitated: a run of steps whose commanded motion stays
            below `IDLE_MOTION`. 0: all pauses are imitated. It stays in the efficiency loss.
    """

    rule: str = "paper"
    min_human_steps: int = 10
    endings_are_takeovers: bool = False
    intervention_dims: tuple[int, ...] = ()
    takeover_lead_steps: int = 0
    idle_steps: int = 0

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise ConfigError(f"unknown credit rule {self.rule!r}.{did_you_mean(self.rule, RULES)}")
        check_ranges(self, "credit", min_human_steps=">= 1", takeover_lead_steps=">= 0", idle_steps=">= 0")
        if min(self.intervention_dims, default=0) < 0:
            raise ConfigError(f"credit.intervention_dims is {self.intervention_dims}; dimensions are counted from 0")


@dataclass(frozen=True, slots=True, eq=False)
class StepCredit:
    """One row per step, for one episode or for many back to back (N steps).

    Attributes:
        segment: uint8 [N], values of `SegmentKind`.
        viability_label: float32 [N], 1 or 0; 0 outside the mask.
        viability_mask: bool [N], the steps that the viability loss may see.
        efficiency_mask: bool [N], the steps that the efficiency loss may see.
        actor_kind: uint8 [N], values of `ActorKind`.
        actor_outcome: bool [N], True where the episode succeeded.
        known: bool [N], whether it is known if it did.
        terminal_success: bool [N], the last step of each successful episode (d_t of the paper).
        chunk_stop: First row that an action chunk starting here must not imitate, int64 [N]. It is the end of the run
            of steps with the same segment and actor kind. Keeps the policy's actions out of chunks that begin in an
            intervention.
        outcome_stop: First row that a judgment of actions from here on must not reach, int64 [N]. As ``chunk_stop``,
            but waiting for a plan, which is not imitated either, counts.
    """

    segment: Uint8Array
    viability_label: Float32Array
    viability_mask: BoolArray
    efficiency_mask: BoolArray
    actor_kind: Uint8Array
    actor_outcome: BoolArray
    known: BoolArray
    terminal_success: BoolArray
    chunk_stop: Int64Array
    outcome_stop: Int64Array

    def __len__(self) -> int:
        return len(self.segment)


@dataclass(frozen=True, slots=True)
class Segment:
    """A maximal run of steps of one kind: rows ``start`` up to, not including, ``stop``."""

    kind: SegmentKind
    start: int
    stop: int


def assign(source: ArrayLike, success: bool | None, origin: Origin, config: CreditConfig) -> StepCredit:
    """Credit of one episode of sources uint8 [T]. Of origin ``demo``, every step is a demonstration.

    Raises:
        UserError: if the episode has no steps or an unknown source.
    """
    return assign_batch(source, [np.size(source)], [success], [origin], config)


def assign_batch(
    source: ArrayLike,
    lengths: ArrayLike,
    success: Sequence[bool | None],
    origin: Sequence[Origin],
    config: CreditConfig,
    motion: NDArray[np.floating] | None = None,
) -> StepCredit:
    """Credit of E episodes that lie back to back, N steps in all.

    Arguments as in `assign`, one entry per episode; ``lengths`` int [E]. ``motion`` float [N] is the commanded motion
    of each step in the unit of `IDLE_MOTION`, which ``idle_steps`` needs.

    Raises:
        UserError: if the lengths do not add up to N, an episode has no steps, a source is unknown, or the motion is
            missing.
    """
    source = np.asarray(source, dtype=np.uint8)
    lengths = np.asarray(lengths, dtype=np.int64)
    _check(source, lengths, success, origin)
    episode = np.repeat(np.arange(len(lengths)), lengths)  # [N]
    last_step = np.cumsum(lengths) - 1  # [E]
    outcome = np.array([_UNKNOWN if value is None else int(value) for value in success], dtype=np.int8)
    outcome = outcome[episode]  # [N]

    demonstrated = (source == Source.DEMO) | np.array([value == Origin.DEMO for value in origin], dtype=bool)[episode]
    segment = _segment_kinds(source, demonstrated, episode, last_step, config)

    judged = np.isin(segment, (SegmentKind.AUTONOMOUS, SegmentKind.SUFFIX))
    viability_mask = judged & (outcome != _UNKNOWN)
    viability_label = (viability_mask & (outcome == 1)).astype(np.float32)
    if config.rule == "takeover_is_failure":
        viability_mask |= segment == SegmentKind.BEFORE_TAKEOVER

    timed = judged | np.isin(segment, (SegmentKind.INTERVENTION, SegmentKind.DEMONSTRATION))
    terminal_success = np.zeros(len(source), dtype=bool)
    terminal_success[last_step] = outcome[last_step] == 1

    # A hold is no decision: time passes for the critics, but there is nothing to imitate.
    intervened = segment == SegmentKind.INTERVENTION
    wasted = _leads(intervened, episode, config.takeover_lead_steps)
    if config.idle_steps:
        wasted |= _idle(motion, demonstrated | intervened, episode, config)
    actor_kind = np.select(
        [wasted, demonstrated, intervened, judged & (outcome != _UNKNOWN) & (source != Source.HOLD)],
        [ActorKind.EXCLUDED, ActorKind.DEMONSTRATION, ActorKind.INTERVENTION, ActorKind.ROLLOUT],
        ActorKind.EXCLUDED,
    ).astype(np.uint8)
    return StepCredit(
        segment=segment,
        viability_label=viability_label,
        viability_mask=viability_mask,
        efficiency_mask=timed & (outcome == 1),
        actor_kind=actor_kind,
        actor_outcome=outcome == 1,
        known=outcome != _UNKNOWN,
        terminal_success=terminal_success,
        chunk_stop=_run_stops(episode, segment, actor_kind),
        outcome_stop=_run_stops(episode, segment, wasted),
    )


def imitated_dims(credit: StepCredit, action_dim: int, config: CreditConfig) -> BoolArray:
    """Return which of the A dimensions of each step's action the actor may imitate, bool [N, A].

    What a step contributes to a chunk is this and the chunk's own validity (``chunk_stop``).

    Raises:
        UserError: if a dimension that the config names does not exist.
    """
    if max(config.intervention_dims, default=0) >= action_dim:
        raise UserError(
            f"credit.intervention_dims is {config.intervention_dims}, but actions have {action_dim} dimensions, "
            "counted from 0"
        )
    commanded = np.isin(np.arange(action_dim), config.intervention_dims) | (not config.intervention_dims)  # [A]
    return (credit.segment != SegmentKind.INTERVENTION)[:, None] | commanded


def segments(credit: StepCredit) -> list[Segment]:
    """Return the segments of one episode, in order; they cover it without gaps."""
    starts = np.flatnonzero(np.diff(credit.segment, prepend=np.int16(-1)))
    stops = np.append(starts[1:], len(credit))
    return [
        Segment(SegmentKind(int(credit.segment[start])), int(start), int(stop))
        for start, stop in zip(starts, stops, strict=True)
    ]


def _segment_kinds(
    source: Uint8Array, demonstrated: BoolArray, episode: Int64Array, last_step: Int64Array, config: CreditConfig
) -> Uint8Array:
    row = np.arange(len(source))
    first_step = np.concatenate([[0], last_step[:-1] + 1]) if len(last_step) else last_step
    human = (source == Source.HUMAN) & ~demonstrated
    intervention = _dense_human_steps(human, episode, config)
    if config.endings_are_takeovers:
        last_other = np.maximum.reduceat(np.where(human, -1, row), first_step)  # [E]
        intervention |= row > last_other[episode]
    # Inside a mixed episode a demonstrator takes the commands over just as a corrector does.
    taken = demonstrated | intervention
    last_taken = np.maximum.reduceat(np.where(taken, row, -1), first_step)[episode]
    return np.select(
        [demonstrated, intervention, row < last_taken, last_taken >= 0],
        [SegmentKind.DEMONSTRATION, SegmentKind.INTERVENTION, SegmentKind.BEFORE_TAKEOVER, SegmentKind.SUFFIX],
        SegmentKind.AUTONOMOUS,
    ).astype(np.uint8)


def _dense_human_steps(human: BoolArray, episode: Int64Array, config: CreditConfig) -> BoolArray:
    """Return the human steps of which ``min_human_steps`` successive ones share a window."""
    rows = np.flatnonzero(human)
    count = config.min_human_steps
    first, last = rows[: max(len(rows) - count + 1, 0)], rows[count - 1 :]
    group = np.flatnonzero((last - first < WINDOW * count) & (episode[first] == episode[last]))
    coverage = np.zeros(len(rows) + 1, dtype=np.int64)
    coverage[group] += 1
    coverage[group + count] -= 1
    dense = np.zeros(len(human), dtype=bool)
    dense[rows[np.cumsum(coverage[:-1]) > 0]] = True
    return dense


def _leads(intervened: BoolArray, episode: Int64Array, steps: int) -> BoolArray:
    """Return the first ``steps`` steps of every intervention that takes over from the policy."""
    begins = np.flatnonzero((np.diff(intervened.astype(np.int8)) > 0) & (np.diff(episode) == 0)) + 1
    rows = (begins[:, None] + np.arange(steps)).clip(max=len(episode) - 1)  # [M, steps]
    leads = np.zeros(len(episode), dtype=bool)
    leads[rows[episode[rows] == episode[begins][:, None]]] = True
    return leads & intervened


def _idle(
    motion: NDArray[np.floating] | None, by_person: BoolArray, episode: Int64Array, config: CreditConfig
) -> BoolArray:
    """Return the steps of long enough runs in which a person does not move."""
    if motion is None:
        raise UserError("credit.idle_steps needs the commanded motion of every step; leave it at 0 where there is none")
    still = by_person & (np.asarray(motion) < IDLE_MOTION)
    _, run, lengths = np.unique(_run_stops(episode, still), return_inverse=True, return_counts=True)
    return still & (lengths >= config.idle_steps)[run]


def _run_stops(episode: Int64Array, *columns: Uint8Array | BoolArray) -> Int64Array:
    """For each row the first later row at which the episode or one of the columns is another."""
    changes = np.any([np.diff(column) != 0 for column in (episode, *columns)], axis=0)
    stops = np.append(np.flatnonzero(changes) + 1, len(episode))
    return stops[np.searchsorted(stops, np.arange(len(episode)), side="right")]


def _check(source: Uint8Array, lengths: Int64Array, *per_episode: Sequence[object]) -> None:
    if source.ndim != 1 or lengths.sum() != len(source):
        raise UserError(f"credit: source has shape {list(source.shape)}, but the lengths add up to {lengths.sum()}")
    if (lengths < 1).any():
        raise UserError("credit: an episode has no steps; drop empty episodes before credit is assigned")
    if any(len(column) != len(lengths) for column in per_episode):
        entries = [len(column) for column in per_episode]
        raise UserError(f"credit: {len(lengths)} lengths, but {entries} entries of success and origin")
    if source.max(initial=0) > max(Source):
        raise UserError(f"credit: source has the value {source.max()}, known are {[int(value) for value in Source]}")
