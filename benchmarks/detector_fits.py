"""Detectors of recorded practice, fitted on its first answers and scored on the rest."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from vla_rl.outcomes.ensemble import SuccessDetector, Track

ORDERS = 5


def in_orders[T](played: Sequence[T]) -> Iterator[tuple[int, list[T]]]:
    """Yield the episodes in several random orders. The first ones of each are those with an answer."""
    for order in range(ORDERS):
        yield order, [played[place] for place in np.random.default_rng(order).permutation(len(played))]


def tracks_of(base: Path) -> "tuple[list[tuple[str, Track]], Any]":
    """Return the features and true outcomes of a run's episodes."""
    from vla_rl.data.store import EpisodeStore
    from vla_rl.outcomes.ensemble import PolicyFeatures

    store, features = EpisodeStore(base / "episodes", create=False), PolicyFeatures(base / "policies/version_0000")
    return [(name, features.track(store.read(name))) for name in store.ids()], features


def fit(tracks: "Sequence[Track]", features: Any, seed: int) -> "SuccessDetector":
    from vla_rl.outcomes.ensemble import SuccessDetector

    return SuccessDetector.fit_tracks(tracks, features, seed)


def scores(detector: "SuccessDetector", tracks: "Sequence[Track]") -> dict[str, float]:
    """Compare a detector's judgments of the ends with the truth, where it never asks and where it may."""
    judgments = detector.judge_rows(np.concatenate([track.rows() for track in tracks]))
    true = np.array([track.success is True for track in tracks])
    probability = np.array([judgment.probability for judgment in judgments])
    called, asked = probability > 0.5, np.array([judgment.success is None for judgment in judgments])
    above = probability[true][:, None] - probability[~true]
    novel = np.array(["unlike" in judgment.reason for judgment in judgments])
    return {
        "area": float(((above > 0) + 0.5 * (above == 0)).mean()),
        "false_success": share(~true[called]),
        "false_failure": share(true[~called]),
        "asked": float(asked.mean()),
        "novel": float(novel.mean()),
        "sure_successes": int((called & ~asked).sum()),
        "false_success_asking": share(~true[called & ~asked]),
        "false_failure_asking": share(true[~called & ~asked]),
    }


def share(wrong: Any) -> float:
    return float(wrong.mean()) if len(wrong) else 0.0
