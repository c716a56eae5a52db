"""Train: demonstrations, supervised policy, practice rounds.

Example: vla-rl train --config demo --out runs/handover task.env=vla_rl/Handover-v0 budget.rounds=5
"""

import argparse
from typing import TYPE_CHECKING

from vla_rl.cli.run_arguments import add_run_arguments, asked_config, open_run
from vla_rl.core.config import load_config
from vla_rl.core.signals import continue_with

if TYPE_CHECKING:
    from vla_rl.training.config import RunConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, config="demo", out="runs/train")
    parser.add_argument(
        "--outcomes",
        nargs="*",
        metavar="KEY=VALUE",
        help="learn from labels of a person and a success detector (vla_rl.outcomes.labeling.LabelConfig). "
        "With --config alone, set budget.compare_episodes=0",
    )
    parser.add_argument(
        "--resets",
        nargs="*",
        metavar="KEY=VALUE",
        help="never reset the world: the policy undoes task.env by task.also (vla_rl.acting.resets.ResetConfig). "
        "With --config alone, set budget.compare_episodes=0",
    )


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.acting.resets import ResetConfig, check_world, choose_resets
    from vla_rl.outcomes.labeling import LabelConfig
    from vla_rl.training.practice import run_practice
    from vla_rl.training.round_labels import check_budget, choose_labels

    labels = None if arguments.outcomes is None else load_config(LabelConfig, None, arguments.outcomes)
    resets = None if arguments.resets is None else load_config(ResetConfig, None, arguments.resets)

    def check(config: "RunConfig") -> None:
        compares = config.budget.check_episodes or config.budget.compare_episodes
        one_world = not config.workers and config.environments_per_worker == 1 and not compares
        if labels is not None:
            check_budget(config.budget)
        if resets is not None:
            check_world(config.task.envs, one_world)

    if not arguments.resume:
        check(asked_config(arguments))  # what is refused leaves no folder
    folder, config, spec = open_run(arguments)
    check(config)
    if labels is not None:
        choose_labels(folder, labels, config.budget)
    if resets is not None:
        choose_resets(folder.path, resets)
    continue_with("vla-rl", "train", "--resume", str(folder.path))
    summary = run_practice(folder, config, spec)
    for entry in summary["evaluations"]:
        print(f"{entry['label']:<12} success {entry['successes']}/{entry['episodes']}")
    print(f"report: {folder.path / 'report.html'}")
    return 0
