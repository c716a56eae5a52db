"""Checks of states and actions: dimensions that hardly move or jump, and actions that come too late."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import Episode
from vla_rl.data.health.report import HealthFinding, note, problem

JUMP = 0.3  # of a dimension's range over the data, within one step
JUMP_OVER_USUAL = 10.0  # over the 99th percentile of the steps of that dimension
NEARLY_CONSTANT = 1e-3  # range over the magnitude of a dimension
SATURATED = 0.97  # share of steps at one end of the range
LARGEST_LAG = 5  # steps by which actions and states are shifted against each other
FEWEST_STEPS = 20  # of an episode whose lag is measured
CLOSE, STANDS_OUT = 0.2, 0.5  # of the spread: actions are positions; over the error without a shift: a lag is clear


def check_vectors(episodes: Sequence[Episode]) -> Iterable[HealthFinding]:
    """Return dimensions that hardly move, stay at one end, or jump."""
    for what in ("state", "action"):
        groups: dict[int, list[tuple[Episode, NDArray[np.float64]]]] = {}
        for each in episodes:
            column = (each.state if what == "state" else each.action_sent).astype(np.float64)
            groups.setdefault(column.shape[1], []).append((each, column))
        for width, those in groups.items():
            names = those[0][0].dimensions[what == "action"].names
            for dim in range(width):
                columns = [(each, column[:, dim]) for each, column in those]
                yield from _check_dimension(columns, what, f"{what} {names[dim] if names else dim}")


def _check_dimension(
    columns: Sequence[tuple[Episode, NDArray[np.float64]]], what: str, name: str
) -> Iterable[HealthFinding]:
    values = np.concatenate([column for _, column in columns])
    low, high = values.min(), values.max()
    reach, magnitude = high - low, max(abs(low), abs(high))
    if reach == 0:
        detail = f"{name} is {low:g} at every step"
        yield note("constant", (), detail, "leave it out of the mapping if it means nothing")
        return
    if reach < NEARLY_CONSTANT * magnitude:
        detail = f"{name} moves by {reach:.2g} around {values.mean():.4g}"
        yield note("nearly constant", (), detail, "leave it out of the mapping if it is only jitter")
        return
    at_end = max(np.mean(values <= low + 0.01 * reach), np.mean(values >= high - 0.01 * reach))
    if at_end > SATURATED:
        detail = f"{name} is at one end of its range in {100 * at_end:.0f} % of the steps"
        yield note("saturated", (), detail, "check that the gripper or joint was really used")
    if len(np.unique(values[:10_000])) <= 3:
        return
    steps = [(each, np.abs(np.diff(column))) for each, column in columns if len(column) > 1]
    if not steps:
        return
    usual = np.quantile(np.concatenate([step for _, step in steps]), 0.99)
    limit = max(JUMP * reach, JUMP_OVER_USUAL * usual)
    jumping = [(each, step) for each, step in steps if step.max() > limit]
    if jumping:
        each, step = max(jumping, key=lambda pair: float(pair[1].max()))
        detail = (
            f"{name} jumps by {step.max():.3g} at step {int(step.argmax()) + 1} of {each.episode_id}; "
            f"99 % of its steps are below {usual:.2g}"
        )
        remedy = "trim the jump away, or leave the episode out (vla-rl edit)"
        yield (problem if what == "state" else note)("jump", (each for each, _ in jumping), detail, remedy)


def check_lags(episodes: Sequence[Episode]) -> Iterable[HealthFinding]:
    """Return actions that follow the states which they should have caused."""
    late = [(each, lag) for each in episodes if (lag := _lag(each)) is not None and lag < 0]
    if late:
        lags = " or ".join(map(str, sorted({-lag for _, lag in late})))
        detail = f"actions repeat the state of {lags} steps before; they should come first"
        remedy = "shift the actions forward, or record the commands instead of the measured positions"
        yield problem("order", (each for each, _ in late), detail, remedy)
    same = [each for each in episodes if len(each) > 1 and _equal(each)]
    if same:
        detail = "every action equals the state of its own step, so there is nothing to learn"
        yield problem("order", same, detail, "record the commands, or take the next state as action")


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
    inside = action[LARGEST_LAG : length - LARGEST_LAG]
    errors = {
        lag: float(np.mean(np.abs(inside - state[LARGEST_LAG + lag : length - LARGEST_LAG + lag]) / spread))
        for lag in range(-LARGEST_LAG, LARGEST_LAG + 1)
    }
    best = min(errors, key=errors.__getitem__)
    is_clear = errors[best] <= min(CLOSE, STANDS_OUT * errors[0])  # else no positions, or no lag that stands out
    return best if is_clear else None
