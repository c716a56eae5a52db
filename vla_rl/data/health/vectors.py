"""Checks of states and actions: dimensions that hardly move or jump, and actions that come too late."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import Episode
from vla_rl.data.health.films import Kept, ids
from vla_rl.data.health.report import HealthFinding, Severity

JUMP = 0.3  # of a dimension's range over the data, within one step
JUMP_OVER_USUAL = 10.0  # over the 99th percentile of the steps of that dimension
NEARLY_CONSTANT = 1e-3  # range over the magnitude of a dimension
SATURATED = 0.97  # share of steps at one end of the range
LARGEST_LAG = 5  # steps by which actions and states are shifted against each other
FEWEST_STEPS = 20  # of an episode whose lag is measured
CLOSE, STANDS_OUT = 0.2, 0.5  # of the spread: actions are positions; over the error without a shift: a lag is clear


def check_vectors(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    """Dimensions that hardly move, stay at one end, or jump."""
    for what in ("state", "action"):
        groups: dict[int, list[Kept]] = {}
        for each in kept:
            groups.setdefault(_column(each, what).shape[1], []).append(each)
        for width, those in groups.items():
            rows = np.concatenate([_column(each, what) for each in those]).astype(np.float64)
            names = those[0].episode.dimensions[what == "action"].names
            for dim in range(width):
                name = f"{what} {names[dim] if names else dim}"
                yield from _check_dimension(those, what, dim, name, rows[:, dim])


def _column(each: Kept, what: str) -> NDArray[np.float32]:
    return each.episode.state if what == "state" else each.episode.action_sent


def _check_dimension(
    kept: Sequence[Kept], what: str, dim: int, name: str, values: NDArray[np.float64]
) -> Iterable[HealthFinding]:
    low, high = values.min(), values.max()
    reach, magnitude = high - low, max(abs(low), abs(high))
    if reach == 0:
        detail = f"{name} is {low:g} at every step"
        yield HealthFinding("constant", "note", (), detail, "leave it out of the mapping if it means nothing")
        return
    if reach < NEARLY_CONSTANT * magnitude:
        detail = f"{name} moves by {reach:.2g} around {values.mean():.4g}"
        yield HealthFinding("nearly constant", "note", (), detail, "leave it out of the mapping if it is only jitter")
        return
    few_values = len(np.unique(values[:10_000])) <= 3
    at_end = max(np.mean(values <= low + 0.01 * reach), np.mean(values >= high - 0.01 * reach))
    if at_end > SATURATED:
        detail = f"{name} is at one end of its range in {100 * at_end:.0f} % of the steps"
        yield HealthFinding("saturated", "note", (), detail, "check that the gripper or joint was really used")
    if few_values:
        return
    steps = [np.abs(np.diff(_column(each, what)[:, dim].astype(np.float64))) for each in kept]
    usual = np.quantile(np.concatenate(steps), 0.99) if any(map(len, steps)) else 0.0
    limit = max(JUMP * reach, JUMP_OVER_USUAL * usual)
    jumping = [(each, step) for each, step in zip(kept, steps, strict=True) if len(step) and step.max() > limit]
    if jumping:
        each, step = max(jumping, key=lambda pair: float(pair[1].max()))
        detail = (
            f"{name} jumps by {step.max():.3g} at step {int(step.argmax()) + 1} of {each.episode.episode_id}; "
            f"99 % of its steps are below {usual:.2g}"
        )
        remedy = "trim the jump away, or leave the episode out (vla-rl edit)"
        severity: Severity = "problem" if what == "state" else "note"
        yield HealthFinding("jump", severity, ids(each for each, _ in jumping), detail, remedy)


def check_lags(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    """Actions that follow the states which they should have caused."""
    late = [(each, lag) for each in kept if (lag := _lag(each.episode)) is not None and lag < 0]
    if late:
        lags = sorted({-lag for _, lag in late})
        yield HealthFinding(
            "order",
            "problem",
            ids(each for each, _ in late),
            f"actions repeat the state of {' or '.join(map(str, lags))} steps before; they should come first",
            "shift the actions forward, or record the commands instead of the measured positions",
        )
    same = [each for each in kept if len(each.episode) > 1 and _equal(each.episode)]
    if same:
        detail = "every action equals the state of its own step, so there is nothing to learn"
        yield HealthFinding(
            "order", "problem", ids(same), detail, "record the commands, or take the next state as action"
        )


def _pairs(episode: Episode) -> list[tuple[int, int]]:
    """(state, action) dimensions that are the same joint: by name, or by position in vectors of one width."""
    states, actions = episode.state_dimensions.names, episode.action_dimensions.names
    if states and actions:
        return [(states.index(name), number) for number, name in enumerate(actions) if name in states]
    width = episode.state.shape[1]
    return [(dim, dim) for dim in range(width)] if width == episode.action_sent.shape[1] else []


def _equal(episode: Episode) -> bool:
    pairs = _pairs(episode)
    moving = [pair for pair in pairs if np.ptp(episode.state[:, pair[0]]) > 0]
    return bool(moving) and all(
        np.array_equal(episode.state[:, state], episode.action_sent[:, action]) for state, action in moving
    )


def _lag(episode: Episode) -> int | None:
    """By how many steps the states follow the actions; negative: the actions follow. None: they cannot be compared."""
    pairs, length = _pairs(episode), len(episode)
    if not pairs or length < FEWEST_STEPS:
        return None
    state = episode.state[:, [pair[0] for pair in pairs]].astype(np.float64)
    action = episode.action_sent[:, [pair[1] for pair in pairs]].astype(np.float64)
    moving = np.std(np.diff(state, axis=0), axis=0) > 1e-6
    if not moving.any():
        return None
    state, action = state[:, moving], action[:, moving]
    spread = np.std(state, axis=0) + 1e-9
    lags = range(-LARGEST_LAG, LARGEST_LAG + 1)
    inside = slice(LARGEST_LAG, length - LARGEST_LAG)
    errors = []
    for lag in lags:
        shifted = state[LARGEST_LAG + lag : length - LARGEST_LAG + lag]
        errors.append(float(np.mean(np.abs(action[inside] - shifted) / spread)))
    best = int(np.argmin(errors))
    if (
        errors[best] > CLOSE or errors[best] > STANDS_OUT * errors[LARGEST_LAG]
    ):  # not positions, or no lag that stands out
        return None
    return lags[best]
