"""How well a score ranks: what critics and world models are both judged by."""

import numpy as np
from numpy.typing import ArrayLike


def auc(scores: ArrayLike, labels: ArrayLike) -> float:
    """Area under the receiver operating characteristic: the chance that a success scores above a failure; ties count
    half. NaN if either is missing.

    Args:
        scores: [N].
        labels: [N], true of a success.
    """
    scores, won = np.asarray(scores), np.asarray(labels, dtype=bool)
    positive, negative = scores[won], np.sort(scores[~won])
    if len(positive) == 0 or len(negative) == 0:
        return float("nan")
    below, not_above = (np.searchsorted(negative, positive, side).mean() for side in ("left", "right"))
    return float((below + not_above) / 2 / len(negative))
