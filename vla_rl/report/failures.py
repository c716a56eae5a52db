"""Failures sorted by where the critic's chance of success falls: failures that fall together often fail alike."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vla_rl.report.run_episodes import Trace
from vla_rl.report.wording import count

CHANCES = ("viability", "discounted_value")
_HOPELESS = 0.25
_AVERAGED_STEPS = 5
_MOST_GROUPS = 4
_NARROW_STEPS = 20


@dataclass(frozen=True)
class FailureGroup:
    """Failures that look alike to the critic.

    Attributes:
        words: where the chance of success falls.
        traces: of the failures, at least one.
    """

    words: str
    traces: list[Trace]


def group_failures(traces: Sequence[Trace]) -> list[FailureGroup]:
    """Failures in groups, the largest first. Traces without a chance of success are left out."""
    groups: dict[str, list[Trace]] = {}
    falls: list[tuple[int, Trace]] = []
    for trace in traces:
        column = next((trace.columns[name] for name in CHANCES if name in trace.columns), None)
        if column is None or not np.isfinite(column).any():
            continue
        fall = step_of_fall(column)
        if isinstance(fall, str):
            groups.setdefault(fall, []).append(trace)
        else:
            falls.append((fall, trace))
    for group in _split(sorted(falls, key=lambda each: each[0])):
        first, last = group[0][0], group[-1][0]
        where = f"at step {first}" if first == last else f"between steps {first} and {last}"
        groups[f"The chance of success falls {where}"] = [trace for _, trace in group]
    found = [FailureGroup(words, members) for words, members in groups.items()]
    return sorted(found, key=lambda group: -len(group.traces))


def step_of_fall(chance: NDArray[np.float64]) -> int | str:
    """The step after which the chance stays below half of its highest value, or in words why there is none.

    Args:
        chance: [T], 0 to 1; NaN is passed over.
    """
    known = np.where(np.isfinite(chance), chance, np.nanmean(chance))
    width = min(_AVERAGED_STEPS, len(known))
    smooth = np.convolve(np.pad(known, (width // 2, width - 1 - width // 2), "edge"), np.ones(width) / width, "valid")
    peak = smooth.max()
    if peak < _HOPELESS:
        return "There was no hope from the start"
    high = np.flatnonzero(smooth >= peak / 2)
    if high[-1] == len(smooth) - 1:
        return "The critic saw no failure coming"
    return int(high[-1]) + 1


def summary(groups: Sequence[FailureGroup]) -> str:
    """The largest group in a sentence; empty without failures."""
    total = sum(len(group.traces) for group in groups)
    return f"{groups[0].words} ({len(groups[0].traces)} of {count(total, 'failure')})" if groups else ""


def _split(falls: list[tuple[int, Trace]]) -> list[list[tuple[int, Trace]]]:
    """Cut a sorted list at the widest gap of its widest part, until every part is narrow."""

    def span(part: list[tuple[int, Trace]]) -> int:
        return part[-1][0] - part[0][0]

    parts = [falls] if falls else []
    while parts and len(parts) < _MOST_GROUPS and span(widest := max(parts, key=span)) > _NARROW_STEPS:
        gaps = [after[0] - before[0] for before, after in itertools.pairwise(widest)]
        cut, at = gaps.index(max(gaps)) + 1, parts.index(widest)
        parts[at : at + 1] = [widest[:cut], widest[cut:]]
    return parts
