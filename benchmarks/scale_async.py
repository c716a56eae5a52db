"""Collectors that play while the learner learns, against taking turns: the same supervised policy, the same episodes,
gradient steps and evaluations, one process that learns and one that plays.

Runs of a seed follow each other on one machine; success is compared over seeds.
"""

from pathlib import Path
from typing import Any

from benchmarks import alternating
from benchmarks.runs import evaluations, start_verb
from vla_rl.training.run_folder import RunFolder

STALENESS = 1
_EVALUATION_EPISODES = 200


def measure(seed: int, runs: Path) -> dict[str, Any]:
    """One seed of the demo's practice, in turns and at the same time.

    Args:
        seed: of the run.
        runs: where the run folders are kept.
    """
    base = runs / f"async-{seed}"
    words = ["train", "--config", "demo", "--seed", str(seed), "workers=1", "torch_threads=1"]
    words += [f"budget.evaluation_episodes={_EVALUATION_EPISODES}"]
    if not RunFolder(base).is_finished():
        start_verb([*words, "budget.rounds=0"], base).wait_or_fail()
    found: dict[str, Any] = {"seed": seed, "staleness": STALENESS}
    for name, staleness in (("rounds", 0), ("async", STALENESS)):
        folder = base.with_name(f"{base.name}-{name}")
        if not RunFolder(folder).is_finished():
            start_verb([*words, f"budget.staleness={staleness}", "--from", str(base)], folder).wait_or_fail()
        last = evaluations(folder)[-1]
        stages = RunFolder(folder).read_summary()["stages"]
        found[f"{name}_s"] = sum(stage["wall_s"] for stage in stages)
        found[f"{name}_success"] = last["successes"] / last["episodes"]
    return found


def keys(found: list[dict[str, Any]]) -> dict[str, float]:
    """What scale.json gets of these cells; nothing of none."""
    if not found:
        return {}
    return {
        "async_speedup": alternating.seconds_ratio(found, "rounds", "async"),
        "async_vs_rounds_success_points": alternating.success_points(found, "async", "rounds"),
        "async_seeds": len(found),
    }


def table(found: list[dict[str, Any]]) -> str:
    """Markdown: one row per seed."""
    return alternating.table(found, "rounds", "async", ("in turns", "at the same time"))
