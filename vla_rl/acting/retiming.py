"""Slow demonstrations, re-timed: faster on the way, as they were where a gripper works.

Rows are left out, and their commands move to the previous row. Every state and picture that stays is therefore a real
one. Faster motion than demonstrated may be more than the robot can follow: replay it before training on it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import Episode, Float32Array

_CONTACT_S = 0.4  # around every change of a gripper's command the timing is kept
_GRIPPER_CHANGE = 0.1  # of a gripper's range in the episode, from one step to the next, or within that time

_ROUNDING = 1e-5  # of sums


def retimed(
    episode: Episode,
    speed: float,
    gripper_dims: Sequence[int],
    delta_dims: Sequence[int],
    bounds: tuple[Float32Array, Float32Array] | None = None,
) -> Episode:
    """Return the episode, up to ``speed`` times as fast.

    Args:
        episode: a demonstration of T steps.
        speed: 1 or more; 1 changes nothing.
        gripper_dims: dimensions of the action that are grippers.
        delta_dims: dimensions that are steps, which add up; of targets the last one counts.
        bounds: lowest and highest action, [A] each: steps that would add up to more stay as they were; None: none do.
    """
    kept = kept_rows(episode.action_sent, speed, gripper_dims, _CONTACT_S * episode.control_hz)
    if bounds is not None:
        kept = _within(kept, episode.action_sent[:, list(delta_dims)], *(bound[list(delta_dims)] for bound in bounds))

    def command(action: Float32Array) -> Float32Array:
        merged = action[np.append(kept[1:], len(action)) - 1]
        merged[:, list(delta_dims)] = np.add.reduceat(action[:, list(delta_dims)], kept, axis=0)
        return merged

    policy, sent = command(episode.action_policy), command(episode.action_sent)
    return replace(episode.rows(kept), action_policy=policy, action_sent=sent)


def kept_rows(
    action: Float32Array, speed: float, gripper_dims: Sequence[int], contact_steps: float
) -> NDArray[np.int64]:
    """Return the rows of [T, A] that stay: the first, all near a gripper's change, else one in ``speed``."""
    grippers, rows = action[:, list(gripper_dims)], np.arange(len(action))
    least = _GRIPPER_CHANGE * np.maximum(np.ptp(grippers, axis=0), 1e-9)
    steps = np.diff(grippers, axis=0, prepend=grippers[:1])
    sudden = np.abs(steps) > least
    slow = np.cumsum(np.where(sudden, 0, steps), axis=0)
    half = max(int(contact_steps) // 2, 1)
    moved = np.abs(slow[np.minimum(rows + half, len(rows) - 1)] - slow[np.maximum(rows - half, 0)]) > least
    changes = np.flatnonzero((sudden | moved).any(axis=1))
    near = (np.abs(rows[:, None] - changes) <= contact_steps).any(axis=1)
    lasts = np.where(near, 1.0, 1 / speed)  # steps of the new timing
    starts = np.floor(np.cumsum(lasts) - lasts + 1e-9)
    return np.flatnonzero(np.diff(starts, prepend=-1.0) > 0)


def _within(kept: NDArray[np.int64], steps: Float32Array, low: Float32Array, high: Float32Array) -> NDArray[np.int64]:
    """Return the rows that stay, with those of [T, D] steps whose sum up to the next one would leave the bounds."""
    merged = np.add.reduceat(steps, kept, axis=0)
    too_far = np.any([merged < low - _ROUNDING, merged > high + _ROUNDING], axis=(0, 2))
    rows = np.arange(len(steps))
    return np.flatnonzero(np.isin(rows, kept) | np.repeat(too_far, np.diff(np.append(kept, len(rows)))))
