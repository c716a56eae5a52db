"""Is a predicted probability right as often as it says? Numpy only.

Measured on steps that the critic was not trained on; what memorized its episodes is calibrated on them whatever it is
worth elsewhere.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vla_rl.core.errors import UserError


class ReliabilityCurve(NamedTuple):
    """Mean prediction, mean label and number of samples in equally wide bins of [0, 1], [K] each.

    Empty bins are left out.
    """

    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    samples: NDArray[np.int64]


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Return the chance that a success scores above a failure, by scores and labels [N]; ties count half.

    This is the area under the receiver operating characteristic. NaN if there are no successes or no failures.
    """
    scores, won = np.asarray(scores), np.asarray(labels, dtype=bool)
    positive, negative = scores[won], np.sort(scores[~won])
    if len(positive) == 0 or len(negative) == 0:
        return float("nan")
    below, not_above = (np.searchsorted(negative, positive, side).mean() for side in ("left", "right"))
    return float((below + not_above) / 2 / len(negative))


def reliability_curve(probability: ArrayLike, label: ArrayLike, bins: int = 10) -> ReliabilityCurve:
    """Mean prediction [N], in [0, 1], against observed frequency, in bins.

    A label [N] is 0 for a failure; for a success 1, or what it is worth where what comes later is worth less.

    Raises:
        UserError: for unequal lengths, no samples, or predictions outside [0, 1].
    """
    probability, label = np.asarray(probability, dtype=np.float64), np.asarray(label, dtype=np.float64)
    if probability.shape != label.shape or probability.ndim != 1 or len(probability) == 0:
        raise UserError(
            f"calibration needs a label for each prediction, and at least one; found {list(label.shape)} labels "
            f"and {list(probability.shape)} predictions"
        )
    if not ((probability >= 0) & (probability <= 1)).all():
        raise UserError("calibration needs predictions in [0, 1]; pass probabilities, not logits")
    index = np.minimum((probability * bins).astype(np.int64), bins - 1)
    count = np.bincount(index, minlength=bins)
    filled = count > 0
    sums = [np.bincount(index, weights=column, minlength=bins)[filled] for column in (probability, label)]
    return ReliabilityCurve(sums[0] / count[filled], sums[1] / count[filled], count[filled])


def expected_calibration_error(probability: ArrayLike, label: ArrayLike, bins: int = 10) -> float:
    """Mean distance between prediction and frequency over the bins, weighted by their samples. Arguments as above."""
    curve = reliability_curve(probability, label, bins)
    return float((curve.samples * np.abs(curve.predicted - curve.observed)).sum() / curve.samples.sum())


def calibration_record(probability: ArrayLike, label: ArrayLike, bins: int = 10) -> dict[str, Any]:
    """What a run logs of its critic's forecasts. Arguments as above, over the steps that have a label.

    Returns:
        ``steps`` (N), ``calibration_error`` (`expected_calibration_error`), ``brier`` (mean squared distance between
        prediction and label) and ``auc`` (`auc`; None where all outcomes are alike). Also ``mean_predicted`` and
        ``mean_observed``, and ``predicted``, ``observed`` and ``samples`` of the `ReliabilityCurve` as lists. Without a
        single step only ``steps``, which is 0.
    """
    probability, label = np.asarray(probability, dtype=np.float64), np.asarray(label, dtype=np.float64)
    if len(probability) == 0:
        return {"steps": 0}
    curve, area = reliability_curve(probability, label, bins), auc(probability, label > 0)
    return {
        "steps": len(label),
        "calibration_error": expected_calibration_error(probability, label, bins),
        "brier": float(np.mean((probability - label) ** 2)),
        "auc": None if np.isnan(area) else area,
        "mean_predicted": float(probability.mean()),
        "mean_observed": float(label.mean()),
        "predicted": curve.predicted.tolist(),
        "observed": curve.observed.tolist(),
        "samples": curve.samples.tolist(),
    }
