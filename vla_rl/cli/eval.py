"""Success of a policy on held-out seeds, with its 95 % Wilson interval; the episodes are kept.

Example: vla-rl eval runs/demo --version 3 --episodes 200
"""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--version", type=int, help="policy version (default: the newest)")
    parser.add_argument("--episodes", type=int, default=100, help="number of held-out seeds")
    parser.add_argument("--difficulty", type=float, help="short for task.difficulty=NUMBER")
    parser.add_argument("--out", type=Path, help="episode store; several policies and settings may share one")
    add_settings(parser, "changes to the run's config")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.report.statistics import wilson_interval
    from vla_rl.training.evaluation import evaluate_run

    changes = list(arguments.overrides)
    if arguments.difficulty is not None:
        changes.append(f"task.difficulty={arguments.difficulty}")
    found = evaluate_run(arguments.run, arguments.version, arguments.episodes, changes, arguments.out)
    for task, successes in found.outcomes.items():
        low, high = wilson_interval(sum(successes), len(successes))
        share = f"{sum(successes)}/{len(successes)} = {sum(successes) / len(successes):.1%}"
        print(f"{task} version {found.version}: {share} [{low:.1%}, {high:.1%}]")
    count = f"{found.reused} of {arguments.episodes} episodes reused"
    print(f"{found.store}: {count}; episodes of other policies or settings are not counted")
    return 0
