"""The statistics of success rates: an interval for one, tests for two."""

import math
from collections.abc import Iterable
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

    It counts the seeds on which only the first policy succeeds, and those on which only the other one does (Q. McNemar,
    1947).
    """
    differing = first_only + other_only
    check_counts(first_only, differing)
    fewer = min(first_only, other_only)
    return min(1.0, 2 * sum(math.comb(differing, k) for k in range(fewer + 1)) / 2**differing)


def sequential_test(pairs: Iterable[tuple[bool, bool]]) -> tuple[float, int]:
    """Test whether two policies succeed equally often on the same seeds. The caller may stop after any pair.

    Only pairs with exactly one success count. If the policies are equally good, each of n such pairs goes to the first
    policy with probability 1/2. The likelihood ratio of the uniform mixture of all probabilities is then

        E_n = 2^n int_0^1 q^k (1 - q)^(n-k) dq = 2^n / ((n + 1) binom(n, k)),

    a martingale that begins with 1 (H. Robbins, Annals of Mathematical Statistics 41, 1970, p. 1397). It ever reaches
    1 / alpha with probability alpha at most, by Ville's inequality (arXiv 2210.01948, section 3).

    Args:
        pairs: Success of the first and of the other policy on each seed, in the order of play.

    Returns:
        The two-sided p-value 1 / max E_n, valid at every stopping time. Then the lead of the first policy at that
        maximum: number of seeds on which only it succeeded, less those on which only the other one did.
    """
    wins, n, p, lead = 0, 0, 1.0, 0
    for first, other in pairs:
        if first != other:
            n, wins = n + 1, wins + first
            ratio = (n + 1) * math.comb(n, wins) / 2**n  # 1 / E_n
            if ratio < p:
                p, lead = ratio, 2 * wins - n
    return p, lead


def check_counts(successes: int, n: int) -> None:
    """Raise a UserError unless 0 <= successes <= trials."""
    if not 0 <= successes <= n:
        raise UserError(f"{successes} successes in {n} trials is impossible; expected 0 <= successes <= trials")


def normal_quantile(confidence: float) -> float:
    """Return the number of standard deviations to both sides that hold a share of a normal distribution."""
    if not 0 < confidence < 1:
        raise UserError(f"the confidence is {confidence}; expected a number between 0 and 1, such as 0.95")
    return NormalDist().inv_cdf((1 + confidence) / 2)
