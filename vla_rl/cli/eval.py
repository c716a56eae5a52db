"""Success of a policy on held-out seeds, with its 95 % Wilson interval; the episodes are kept.

Example: vla-rl eval runs/demo --version 3 --episodes 200
"""

import argparse
from dataclasses import replace
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.statistics import wilson_interval


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--version", type=int, help="policy version (default: the newest)")
    parser.add_argument("--episodes", type=int, default=100, help="number of held-out seeds")
    parser.add_argument("--difficulty", type=float, help="another difficulty than the run's")
    parser.add_argument("--out", type=Path, help="episode store; several policies and settings may share one")


def run(arguments: argparse.Namespace) -> int:
    import torch

    from vla_rl.acting.capability import check_chunks
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.data.store import EpisodeStore
    from vla_rl.training.config import RunConfig
    from vla_rl.training.evaluation import evaluation_jobs, run_missing
    from vla_rl.training.practice import make_pool

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
    check_chunks(config.execution, find_policy(folder.policy(version)))
    torch.set_num_threads(1)  # as rollout workers have, should there be none
    out = arguments.out or folder.path / f"eval-v{version:04d}"
    jobs = evaluation_jobs(config, folder.policy(version), out, arguments.episodes)
    store = EpisodeStore(out)
    reused = sum(job.episode_id in store for job in jobs)
    with make_pool(config) as pool:
        headers = run_missing(pool, jobs)
    for task in config.task.envs:
        outcomes = [header.success is True for header in headers if header.env_id == task]
        if outcomes:
            successes = sum(outcomes)
            low, high = wilson_interval(successes, len(outcomes))
            rate = successes / len(outcomes)
            print(f"{task} version {version}: {successes}/{len(outcomes)} = {rate:.1%} [{low:.1%}, {high:.1%}]")
    print(f"{out}: {reused} of {len(jobs)} episodes reused; episodes of other policies or settings are not counted")
    return 0
