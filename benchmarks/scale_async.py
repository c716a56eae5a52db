"""Collectors that play while the learner learns, against taking turns. Both have the same supervised policy, as many
episodes and gradient steps, one process that learns and one that plays.

Where both work at once, rounds are a third as long. A policy that is one round older is then little older, and no
process waits for a round's end. Every round is evaluated, so the way with nine of them plays three times as many
evaluation episodes: its seconds carry that too. Success is compared over seeds.
"""

from pathlib import Path
from typing import Any

from benchmarks import alternating
from benchmarks.runs import evaluations, run_verb
from vla_rl.data.run_folder import RunFolder

_EVALUATION_EPISODES = 200
_AT_ONCE = [
    "budget.staleness=1",
    "budget.rounds=9",
    "budget.episodes_per_round=50",
    "budget.steps_per_round=167",
    "learning.actor.warmup_steps=17",
    "learning.actor.decay_steps=167",
]
_ARMS: dict[str, list[str]] = {"rounds": [], "async": _AT_ONCE}


def measure(seed: int, runs: Path) -> dict[str, Any]:
    """One seed of the demo's practice, in turns and at the same time.

    Args:
        seed: of the run.
        runs: where the run folders are kept.
    """
    base = runs / f"async-{seed}"
    words = ["train", "--config", "demo", "--seed", str(seed), "workers=1", "torch_threads=1"]
    words += [f"budget.evaluation_episodes={_EVALUATION_EPISODES}"]
    run_verb([*words, "budget.rounds=0"], base)
    found: dict[str, Any] = {"seed": seed, "options": _AT_ONCE}
    for name, changes in _ARMS.items():
        folder = base.with_name(f"{base.name}-{name}")
        run_verb([*words, *changes, "--from", str(base)], folder)
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
