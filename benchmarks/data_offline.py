"""Offline fine-tuning against behavior cloning on the same 200 mixed episodes: 8 demonstrations, and 192 rollouts of
the policy cloned from them. A supervisor rescued some.

All cells of a seed start anew from the same initial weights and take the same gradient steps; evaluation seeds are
shared by all. A finished cell is kept; a run that was interrupted goes on.
"""

import functools
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.runs import run_verb
from vla_rl.core.cache_keys import cache_key
from vla_rl.core.config_files import OF_FINETUNE, config_file, read_yaml
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.files import write_atomic
from vla_rl.report.statistics import wilson_interval

ALGORITHMS = ("habc", "bc", "filtered_bc", "hg_dagger", "imagined_edit")
_CRITIC_STEPS = 400  # of the steps of `imagined_edit`, the last, in which the critic of chunks learns
DEMONSTRATIONS, ROLLOUTS, EVALUATION_EPISODES = 8, 192, 100


def measure(folder: Path, runs: Path, seeds: Sequence[int], algorithms: Sequence[str], steps: int) -> None:
    """Fill in the missing cells, ``offline-SEED-ALGORITHM.json``."""
    for name in algorithms:
        if name not in ALGORITHMS:
            raise UserError(f"there is no algorithm {name!r} in this benchmark.{did_you_mean(name, ALGORITHMS)}")
    for seed in seeds:
        for name in algorithms:
            settings = [_collecting(seed), _presets(), _options(name, steps), EVALUATION_EPISODES]
            cell = folder / f"offline-{seed}-{name}.json"
            keep_once(cell, settings, functools.partial(_measure_cell, runs, seed, name, steps))


def keep_once(file: Path, settings: Any, measure: Callable[[], dict[str, Any]]) -> None:
    """Measure what a file is to hold unless it is there.

    Raises:
        UserError: if it was measured with other settings. A file that was published without a record of them is
            accepted.
    """
    key = cache_key(settings)
    if not file.exists():
        write_atomic(file, (json.dumps({**measure(), "settings": key}, indent=1) + "\n").encode())
    elif json.loads(file.read_text()).get("settings", key) != key:
        raise UserError(f"{file} was measured with other settings; move it away to measure anew, or give another --out")


def gather(folder: Path) -> dict[str, Any]:
    """Success of each algorithm over the seeds that have been measured, and the gain of HABC over behavior cloning."""
    cells = [json.loads(file.read_text()) for file in sorted(folder.glob("offline-*.json"))]
    offline: dict[str, Any] = {}
    for name in ALGORITHMS:
        own = [cell for cell in cells if cell["algorithm"] == name]
        if own:
            successes, episodes = sum(cell["successes"] for cell in own), sum(cell["episodes"] for cell in own)
            offline[name] = {
                "seeds": [cell["seed"] for cell in own],
                "success_by_seed": [cell["successes"] / cell["episodes"] for cell in own],
                "successes": successes,
                "episodes": episodes,
                "success": successes / episodes,
                "interval": wilson_interval(successes, episodes),
                "gradient_steps": own[0]["gradient_steps"],
            }
    result: dict[str, Any] = {"offline": offline} if offline else {}
    if {"habc", "bc"} <= offline.keys() and offline["habc"]["seeds"] == offline["bc"]["seeds"]:
        result["offline_gain_points"] = 100 * (offline["habc"]["success"] - offline["bc"]["success"])
        result["offline_gain_interval"] = difference_interval(offline["habc"], offline["bc"])
    return result


def difference_interval(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[float, float]:
    """95 % interval of the difference of two success rates, in points: Newcombe's, from Wilson's intervals of both."""
    gain = ours["success"] - theirs["success"]
    low = math.hypot(ours["success"] - ours["interval"][0], theirs["interval"][1] - theirs["success"])
    high = math.hypot(ours["interval"][1] - ours["success"], theirs["success"] - theirs["interval"][0])
    return 100 * (gain - low), 100 * (gain + high)


def _collecting(seed: int) -> list[str]:
    """The run that records the episodes: supervision, one round of practice episodes, no learning from them."""
    budget = {"demonstrations": DEMONSTRATIONS, "rounds": 1, "episodes_per_round": ROLLOUTS, "steps_per_round": 0}
    budget |= {"evaluation_episodes": 1}
    return ["--config", "demo", "--seed", str(seed), *(f"budget.{name}={value}" for name, value in budget.items())]


def _presets() -> list[dict[str, Any]]:
    return [read_yaml(config_file(name)) for name in ("demo", *OF_FINETUNE)]


def _options(algorithm: str, steps: int) -> list[str]:
    cloned, changes = steps, [f"steps={steps}"]
    if algorithm == "imagined_edit":
        cloned -= _CRITIC_STEPS
        changes += ["--config", "offline", f"learning.distill_steps={cloned}"]
    return [*changes, f"learning.actor.decay_steps={cloned}"]


def _measure_cell(runs: Path, seed: int, algorithm: str, steps: int) -> dict[str, Any]:
    source, target = runs / f"seed-{seed}", runs / f"seed-{seed}-{algorithm}"
    run_verb(["train", *_collecting(seed)], source)
    command = ["finetune", "--data", str(source / "episodes"), "--algorithm", algorithm, "--seed", str(seed)]
    options = _options(algorithm, steps)
    # Of then: float32 was the default of every algorithm but one.
    precision = [] if algorithm == "imagined_edit" else ["learning.actor.precision=float32"]
    run_verb([*command, *options, *precision], target)
    successes = _evaluate(source, target)
    return {
        "seed": seed,
        "algorithm": algorithm,
        "options": options,
        "successes": successes,
        "episodes": EVALUATION_EPISODES,
        "gradient_steps": steps,
        "data": {"demonstrations": DEMONSTRATIONS, "rollouts": ROLLOUTS},
    }


def _evaluate(source: Path, target: Path) -> int:
    """Successes of the fine-tuned policy on the evaluation seeds of the environment that the data came from."""
    from vla_rl.data.run_folder import RunFolder
    from vla_rl.training.config import RunConfig
    from vla_rl.training.evaluation import evaluation_jobs, run_missing
    from vla_rl.training.simulator import SimulatorWorker
    from vla_rl.training.workers import RolloutPool

    _, config = RunFolder.open(source, RunConfig)
    folder = RunFolder(target)
    jobs = evaluation_jobs(config, folder.policy(1), folder.evaluation, EVALUATION_EPISODES)
    with RolloutPool(functools.partial(SimulatorWorker, config), config.workers) as pool:
        return sum(header.success is True for header in run_missing(pool, jobs, target.name))
