"""Checks the content of episodes before anything is trained on them: what cannot be right, and what costs success.

The doctor (`vla_rl.data.doctor`) verifies that files are as they were written. This package asks whether what was
written makes sense: times against the rate, video against the robot's motion, actions against states, episodes against
each other. It reads every episode once and keeps only states, actions and thumbnails.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from vla_rl.core.types import Episode
from vla_rl.data.health.images import Camera, Cameras, check_images, check_swaps, look_at
from vla_rl.data.health.report import HealthFinding, HealthReport, note, problem
from vla_rl.data.health.vectors import check_lags, check_vectors

SHORTEST_EPISODE = 3  # steps
LARGEST_RATE_ERROR = 0.1  # of the control rate
FEWEST_STAMPS = 6  # needed to estimate a rate

__all__ = ["HealthFinding", "HealthReport", "check_episodes"]


def check_episodes(episodes: Iterable[Episode]) -> HealthReport:
    """Check episodes that are to be trained on together.

    Args:
        episodes: Read one at a time; the pictures of each are released before the next one.

    Example:
        >>> from vla_rl.data.store import EpisodeStore
        >>> check_episodes(EpisodeStore(Path("datasets/dot"), create=False)).episodes
        3
    """
    seen = [look_at(episode) for episode in episodes]
    kept = [episode for episode, _ in seen]
    checks = (_check_lengths, _check_duplicates, _check_labels)
    findings = [finding for check in checks for finding in check(kept)]
    findings += [*_check_layouts(seen), *_check_times(kept), *check_images(seen), *check_swaps(seen)]
    findings += [*check_vectors(kept), *check_lags(kept)]
    findings.sort(key=lambda finding: finding.severity != "problem")
    return HealthReport(len(kept), sum(map(len, kept)), tuple(findings))


def _check_lengths(episodes: Sequence[Episode]) -> Iterable[HealthFinding]:
    short = [each for each in episodes if len(each) < SHORTEST_EPISODE]
    if short:
        steps = ", ".join(map(str, sorted({len(each) for each in short})))
        detail = f"{len(short)} of {len(episodes)} episodes have {steps} steps"
        yield problem("length", short, detail, "leave them out (vla-rl edit)")


def _check_duplicates(episodes: Sequence[Episode]) -> Iterable[HealthFinding]:
    groups: dict[bytes, list[Episode]] = {}
    for each in episodes:
        groups.setdefault(each.state.tobytes() + each.action_sent.tobytes(), []).append(each)
    for same in groups.values():
        if len(same) > 1:
            detail = f"{len(same)} episodes have the same states and actions"
            yield problem("duplicates", same, detail, "leave all but one out (vla-rl edit)")


def _check_labels(episodes: Sequence[Episode]) -> Iterable[HealthFinding]:
    unnamed = [each for each in episodes if not each.task.strip()]
    if unnamed:
        yield note("sentence", unnamed, "the task sentence is empty", "relabel them (vla-rl edit)")
    spellings: dict[str, set[str]] = {}
    for each in episodes:
        spellings.setdefault(" ".join(each.task.lower().split()).rstrip("."), set()).add(each.task)
    for several in spellings.values():
        if len(several) > 1:
            detail = f"one task is spelled {len(several)} ways: {sorted(several)[:3]}"
            these = (each for each in episodes if each.task in several)
            yield note("sentence", these, detail, "relabel them alike (vla-rl edit)")
    unknown = [each for each in episodes if each.success is None]
    if unknown:
        detail = f"{len(unknown)} of {len(episodes)} episodes have no outcome"
        yield note("outcome", unknown, detail, "label them (vla-rl label)")


def _check_layouts(seen: Sequence[tuple[Episode, Cameras]]) -> Iterable[HealthFinding]:
    """Rates, sizes and names that differ between episodes."""
    facts: dict[str, dict[str, list[Episode]]] = {}
    for episode, cameras in seen:
        for fact, value in _layout(episode, cameras).items():
            if value:  # undeclared names are not another robot
                facts.setdefault(fact, {}).setdefault(value, []).append(episode)
    for fact, found in facts.items():
        if len(found) > 1:
            several = "; ".join(f"{len(those)} x {value}" for value, those in found.items())
            rarest = min(found.values(), key=len)
            yield problem(fact, rarest, several, "train on the groups apart, or map them alike")
    unnamed = [
        episode
        for episode, _ in seen
        if (episode.state.shape[1] and not episode.state_dimensions)
        or (episode.action_sent.shape[1] and not episode.action_dimensions)
    ]
    if unnamed:
        detail = (
            f"{len(unnamed)} of {len(seen)} episodes do not name all dimensions, so vectors are matched by position"
        )
        these = [] if len(unnamed) == len(seen) else unnamed
        yield note("names", these, detail, "check that all sources have the same order")


def _layout(episode: Episode, cameras: dict[str, Camera]) -> dict[str, str]:
    """Return what all episodes should have in common."""
    return {
        "control rate": f"{episode.control_hz:g} Hz",
        "state numbers": str(episode.state.shape[1]),
        "action numbers": str(episode.action_sent.shape[1]),
        "cameras": ", ".join(f"{name} {camera.size}" for name, camera in sorted(cameras.items())) or "none",
        "names of the state": ", ".join(sorted(episode.state_dimensions.names)),
        "names of the action": ", ".join(sorted(episode.action_dimensions.names)),
    }


def _check_times(episodes: Sequence[Episode]) -> Iterable[HealthFinding]:
    """Capture times against the declared rate, and times that go back."""
    off_rate: dict[str, list[tuple[Episode, float]]] = {}
    back: dict[str, list[Episode]] = {}
    for each in episodes:
        for name, column in each.extras.items():
            if not name.startswith("captured_ns.") or len(column) < 2:
                continue
            stream, times_s = name.removeprefix("captured_ns."), np.asarray(column, dtype=np.int64) / 1e9
            if (np.diff(times_s) < 0).any():
                back.setdefault(stream, []).append(each)
            elif times_s[-1] > times_s[0] and len(times_s) >= FEWEST_STAMPS:
                rate_hz = (len(times_s) - 1) / (times_s[-1] - times_s[0])
                if abs(rate_hz / each.control_hz - 1) > LARGEST_RATE_ERROR:
                    off_rate.setdefault(stream, []).append((each, rate_hz))
    for stream, found in off_rate.items():
        rate_hz, declared_hz = np.median([rate for _, rate in found]), found[0][0].control_hz
        detail = f"stamps of {stream} say {rate_hz:.3g} Hz, the episodes declare {declared_hz:g} Hz"
        yield problem("rate", (each for each, _ in found), detail, "correct the rate in the mapping, or record anew")
    for stream, those in back.items():
        detail = f"stamps of {stream} go back in time"
        yield problem("times", those, detail, "synchronize the clocks, or leave them out")
