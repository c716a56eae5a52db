"""The statistics of success rates: an interval for one, a test for two."""

import math
from statistics import NormalDist

from vla_rl.core.errors import UserError


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval of a success rate (E. B. Wilson, 1927), without continuity correction.

    It stays within [0, 1] and keeps its coverage for few trials and for rates near 0 or 1. No trials give (0, 1).

    Raises:
        UserError: For counts that are not 0 <= successes <= n, or a confidence outside (0, 1).
    """
    check_counts(successes, n)
    z = normal_quantile(confidence)
    return score_interval(successes / n, n, z) if n else (0.0, 1.0)


def score_interval(rate: float, n: float, z: float) -> tuple[float, float]:
    """Return Wilson's interval of a rate of n trials (not necessarily whole) at z standard deviations."""
    center = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half_width = z / (1 + z * z / n) * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At no or all successes one end is exactly 0 or 1; rounding would leave 1e-17.
    return 0.0 if rate == 0 else center - half_width, 1.0 if rate == 1 else center + half_width


def fisher_p(successes_1: int, n_1: int, successes_2: int, n_2: int) -> float:
    """Return the two-sided p-value that two success rates are equal: Fisher's exact test, for any number of trials.

    It is the sum over all tables with the same margins that are no likelier than the observed one, in integers.
    """
    check_counts(successes_1, n_1)
    check_counts(successes_2, n_2)
    successes = successes_1 + successes_2
    tables = range(max(0, successes - n_2), min(successes, n_1) + 1)
    ways = [math.comb(n_1, k) * math.comb(n_2, successes - k) for k in tables]
    found = math.comb(n_1, successes_1) * math.comb(n_2, successes_2)
    return sum(way for way in ways if way <= found) / math.comb(n_1 + n_2, successes)


def mcnemar_p(first_only: int, other_only: int) -> float:
    """Return the two-sided p-value that two policies succeed equally often on the same seeds: McNemar's exact test.

    Only seeds on which one of them succeeds and the other one fails count (Q. McNemar, 1947).

    Args:
        first_only: Number of seeds on which only the first policy succeeds.
        other_only: Number of seeds on which only the other one does.
    """
    differing = first_only + other_only
    check_counts(first_only, differing)
    fewer = min(first_only, other_only)
    return min(1.0, 2 * sum(math.comb(differing, k) for k in range(fewer + 1)) / 2**differing)


def check_counts(successes: int, n: int) -> None:
    """Raise a UserError unless 0 <= successes <= trials."""
    if not 0 <= successes <= n:
        raise UserError(f"{successes} successes in {n} trials is impossible; expected 0 <= successes <= trials")


def normal_quantile(confidence: float) -> float:
    """Return the number of standard deviations to both sides that hold a share of a normal distribution."""
    if not 0 < confidence < 1:
        raise UserError(f"the confidence is {confidence}; expected a number between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf((1 + confidence) / 2)
