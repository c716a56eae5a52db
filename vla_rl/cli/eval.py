"""Success of a policy on held-out seeds, with its 95 % Wilson interval; the episodes are kept. Or which of two policies
is better, in as few episodes as that takes.

Example: vla-rl eval runs/demo --version 3 --episodes 200
         vla-rl eval runs/demo --against runs/demo/policies/version_0000
"""

import argparse
from pathlib import Path

from vla_rl.cli.parser import add_settings
from vla_rl.core.errors import UserError


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
        "--parts", action="store_true", help="evaluate the policy without critic and residual, for the run's report"
    )
    parser.add_argument("--difficulty", type=float, help="short for task.difficulty=NUMBER")
    parser.add_argument("--out", type=Path, help="episode store; several policies and settings may share one")
    add_settings(parser, "changes to the run's config")


def run(arguments: argparse.Namespace) -> int:
    import yaml

    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.api import compare
    from vla_rl.report.statistics import wilson_interval
    from vla_rl.training.evaluation import evaluate_run
    from vla_rl.training.run import open_run

    changes = list(arguments.overrides)
    if arguments.difficulty is not None:
        changes.append(f"task.difficulty={arguments.difficulty}")
    if arguments.against is not None:
        policy, env = find_policy(arguments.run, arguments.version).path, open_run(arguments.run).env
        settings = {key: yaml.safe_load(value) for key, _, value in (change.partition("=") for change in changes)}
        print(compare(policy, arguments.against, env, arguments.episodes or 400, out=arguments.out, settings=settings))
        return 0
    if arguments.parts:
        return _print_parts(arguments)
    episodes = 100 if arguments.episodes is None else arguments.episodes
    found = evaluate_run(arguments.run, arguments.version, episodes, changes, arguments.out)
    for task, successes in found.outcomes.items():
        low, high = wilson_interval(sum(successes), len(successes))
        share = f"{sum(successes)}/{len(successes)} = {sum(successes) / len(successes):.1%}"
        print(f"{task} version {found.version}: {share} [{low:.1%}, {high:.1%}]")
    count = f"{found.reused} of {episodes} episodes reused"
    print(f"{found.store}: {count}; episodes of other policies or settings are not counted")
    return 0


def _print_parts(arguments: argparse.Namespace) -> int:
    from vla_rl.report.run_files import read_run
    from vla_rl.training.evaluation import evaluate_parts

    if arguments.overrides or arguments.episodes or arguments.difficulty or arguments.out:
        raise UserError("--parts uses the seeds and settings of the run's own evaluation; leave other options out")
    evaluated = evaluate_parts(arguments.run, arguments.version)
    for evaluation in read_run(arguments.run).evaluations if evaluated else ():
        if evaluation.round == next(iter(evaluated.values()))["round"]:
            print(f"{evaluation.label}: {evaluation.successes}/{evaluation.episodes} = {evaluation.words}")
    if not evaluated:
        print("the policy has neither critic nor residual: there is nothing to take apart")
    return 0
