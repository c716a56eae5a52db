"""Success of a policy on held-out seeds, with its 95 % Wilson interval; the episodes are kept. Or which of two policies
is better, in as few episodes as that takes.

Example: vla-rl eval runs/demo --version 3 --episodes 200
         vla-rl eval runs/demo --against runs/demo/policies/version_0000
"""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.errors import UserError

_OF_THE_RUN = ("workers", "environments_per_worker", "rollout_device", "ray")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--version", type=int, help="policy version (default: the newest)")
    parser.add_argument("--episodes", type=int, help="number of held-out seeds (default: 100; --against: at most 400)")
    parser.add_argument(
        "--against",
        type=Path,
        metavar="POLICY",
        help="another policy or run: play until the better one is known",
    )
    parser.add_argument(
        "--parts", action="store_true", help="evaluate the plain policy, and it with the residual alone, for the report"
    )
    parser.add_argument("--difficulty", type=float, help="short for task.difficulty=NUMBER")
    parser.add_argument("--out", type=Path, help="episode store; several policies and settings may share one")
    add_settings(parser, "changes to the run's config")


def run(arguments: argparse.Namespace) -> int:
    import torch

    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.api import compare, evaluate
    from vla_rl.core.config import parse_overrides
    from vla_rl.data.store import EpisodeStore
    from vla_rl.report.statistics import wilson_interval
    from vla_rl.training.run import open_run

    run, policy = open_run(arguments.run), find_policy(arguments.run, arguments.version).path
    version = int(policy.name.rpartition("_")[2])
    if arguments.parts:
        return _print_parts(arguments, version)
    torch.set_num_threads(1)  # as rollout workers have, should there be none
    settings = {name: getattr(run.config, name) for name in _OF_THE_RUN} | parse_overrides(arguments.overrides)
    if arguments.difficulty is not None:
        settings["task.difficulty"] = arguments.difficulty
    if arguments.against is not None:
        episodes = 400 if arguments.episodes is None else arguments.episodes
        print(compare(policy, arguments.against, run.env, episodes, out=arguments.out, settings=settings))
        return 0
    episodes = 100 if arguments.episodes is None else arguments.episodes
    store = EpisodeStore(arguments.out or arguments.run / f"eval-v{version:04d}")
    kept = len(store)
    found = evaluate(policy, run.env, episodes, out=store.path, settings=settings)
    for task in dict.fromkeys(found.tasks):
        own = [success for success, name in zip(found.success, found.tasks, strict=True) if name == task]
        low, high = wilson_interval(sum(own), len(own))
        share = f"{sum(own)}/{len(own)} = {sum(own) / len(own):.1%}"
        print(f"{task} version {version}: {share} [{low:.1%}, {high:.1%}]")
    if found.not_finite:
        print(f"actions that are not finite in {len(found.not_finite)} of {episodes} episodes")
    count = f"{kept + episodes - len(store)} of {episodes} episodes reused"
    print(f"{store.path}: {count}; episodes of other policies or settings are not counted")
    return 0


def _print_parts(arguments: argparse.Namespace, version: int) -> int:
    from vla_rl.report.run_files import read_run
    from vla_rl.training.evaluation import evaluate_parts

    if arguments.overrides or arguments.episodes or arguments.difficulty or arguments.out or arguments.against:
        raise UserError("--parts uses the seeds and settings of the run's own evaluation; leave other options out")
    if not evaluate_parts(arguments.run, version):
        print("the policy has neither critic nor residual: there is nothing to take apart")
        return 0
    for evaluation in read_run(arguments.run).evaluations:
        if evaluation.round == version:
            print(f"{evaluation.label}: {evaluation.successes}/{evaluation.episodes} = {evaluation.words}")
    return 0
