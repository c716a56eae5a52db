"""Does imagination rank policies as reality does? And are its successes true ones?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError
from vla_rl.core.ranking import auc


@dataclass(frozen=True)
class RankedPolicy:
    """Outcomes of one policy.

    Attributes:
        name: of the policy.
        real: bool [n], successes in reality.
        imagined: bool [m], successes in imagination, from the same starts.
        score: float [m], the highest success probability along each imagined episode.
    """

    name: str
    real: NDArray[np.bool_]
    imagined: NDArray[np.bool_]
    score: NDArray[np.float64]


def rank_policies(policies: Sequence[RankedPolicy], seed: int = 0, resamples: int = 2000) -> dict[str, Any]:
    """Correlation of real and imagined success rates over policies.

    The intervals are percentile bootstraps over the episodes of each policy, real and imagined; the policies stay.

    Args:
        policies: at least three.
        seed: of the bootstrap.
        resamples: of the bootstrap.

    Returns:
        ``pearson`` and ``spearman``, each with ``_interval``; ``mmrv`` of `mean_maximum_rank_violation`; ``mean_gap``,
        imagined minus real success; and the policies' rates. A correlation is None where all rates are equal.
    """
    if len(policies) < 3:
        raise UserError(f"{len(policies)} policies cannot be ranked; give at least three of different quality")
    real = np.array([policy.real.mean() for policy in policies])
    imagined = np.array([policy.imagined.mean() for policy in policies])
    random = np.random.default_rng(seed)
    drawn: dict[str, list[float]] = {"pearson": [], "spearman": []}
    for _ in range(resamples):
        own_real = [random.choice(policy.real, len(policy.real)).mean() for policy in policies]
        own_imagined = [random.choice(policy.imagined, len(policy.imagined)).mean() for policy in policies]
        drawn["pearson"].append(pearson(np.array(own_real), np.array(own_imagined)))
        drawn["spearman"].append(spearman(np.array(own_real), np.array(own_imagined)))
    violation = mean_maximum_rank_violation(real, imagined)
    result: dict[str, Any] = {"mean_gap": float((imagined - real).mean()), "mmrv": violation}
    for name, correlation in (("pearson", pearson), ("spearman", spearman)):
        value = correlation(real, imagined)
        result[name] = None if np.isnan(value) else float(value)
        finite = [sample for sample in drawn[name] if not np.isnan(sample)]
        result[f"{name}_interval"] = np.quantile(finite, [0.025, 0.975]).tolist() if finite else None
    result["policies"] = [
        {
            "name": policy.name,
            "real": float(policy.real.mean()),
            "real_episodes": len(policy.real),
            "imagined": float(policy.imagined.mean()),
            "imagined_episodes": len(policy.imagined),
            "mean_score": float(policy.score.mean()),
        }
        for policy in policies
    ]
    return result


def judge_successes(score: NDArray[np.float64], truth: NDArray[np.bool_], threshold: float) -> dict[str, Any]:
    """How far imagined successes can be trusted.

    Args:
        score: float [n], the highest success probability along each imagined episode.
        truth: bool [n], whether the same actions from the same start succeed in the simulator.
        threshold: of an imagined success.

    Returns:
        ``episodes``, ``real_successes`` among them, ``auc``, ``false_success_rate`` (imagined successes among real
        failures), ``missed_success_rate`` and ``agreement``; a rate is None where there is nothing to divide by.
    """
    imagined = score >= threshold
    area = auc(score, truth)
    return {
        "episodes": len(score),
        "real_successes": int(truth.sum()),
        "auc": None if np.isnan(area) else area,
        "false_success_rate": _mean(imagined[~truth]),
        "missed_success_rate": _mean(~imagined[truth]),
        "agreement": _mean(imagined == truth),
    }


def mean_maximum_rank_violation(real: NDArray[np.floating], imagined: NDArray[np.floating]) -> float:
    """How much real success a wrong order costs: for each policy the largest difference to one that imagination puts on
    the wrong side of it, on average (MMRV of SIMPLER, arXiv 2405.05941). 0 where the order is right.
    """
    wrong = (real[:, None] < real) != (imagined[:, None] < imagined)
    return float((np.abs(real[:, None] - real) * wrong).max(1).mean())


def pearson(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Linear correlation; NaN if either is constant."""
    if (first == first[0]).all() or (second == second[0]).all():  # the mean of equal numbers is rounded
        return float("nan")
    x, y = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return float((x * y).sum()) / scale


def spearman(first: NDArray[np.floating], second: NDArray[np.floating]) -> float:
    """Correlation of ranks; equal values share theirs. NaN if either is constant."""
    return pearson(ranks(first), ranks(second))


def ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Ranks from 1, ties at their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    return mean_rank


def _mean(values: NDArray[np.bool_]) -> float | None:
    return float(values.mean()) if len(values) else None
