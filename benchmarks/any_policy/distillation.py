"""What the distillation of a proxy costs in the rounds of a practice run, on the run's own episodes."""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from vla_rl.algorithms import proxy_fit
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.folders import load_model
from vla_rl.training.algorithms import make_algorithm
from vla_rl.training.config import RunConfig

STEPS = 800  # of a round, before distillation was incremental


def measure(run: Path, steps: int = STEPS) -> list[dict[str, Any]]:
    """Distill the base policy of a run again, from the episodes of its first two rounds.

    Args:
        run: Folder of a practice run with ``policy.kind=proxy`` and at least two rounds.
        steps: Largest number of gradient steps of a round.

    Returns:
        A fresh proxy in round 1, and the same proxy in round 2. Then a fresh one that takes all steps, on the episodes
        of both rounds.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        fixed = mock.patch.object(proxy_fit, "GOOD", -1.0)
        incremental = _distill(run, [(0,), (1,)], steps)
        with fixed:
            whole = _distill(run, [(0, 1)], steps)
    finally:
        torch.set_num_threads(threads)
    names = ("fresh proxy, round 1", "same proxy, round 2", "fresh proxy, all steps, both rounds")
    return [{"proxy": name, **found} for name, found in zip(names, [*incremental, *whole], strict=True)]


def _distill(run: Path, rounds: Sequence[Sequence[int]], steps: int) -> list[dict[str, float]]:
    """Begin with the proxy of the run's first policy. A round is given as the policy versions of its episodes."""
    config, found = load_config(RunConfig, run / "config.yaml"), list[dict[str, float]]()
    learning = replace(config.learning, distill_steps=steps)
    model, _ = load_model(run / "policies" / "version_0000")
    episodes = EpisodeStore(run / "episodes", create=False)
    with tempfile.TemporaryDirectory() as scratch:
        store = EpisodeStore(Path(scratch, "episodes"))
        cache = FrameCache(store, Path(scratch, "cache"))
        algorithm: Any = make_algorithm(config.algorithm, learning, model, cache, config.seed)
        for number, versions in enumerate(rounds, 1):
            for episode in episodes:
                if episode.policy_version in (-1, *versions) and episode.episode_id not in store:
                    store.add(episode)
            if not len(cache.refresh()):
                raise UserError(f"{run} has no episodes of policy version {versions[-1]}; let it practice two rounds")
            algorithm.begin_round(cache, number)
            started_s, taken = time.process_time(), 0
            for step in range(steps):
                taken += not algorithm.proxy.stopped
                algorithm.update(step)
            found.append(
                {
                    "frames": cache.total_frames,
                    "steps": taken,
                    "cpu_s": time.process_time() - started_s,
                    "unexplained": algorithm.proxy.unexplained,
                    "base_asked": algorithm.proxy.logs["base_asked"],
                }
            )
    return found
