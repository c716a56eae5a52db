"""Success of a policy on held-out seeds, with its 95 % Wilson interval; the episodes are kept.

Example: vla-rl eval runs/demo --version 3 --episodes 200
"""

import argparse
import itertools
from dataclasses import replace
from pathlib import Path

from tqdm import tqdm

from vla_rl.cli.practice import make_pool
from vla_rl.cli.run_config import RunConfig
from vla_rl.core.errors import UserError
from vla_rl.data.store import EpisodeStore
from vla_rl.report.statistics import wilson_interval
from vla_rl.training.plan import evaluation_seed
from vla_rl.training.run_folder import RunFolder
from vla_rl.training.workers import RolloutJob


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--version", type=int, help="policy version (default: the newest)")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--difficulty", type=float, help="another difficulty than the run's")
    parser.add_argument("--out", type=Path, help="store of the episodes, for this policy alone")


def run(arguments: argparse.Namespace) -> int:
    if arguments.episodes < 1:
        raise UserError(f"--episodes is {arguments.episodes}; it must be at least 1")
    folder, config = RunFolder.open(arguments.run, RunConfig)
    versions = folder.policy_versions()
    if not versions:
        raise UserError(f"{arguments.run} has no policy yet; let it finish its first stages")
    version = versions[-1] if arguments.version is None else arguments.version
    if version not in versions:
        raise UserError(f"{arguments.run} has no policy version {version}; it has {versions}")
    if arguments.difficulty is not None:
        config = replace(config, task=replace(config.task, difficulty=arguments.difficulty))
    # Episodes that are there already count, so each policy and difficulty has a store of its own.
    out = arguments.out or folder.path / f"eval-v{version:04d}-difficulty-{config.task.difficulty:g}"
    store = EpisodeStore(out)
    jobs = [
        RolloutJob(f"v{version:04d}-{index:06d}", out, task, (evaluation_seed(index),), folder.policy(version))
        for index, task in zip(range(arguments.episodes), itertools.cycle(config.task.envs), strict=False)
    ]
    missing = [job for job in jobs if job.episode_id not in store]
    with make_pool(config) as pool:
        for _ in tqdm(pool.run(missing), total=len(missing), unit="episode", leave=False):
            pass
    for task in config.task.envs:
        ids = [job.episode_id for job in jobs if job.task == task]
        if ids:
            successes = sum(store.read_header(episode_id).success is True for episode_id in ids)
            low, high = wilson_interval(successes, len(ids))
            rate = successes / len(ids)
            print(f"{task} version {version}: {successes}/{len(ids)} = {rate:.1%} [{low:.1%}, {high:.1%}]")
    return 0
