"""Does the predicted success of policies order them as reality does?

Two runs of practice alone start from one supervised policy and practice in different ways (`outcomes`). The real
episodes of each run predict the success of the other run's policies (`benchmarks.predicted_success`), which did not
play them. The benchmark compares the prediction with the success on the evaluation seeds.
"""

import functools
import itertools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import outcomes
from benchmarks.cells import Cells
from benchmarks.runs import evaluations
from benchmarks.statistics import bootstrap_interval
from vla_rl.data.run_folder import RunFolder

TWINS = {"imagined_edit": "unimagined", "unimagined": "imagined_edit"}
"""Run of the predicted policies -> run of the lent episodes."""
EPISODES = 200


def open_cells(out: Path) -> Cells:
    """The policies with a prediction."""
    return Cells(out / "policy-ranking", {"lent_by": TWINS, "episodes": EPISODES})


def measure(cells: Cells, out: Path, runs: Path, seeds: list[int]) -> None:
    """Predict the policies of all finished runs of these seeds whose paired runs are finished. Existing predictions
    stay.
    """
    folder = runs / outcomes.open_cells(out).digest
    for seed, (method, twin) in itertools.product(seeds, TWINS.items()):
        for run in sorted(folder.glob(f"*-{seed}-{method}")):
            lender = folder / f"{run.name.removesuffix(method)}{twin}"
            if RunFolder(run).is_finished() and RunFolder(lender).is_finished():
                for evaluated in evaluations(run)[1:]:  # the first one is the supervised policy
                    name = f"{run.name}-{evaluated['policy_version']}"
                    about = {"seed": seed, "method": method, "lent_by": twin}
                    cells.once(name, functools.partial(_foretell, lender, run, evaluated, about))


def _foretell(lender: Path, run: Path, evaluated: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    import torch

    from benchmarks.predicted_success import predict_success

    torch.set_num_threads(1)
    version = evaluated["policy_version"]
    found = predict_success(lender, RunFolder(run).policy(version), EPISODES)
    return {
        "task": RunFolder(run).read_summary()["task"],
        **about,
        "version": version,
        "real": evaluated["successes"] / evaluated["episodes"],
        "foretold": found.success,
        "worlds": found.worlds,
    }


def keys(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the part of imagination.json; nothing for fewer than three cells.

    It holds correlations over all policies, each less its task's mean, and the real success that a wrong order costs,
    the mean over tasks. Also predicted less real success, signed and in either direction.
    """
    if len(found) < 3:
        return {}
    rates, centered = _rates(found), _centred(found)
    result: dict[str, Any] = {"foretold_ranking": found, "ranking_policies": len(found)}
    for name, correlation in (("pearson", _pearson), ("spearman", _spearman)):
        result[f"ranking_unseen_{name}"] = correlation(centered)
        result[f"ranking_unseen_{name}_interval"] = bootstrap_interval(centered, correlation, seed=0)
    tasks = sorted({cell["task"] for cell in found})
    own = [_rates([cell for cell in found if cell["task"] == task]) for task in tasks]
    violations = [mean_maximum_rank_violation(*each.T) for each in own]
    result["mmrv"] = float(np.average(violations, weights=[len(each) for each in own]))
    errors = 100 * (rates[:, 1] - rates[:, 0])
    return {
        **result,
        "foretold_gap_points": float(errors.mean()),
        "foretold_error_points": float(np.abs(errors).mean()),
    }


def _rates(found: list[dict[str, Any]]) -> NDArray[np.float64]:
    """Return real and predicted success, [N, 2]."""
    return np.array([(cell["real"], cell["foretold"]) for cell in found])


def _centred(found: list[dict[str, Any]]) -> NDArray[np.float64]:
    """Return real and predicted success, [N, 2], without their means over each task."""
    rates = _rates(found)
    tasks = np.array([cell["task"] for cell in found])
    for task in set(tasks):
        rates[tasks == task] -= rates[tasks == task].mean(0)
    return rates


def mean_maximum_rank_violation(real: NDArray[np.floating], foretold: NDArray[np.floating]) -> float:
    """Return the real success that a wrong order costs. It is the mean over policies of the largest difference to one
    that is predicted on its wrong side (MMRV of SIMPLER, arXiv 2405.05941). 0 where the order is right.
    """
    wrong = (real[:, None] < real) != (foretold[:, None] < foretold)
    return float((np.abs(real[:, None] - real) * wrong).max(1).mean())


def _pearson(rates: NDArray[np.float64]) -> float:
    if (rates == rates[0]).all(0).any():
        return 0.0  # policies that are all alike have no order
    return float(np.corrcoef(rates.T)[0, 1])


def _spearman(rates: NDArray[np.float64]) -> float:
    from scipy.stats import rankdata  # not in the base install

    return _pearson(rankdata(rates, axis=0))


def table(result: dict[str, Any]) -> str:
    """Markdown: a row of each run."""
    found = result["foretold_ranking"]
    rows = ["| policies of | episodes of | after each round: real | predicted |", "|---|---|---|---|"]
    for task, seed, method in sorted({(cell["task"], cell["seed"], cell["method"]) for cell in found}):
        own = [cell for cell in found if (cell["task"], cell["seed"], cell["method"]) == (task, seed, method)]
        own.sort(key=lambda cell: cell["version"])
        made, told = (", ".join(f"{cell[name]:.0%}" for cell in own) for name in ("real", "foretold"))
        rows.append(f"| {task}, seed {seed}, `{method}` | `{own[0]['lent_by']}` | {made} | {told} |")
    low, high = result["ranking_unseen_pearson_interval"]
    return "\n".join(
        [
            *rows,
            "",
            f"{len(found)} policies that have played none of the episodes, each less its task's mean. Pearson "
            f"{result['ranking_unseen_pearson']:.2f} [{low:.2f}, {high:.2f}, bootstrap over policies], Spearman "
            f"{result['ranking_unseen_spearman']:.2f}, mean maximum rank violation {100 * result['mmrv']:.0f} points. "
            f"Predictions lie {result['foretold_gap_points']:+.0f} points from real success on average, and "
            f"{result['foretold_error_points']:.0f} in either direction.",
        ]
    )
