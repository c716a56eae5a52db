"""Samples a second of the learner, compared with a bare forward and backward pass and with lerobot's trainer.

The bare pass is the same network on one batch that lies ready in memory, without optimizer, data or averaging of
weights. lerobot-train's step has the same network (our plug-in), batch size and episodes, as a LeRobotDataset of
pictures. Like ours it has no loader processes. Its update alone has a ready batch. All alternate in short blocks, so
that a busy machine slows all.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.docs_commands import ROOT

_BLOCK_UPDATES = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--blocks", type=int, default=30, help=f"blocks of {_BLOCK_UPDATES} updates for each")
    parser.add_argument("--config", default="demo", help="whose task, network and batch size")
    parser.add_argument("--threads", type=int, default=1)


def run(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from vla_rl.core.config import load_config
    from vla_rl.core.config_files import config_file
    from vla_rl.data.cache import FrameCache
    from vla_rl.data.lerobot_export import export_lerobot
    from vla_rl.data.store import EpisodeStore
    from vla_rl.training.config import RunConfig
    from vla_rl.training.practice import supervised_learner
    from vla_rl.training.simulator import SimulatorWorker
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
        peers = _lerobot_steps(export_lerobot(store, Path(folder) / "lerobot"), config, worker.spec.control_hz)
        times_s = _times_s([lambda: learner.update(next(updates)), bare, *peers], options.blocks)
    parameters = sum(parameter.numel() for parameter in learner.model.parameters())
    return {
        "parameters": parameters,
        "batch_size": batch_size,
        "threads": options.threads,
        "samples_per_s": statistics.median(batch_size * _BLOCK_UPDATES / own_s for own_s in times_s[0]),
        **{
            name: statistics.median(other / own for own, other in zip(times_s[0], others_s, strict=True))
            for name, others_s in zip(
                ("ratio", "lerobot_train_ratio", "lerobot_update_ratio"), times_s[1:], strict=True
            )
        },
    }


def table(result: dict[str, Any]) -> str:
    """Markdown: one sentence's worth of figures."""
    return "\n".join(
        [
            "| parameters | batch | threads | samples/s | of a bare forward and backward pass | of lerobot-train "
            "| of its update alone |",
            "|---|---|---|---|---|---|---|",
            f"| {result['parameters'] / 1e6:.2f} M | {result['batch_size']} | {result['threads']} "
            f"| {result['samples_per_s']:.0f} | {result['ratio']:.3f} | {result['lerobot_train_ratio']:.1f} x "
            f"| {result['lerobot_update_ratio']:.2f} x |",
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


def _lerobot_steps(folder: Path, config: Any, control_hz: float) -> list[Callable[[], object]]:
    """What lerobot-train does for a step (the next batch, processors, `update_policy`), and the last of these alone."""
    import torch
    from accelerate import Accelerator
    from lerobot.datasets.lerobot_dataset import LeRobotDataset
    from lerobot.policies.factory import make_policy, make_pre_post_processors
    from lerobot.scripts.lerobot_train import update_policy
    from lerobot.utils.logging_utils import AverageMeter, MetricsTracker

    sys.path.append(str(ROOT / "plugins" / "lerobot_policy_vla_rl"))
    from lerobot_policy_vla_rl.configuration_vla_rl import VlaRlConfig

    asked = VlaRlConfig(flow=config.policy, discrete_dims=config.execution.discrete_dims, device="cpu")
    ahead = {"action": [step / control_hz for step in asked.action_delta_indices]}
    data = LeRobotDataset(f"local/{folder.name}", root=folder, video_backend="pyav", delta_timestamps=ahead)
    policy = make_policy(asked, ds_meta=data.meta)
    preprocess, _ = make_pre_post_processors(asked, dataset_stats=data.meta.stats)
    optimizer = asked.get_optimizer_preset().build(policy.parameters())
    loader = torch.utils.data.DataLoader(data, config.supervised.actor.batch_size, shuffle=True, drop_last=True)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    accelerator = Accelerator(cpu=True)
    meters = {name: AverageMeter(name) for name in ("loss", "grad_norm", "lr", "update_s")}
    metrics = MetricsTracker(loader.batch_size, len(data), data.num_episodes, meters)

    ready = preprocess(next(batches))

    def update(batch: Any) -> None:
        update_policy(metrics, policy, batch, optimizer, 10.0, accelerator)

    return [lambda: update(preprocess(next(batches))), lambda: update(ready)]


def _times_s(calls: Sequence[Callable[[], object]], blocks: int) -> list[list[float]]:
    """How long each took in each of the alternating blocks."""
    rows = [[_time_s(call) for call in calls] for _ in range(blocks + 1)]
    return [list(column) for column in zip(*rows[1:], strict=True)]  # the first one warms up


def _time_s(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(_BLOCK_UPDATES):
        call()
    return time.perf_counter() - start
