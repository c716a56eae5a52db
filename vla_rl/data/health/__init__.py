"""Checks the content of episodes before anything is trained on them: what cannot be right, and what costs success.

The doctor (`vla_rl.data.doctor`) verifies that files are as they were written. This package asks whether what was
written makes sense: times against the rate, video against the robot's motion, actions against states, episodes against
each other. It reads every episode once and keeps only states, actions and thumbnails.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from vla_rl.core.types import Episode
from vla_rl.data.health.films import Kept, check_films, check_swaps, ids, keep
from vla_rl.data.health.report import HealthFinding, HealthReport
from vla_rl.data.health.vectors import check_lags, check_vectors

SHORTEST_EPISODE = 3  # steps
LARGEST_RATE_ERROR = 0.1  # of the control rate
FEWEST_STAMPS = 6  # that tell a rate


def check_episodes(episodes: Iterable[Episode]) -> HealthReport:
    """Check episodes that are to be trained on together.

    Args:
        episodes: Read one at a time; the pictures of each are released before the next one.

    Example:
        >>> from vla_rl.data.store import EpisodeStore
        >>> store = EpisodeStore("runs/demo/episodes")  # doctest: +SKIP
        >>> print(check_episodes(map(store.read, store.ids())).table())  # doctest: +SKIP
    """
    kept = [keep(episode) for episode in episodes]
    findings = [finding for check in _CHECKS for finding in check(kept)]
    findings.sort(key=lambda finding: finding.severity != "problem")
    return HealthReport(len(kept), sum(len(each.episode) for each in kept), tuple(findings))


def _check_lengths(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    short = [each for each in kept if len(each.episode) < SHORTEST_EPISODE]
    if short:
        steps = sorted({len(each.episode) for each in short})
        yield HealthFinding(
            "length",
            "problem",
            ids(short),
            f"{len(short)} of {len(kept)} episodes have {', '.join(map(str, steps))} steps",
            "leave them out (vla-rl edit)",
        )


def _check_duplicates(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    groups: dict[bytes, list[Kept]] = {}
    for each in kept:
        groups.setdefault(each.episode.state.tobytes() + each.episode.action_sent.tobytes(), []).append(each)
    for same in groups.values():
        if len(same) > 1:
            yield HealthFinding(
                "duplicates",
                "problem",
                ids(same),
                f"{len(same)} episodes have the same states and actions",
                "leave all but one out (vla-rl edit)",
            )


def _check_labels(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    unnamed = [each for each in kept if not each.episode.task.strip()]
    if unnamed:
        yield HealthFinding(
            "sentence", "note", ids(unnamed), "the task sentence is empty", "relabel them (vla-rl edit)"
        )
    spellings: dict[str, set[str]] = {}
    for each in kept:
        spellings.setdefault(" ".join(each.episode.task.lower().split()).rstrip("."), set()).add(each.episode.task)
    for several in spellings.values():
        if len(several) > 1:
            yield HealthFinding(
                "sentence",
                "note",
                ids(each for each in kept if each.episode.task in several),
                f"one task is spelled {len(several)} ways: {sorted(several)[:3]}",
                "relabel them alike (vla-rl edit)",
            )
    unknown = [each for each in kept if each.episode.success is None]
    if unknown:
        detail = f"{len(unknown)} of {len(kept)} episodes have no outcome"
        yield HealthFinding("outcome", "note", ids(unknown), detail, "label them (vla-rl label)")


def _check_layouts(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    """Rates, sizes and names that differ between episodes."""
    facts = {
        "control rate": lambda each: f"{each.episode.control_hz:g} Hz",
        "state numbers": lambda each: str(each.episode.state.shape[1]),
        "action numbers": lambda each: str(each.episode.action_sent.shape[1]),
        "cameras": lambda each: ", ".join(f"{name} {film.size}" for name, film in sorted(each.films.items())) or "none",
        "names of the state": lambda each: ", ".join(sorted(each.episode.state_dimensions.names)),
        "names of the action": lambda each: ", ".join(sorted(each.episode.action_dimensions.names)),
    }
    for name, fact in facts.items():
        found: dict[str, list[Kept]] = {}
        for each in kept:
            if value := fact(each):  # undeclared names are not another robot
                found.setdefault(value, []).append(each)
        if len(found) > 1:
            rarest = min(found.values(), key=len)
            several = "; ".join(f"{len(those)} x {value}" for value, those in found.items())
            yield HealthFinding(name, "problem", ids(rarest), several, "train on the groups apart, or map them alike")
    widths = [(each.episode.state.shape[1], each.episode.action_sent.shape[1]) for each in kept]
    unnamed = [
        each
        for each, sizes in zip(kept, widths, strict=True)
        if any(size and not named for size, named in zip(sizes, each.episode.dimensions, strict=True))
    ]
    if unnamed:
        yield HealthFinding(
            "names",
            "note",
            () if len(unnamed) == len(kept) else ids(unnamed),
            f"{len(unnamed)} of {len(kept)} episodes do not name all dimensions, so vectors are matched by position",
            "check that all sources have the same order",
        )


def _check_times(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    """Capture times against the declared rate, and times that go back."""
    slow: dict[str, list[tuple[Kept, float]]] = {}
    back: dict[str, list[Kept]] = {}
    for each in kept:
        for name, column in each.episode.extras.items():
            if not name.startswith("captured_ns.") or len(column) < 2:
                continue
            stream, times_s = name.removeprefix("captured_ns."), np.asarray(column, dtype=np.int64) / 1e9
            if (np.diff(times_s) < 0).any():
                back.setdefault(stream, []).append(each)
            elif times_s[-1] > times_s[0]:
                rate_hz = (len(times_s) - 1) / (times_s[-1] - times_s[0])
                wrong = abs(rate_hz / each.episode.control_hz - 1) > LARGEST_RATE_ERROR
                if wrong and len(times_s) >= FEWEST_STAMPS:
                    slow.setdefault(stream, []).append((each, rate_hz))
    for stream, found in slow.items():
        rate_hz, declared_hz = np.median([rate for _, rate in found]), found[0][0].episode.control_hz
        yield HealthFinding(
            "rate",
            "problem",
            ids(each for each, _ in found),
            f"stamps of {stream} say {rate_hz:.3g} Hz, the episodes declare {declared_hz:g} Hz",
            "correct the rate in the mapping, or record anew",
        )
    for stream, episodes in back.items():
        detail = f"stamps of {stream} go back in time"
        yield HealthFinding("times", "problem", ids(episodes), detail, "synchronize the clocks, or leave them out")


_CHECKS: tuple[Callable[[Sequence[Kept]], Iterable[HealthFinding]], ...] = (
    _check_lengths,
    _check_duplicates,
    _check_labels,
    _check_layouts,
    _check_times,
    check_films,
    check_swaps,
    check_vectors,
    check_lags,
)

__all__ = ["HealthFinding", "HealthReport", "check_episodes"]
