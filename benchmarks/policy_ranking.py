"""Does what is foretold of policies order them as reality does?

Of each task one run of practice alone lends its real episodes; the policies of all other runs of that task are foretold
from them, each in its own features (`vla_rl.runs.imagination.foretelling`), and compared with what they really made on
the evaluation's seeds. They have played none of those episodes. The policies that have are foretold as well: by how
much they are flattered says how much others probably are.
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
from vla_rl.training.run_folder import RunFolder
from world_model.ranking import mean_maximum_rank_violation, pearson, spearman

LENT_BY = "imagined_edit"
EPISODES = 200
_FIRST = "supervised"


def open_cells(out: Path) -> Cells:
    """The policies that have been foretold."""
    return Cells(out / "policy-ranking", {"lent_by": LENT_BY, "episodes": EPISODES})


def measure(cells: Cells, out: Path, runs: Path, seeds: list[int]) -> None:
    """Foretell the policies of all finished runs, of each task from the episodes of the first of these seeds' runs that
    is there; what has been foretold stays.
    """
    folder = runs / outcomes.open_cells(out).digest
    finished = sorted(run for run in folder.glob("*-*") if run.is_dir() and RunFolder(run).is_finished())
    for task, group in itertools.groupby(finished, key=lambda run: run.name.partition("-")[0]):
        own = list(group)
        lenders = [run for seed in seeds for run in own if run.name == f"{task}-{seed}-{LENT_BY}"]
        for run in own if lenders else []:
            _, seed, *method = run.name.split("-", 2)
            about = {"seed": int(seed), "method": method[0] if method else _FIRST}
            for evaluated in evaluations(run)[len(method) :]:  # those of practice begin with the supervised policy
                name = f"{run.name}-{evaluated['policy_version']}"
                cells.once(name, functools.partial(_foretell, lenders[0], run, evaluated, about))


def _foretell(lender: Path, run: Path, evaluated: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    import torch

    from vla_rl.runs.imagination.foretelling import foretell_success

    torch.set_num_threads(1)
    version = evaluated["policy_version"]
    found = foretell_success(lender, RunFolder(run).policy(version), EPISODES)
    return {
        "task": RunFolder(run).read_summary()["task"],
        **about,
        "seen": run.name == lender.name or f"{run.name}-{LENT_BY}" == lender.name,
        "version": version,
        "episodes_of": lender.name,
        "real": evaluated["successes"] / evaluated["episodes"],
        "foretold": found.success,
        "worlds": found.worlds,
    }


def keys(found: list[dict[str, Any]]) -> dict[str, Any]:
    """What imagination.json gets of the cells, nothing of fewer than three: correlations over all policies, each less
    its task's mean; what is foretold less what they made, as it is and less the same of the policies of each task whose
    episodes were lent.
    """
    unseen = [cell for cell in found if not cell["seen"]]
    if len(unseen) < 3:
        return {}
    rates = _centred(unseen)
    result: dict[str, Any] = {"foretold_ranking": found, "ranking_policies": len(unseen)}
    for name, correlation in (("pearson", _pearson), ("spearman", _spearman)):
        result[f"ranking_unseen_{name}"] = correlation(rates)
        result[f"ranking_unseen_{name}_interval"] = bootstrap_interval(rates, correlation, seed=0)
    tasks = sorted({cell["task"] for cell in unseen})
    own = [_rates([cell for cell in unseen if cell["task"] == task]) for task in tasks]
    violations = [mean_maximum_rank_violation(*each.T) for each in own]
    result["mmrv"] = float(np.average(violations, weights=[len(each) for each in own]))
    gaps = [_gap(_rates([cell for cell in found if cell["seen"] and cell["task"] == task])) for task in tasks]
    for name, off in (("", np.zeros(len(own))), ("corrected_", np.array(gaps))):
        errors = np.concatenate([each[:, 1] - each[:, 0] - less for each, less in zip(own, off, strict=True)])
        result[f"foretold_{name}gap_points"] = 100 * float(errors.mean())
        result[f"foretold_{name}error_points"] = 100 * float(np.abs(errors).mean())
    return result


def _rates(found: list[dict[str, Any]]) -> NDArray[np.float64]:
    """Real and foretold success, [N, 2]."""
    return np.array([(cell["real"], cell["foretold"]) for cell in found]).reshape(-1, 2)


def _gap(rates: NDArray[np.float64]) -> float:
    """By how much policies are flattered; 0 of none."""
    return float((rates[:, 1] - rates[:, 0]).mean()) if len(rates) else 0.0


def _centred(found: list[dict[str, Any]]) -> NDArray[np.float64]:
    """Real and foretold success, [N, 2], without their means over each task."""
    rates = _rates(found)
    tasks = np.array([cell["task"] for cell in found])
    for task in set(tasks):
        rates[tasks == task] -= rates[tasks == task].mean(0)
    return rates


def _pearson(rates: NDArray[np.float64]) -> float:
    return float(np.nan_to_num(pearson(*rates.T)))  # policies that are all alike have no order


def _spearman(rates: NDArray[np.float64]) -> float:
    return float(np.nan_to_num(spearman(*rates.T)))


def table(result: dict[str, Any]) -> str:
    """Markdown: a row of each task and method."""
    found = result["foretold_ranking"]
    rows = ["| policies of | after each round, seeds side by side: made | foretold |", "|---|---|---|"]
    for task, seen, method in sorted({(cell["task"], cell["seen"], cell["method"]) for cell in found}):
        own = [cell for cell in found if (cell["task"], cell["seen"], cell["method"]) == (task, seen, method)]
        own.sort(key=lambda cell: (cell["seed"], cell["version"]))
        made, told = (", ".join(f"{cell[name]:.0%}" for cell in own) for name in ("real", "foretold"))
        rows.append(f"| {task}, `{method}`{', whose episodes are lent' if seen else ''} | {made} | {told} |")
    low, high = result["ranking_unseen_pearson_interval"]
    return "\n".join(
        [
            *rows,
            "",
            f"{result['ranking_policies']} policies that have played none of the episodes, each less its task's mean: "
            f"Pearson {result['ranking_unseen_pearson']:.2f} [{low:.2f}, {high:.2f}, bootstrap over policies], "
            f"Spearman {result['ranking_unseen_spearman']:.2f}, mean maximum rank violation {100 * result['mmrv']:.0f} "
            "points. "
            f"What is foretold lies {result['foretold_gap_points']:+.0f} points from what they made on average, and "
            f"{result['foretold_error_points']:.0f} in either direction; less what the policies of the lent episodes "
            f"are flattered by, {result['foretold_corrected_gap_points']:+.0f} and "
            f"{result['foretold_corrected_error_points']:.0f}.",
        ]
    )
