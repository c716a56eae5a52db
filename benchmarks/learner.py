"""Samples a second of the learner, and how much of a bare forward and backward pass it keeps.

The bare pass is the same network on one batch that lies ready in memory, without optimiser, data or averaging of
weights. Both alternate in short blocks, so that a busy machine slows both.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_BLOCK_UPDATES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=30, help=f"blocks of {_BLOCK_UPDATES} updates for each")
    parser.add_argument("--config", default="demo", help="whose task, network and batch size")
    parser.add_argument("--threads", type=int, default=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from vla_rl.core.config import load_config
    from vla_rl.data.cache import FrameCache
    from vla_rl.data.store import EpisodeStore
    from vla_rl.runs.config import RunConfig
    from vla_rl.runs.config_files import config_file
    from vla_rl.runs.practice import supervised_learner
    from vla_rl.runs.simulator import SimulatorWorker
    from vla_rl.training.workers import RolloutJob

    config = load_config(RunConfig, config_file(options.config))
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        store = EpisodeStore(Path(folder) / "episodes")
        worker = SimulatorWorker(config)
        for seed in range(20):
            list(worker.run([RolloutJob(f"demo-{seed}", store.path, config.task.env, (seed, seed + 100), policy=None)]))
        worker.close()
        cache = FrameCache(store, Path(folder) / "cache")
        cache.refresh()
        learner = supervised_learner(config, worker.spec, cache)
        learner.begin_round(cache, 0)
        batch_size = config.supervised.actor.batch_size
        bare, updates = _bare_pass(learner, batch_size), iter(range(10**9))
        ratio, samples_per_s = _compare(bare, lambda: learner.update(next(updates)), batch_size, options.blocks)
    parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    return {
        "parameters": parameters,
        "batch_size": batch_size,
        "threads": options.threads,
        "samples_per_s": samples_per_s,
        "ratio": ratio,
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: one sentence's worth of figures."""
    return "\n".join(
        [
            "| parameters | batch | threads | samples/s | of a bare forward and backward pass |",
            "|---|---|---|---|---|",
            f"| {result['parameters'] / 1e6:.2f} M | {result['batch_size']} | {result['threads']} "
            f"| {result['samples_per_s']:.0f} | {result['ratio']:.3f} |",
            "",
            f"{result['machine']['cpu']}. Command: `{result['command']}`.",
        ]
    )


def _bare_pass(learner: Any, batch_size: int) -> Callable[[], object]:
    import numpy as np
    import torch

    frames = np.random.default_rng(0).integers(0, learner.data.cache.total_frames, batch_size)
    batch = learner.data.policy_batch(frames)
    generator = torch.Generator().manual_seed(0)

    def forward_and_backward() -> None:
        learner.model.zero_grad()
        per_sample, _ = learner.model.loss(batch, generator)
        per_sample.mean().backward()

    return forward_and_backward


def _compare(
    bare: Callable[[], object], update: Callable[[], object], batch_size: int, blocks: int
) -> tuple[float, float]:
    """Median ratio of the two speeds over alternating blocks, and the learner's samples a second."""
    ratios, speeds = [], []
    for block in range(blocks + 1):
        bare_s, update_s = _time_s(bare), _time_s(update)
        if block:  # the first one warms up
            ratios.append(bare_s / update_s)
            speeds.append(batch_size * _BLOCK_UPDATES / update_s)
    return statistics.median(ratios), statistics.median(speeds)


def _time_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(_BLOCK_UPDATES):
        call()
    return time.perf_counter() - start
