"""The statistics of comparisons: intervals of any statistic, intervals of a rate with the help of predictions, and a
test of rates over several seeds. Tests of pairs of episodes are in `vla_rl.report.statistics`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vla_rl.core.errors import UserError
from vla_rl.report.statistics import check_counts, normal_quantile, score_interval

_FEWEST = 5
"""Episodes with the rarer outcome, below which a variance of outcomes is not taken for known."""


def bootstrap_interval(
    values: NDArray[Any],
    statistic: Callable[[NDArray[Any]], Any],
    seed: int,
    confidence: float = 0.95,
    resamples: int = 2000,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic.

    Args:
        values: [n, ...]; whole rows are drawn with replacement, so paired measurements stay paired.
        statistic: maps values of the same shape to a number.
        seed: of the draws; the same seed gives the same interval.

    Raises:
        UserError: for no values, no resamples, or a confidence outside (0, 1).
    """
    values = np.asarray(values)
    if len(values) == 0 or resamples < 1:
        raise UserError(f"a bootstrap needs values and resamples, found {len(values)} values and {resamples} resamples")
    normal_quantile(confidence)
    generator = np.random.Generator(np.random.Philox(key=seed))
    drawn = [statistic(values[generator.integers(len(values), size=len(values))]) for _ in range(resamples)]
    low, high = np.quantile(drawn, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


class Estimate(NamedTuple):
    """A success rate.

    Attributes:
        mean: of all episodes.
        interval: 95 %, Wilson's for its effective number of episodes.
        saved: how many times as many real episodes alone would have had to be to be as certain. 1, if fewer than five
            episodes have the rarer outcome: they do not show how certain it is.
    """

    mean: float
    interval: tuple[float, float]
    saved: float


def control_variate(outcome: NDArray[Any], predicted: NDArray[Any], elsewhere: NDArray[Any]) -> Estimate:
    """Estimate a success rate from few real episodes and predictions for many starts (control variate;
    prediction-powered inference, arXiv 2311.01453):

        p = mean_i [Y_i - b_i (F_i - mean F')],   b = Cov(Y, F) / (Var(F) (1 + n / N))

    b_i is computed without episode i, so that p has no bias, however wrong F is; an F that knows nothing costs little.

    Args:
        outcome: Y, [n], 1 or 0, of real episodes.
        predicted: F, [n], success for the same starts as models predict it that have learned from other episodes.
        elsewhere: F', [N], of further starts from the same distribution.

    Raises:
        UserError: for fewer than three episodes, lengths that differ, no further starts, or numbers not finite.
    """
    y, f, others = (np.asarray(part, dtype=np.float64) for part in (outcome, predicted, elsewhere))
    n, further = len(y), len(others)
    if n < 3 or f.shape != y.shape or not further or not all(np.isfinite(part).all() for part in (y, f, others)):
        raise UserError(
            f"found {n} real episodes, {len(f)} predictions and {further} elsewhere; expected at least three "
            "episodes with finite numbers, and further starts"
        )
    # Sums without episode i: deviations from the mean of the others are n / (n - 1) of those from the mean of all.
    dy, df = y - y.mean(), f - f.mean()
    covariance = (dy * df).sum() - dy * df * n / (n - 1)
    variance = (df * df).sum() - df * df * n / (n - 1)
    slope = np.divide(covariance, variance, out=np.zeros(n), where=variance > 1e-12) / (1 + n / further)
    rate = float(np.clip((y - slope * (f - others.mean())).mean(), 0, 1))
    b = float(slope.mean())
    error = float(np.var(y - b * f, ddof=1) / n + b * b * np.var(others) / further)
    known = min(y.sum(), n - y.sum()) >= _FEWEST
    saved = min(float(np.var(y, ddof=1)) / n / error, 1 + further / n) if known and error else 1.0
    return Estimate(rate, score_interval(rate, saved * n, normal_quantile(0.95)), saved)


def stratified_p(strata: Sequence[tuple[int, int, int, int]], continuity_correction: bool = True) -> float:
    """Two-sided p-value that two success rates are equal within every stratum: Cochran-Mantel-Haenszel test.

    Use it for the same comparison repeated over strata: differences between them neither help nor hurt. It speaks of
    the very policies that were compared: of what a method gives on other training seeds, `paired_p` over seeds does.

    Args:
        strata: (successes_1, n_1, successes_2, n_2) per stratum, for example per seed.
        continuity_correction: subtract 1/2 from the absolute deviation, as R's mantelhaen.test does.
    """
    deviation = variance = 0.0
    for successes_1, n_1, successes_2, n_2 in strata:
        check_counts(successes_1, n_1)
        check_counts(successes_2, n_2)
        total, successes = n_1 + n_2, successes_1 + successes_2
        if total < 2:
            continue
        deviation += successes_1 - n_1 * successes / total
        variance += n_1 * n_2 * successes * (total - successes) / (total * total * (total - 1))
    if variance == 0:
        return 1.0
    distance = max(0.0, abs(deviation) - (0.5 if continuity_correction else 0.0))
    return math.erfc(distance / math.sqrt(2 * variance))


def paired_p(differences: ArrayLike) -> float | None:
    """Return the two-sided p-value that paired differences, [n], have mean 0: Student's t test, n - 1 degrees.

    For a method against another over training seeds: what is repeated is the training, not the episode. None: there are
    fewer than three, or all are equal and not 0. Rates of 100 episodes are often equal by chance, which the test would
    take for certainty.
    """
    values = np.asarray(differences, dtype=np.float64)
    if len(values) < 3:
        return None
    if np.allclose(values, values[0]):
        return None if values[0] else 1.0
    from scipy.stats import ttest_1samp

    return float(ttest_1samp(values, 0.0).pvalue)
