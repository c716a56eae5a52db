"""Processor seconds of the stages of one round of practice, printed as JSON. With ``device=cuda``: wall-clock seconds.

`benchmarks.speed` runs it on two checkouts of the package in turn, so it uses only what both have.
Example: python benchmarks/speed_round.py RUN_DIR configs/imagined.yaml seed=0
"""

import functools
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from vla_rl.algorithms import imagined_edit
from vla_rl.algorithms.chunk_critic import ChunkCriticLearner
from vla_rl.core.config import load_config
from vla_rl.training.config import RunConfig
from vla_rl.training.practice import create_run, run_practice
from vla_rl.training.rounds import PracticeRun

try:
    from vla_rl.algorithms import model_rollouts as rollouts
except ImportError:  # the older checkout
    from vla_rl.algorithms import imagined_edit as rollouts  # type: ignore[no-redef]

_ONE_CORE = ("budget.rounds=1", "workers=0", "torch_threads=1")
_PARTS = (
    (ChunkCriticLearner, "distill"),
    (imagined_edit, "fit_dynamics"),
    (imagined_edit, "fit_outcome_value"),
    (rollouts, "imagine"),
    (rollouts.ppo, "update"),
    (ChunkCriticLearner, "every_row"),
    (ChunkCriticLearner, "fit_critic"),
)


def main(out: Path, config: Path, overrides: list[str]) -> dict[str, Any]:
    """Practice for one round in this process."""
    seconds: dict[str, float] = {}
    settings = load_config(RunConfig, config, overrides=[*_ONE_CORE, *overrides])
    now_s = time.process_time if settings.device == "cpu" else _synchronized_s

    def timed(name: str | None, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def run(*arguments: Any, **options: Any) -> Any:
            began_s = now_s()
            try:
                return function(*arguments, **options)
            finally:
                stage = name or arguments[1].name
                seconds[stage] = seconds.get(stage, 0.0) + now_s() - began_s

        return run

    for owner, name in _PARTS:
        setattr(owner, name, timed(name, getattr(owner, name)))
    setattr(PracticeRun, "_do", timed(None, PracticeRun._do))  # noqa: B010
    torch.set_num_threads(1)
    summary = run_practice(*create_run(out, settings))
    budget, branches = settings.budget, settings.learning.branches
    return {
        "cpu_s": seconds,
        "practice_round_cpu_s": seconds["practice 1"],
        "supervise_cpu_s": seconds["supervise 0"],
        "collect_episodes_per_s": budget.collected_per_round / seconds["collect 1"],
        "evaluate_episodes_per_s": budget.evaluation_episodes / seconds["evaluate 1"],
        "model_rollout_chunks_per_s_core": branches.updates * branches.branches * branches.chunks / seconds["imagine"],
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "success": [each["successes"] / each["episodes"] for each in summary["evaluations"]],
    }


def _synchronized_s() -> float:
    """Return the wall clock in seconds, when the accelerator has done all that it was given."""
    torch.accelerator.synchronize()
    return time.perf_counter()


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])))
