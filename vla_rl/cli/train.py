"""Train: demonstrations, supervised policy, practice rounds.

Example: vla-rl train --config demo --out runs/handover task.env=vla_rl/Handover-v0 budget.rounds=5
"""

import argparse

from vla_rl.cli.run_arguments import add_run_arguments, open_run
from vla_rl.core.config import load_config
from vla_rl.core.signals import continue_with


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, config="demo", out="runs/train")
    parser.add_argument(
        "--outcomes",
        nargs="*",
        metavar="KEY=VALUE",
        help="learn from labels of a person and a success detector (vla_rl.outcomes.labeling.LabelConfig)",
    )
    parser.add_argument(
        "--resets",
        nargs="*",
        metavar="KEY=VALUE",
        help="never reset the world: the policy undoes task.env by task.also (vla_rl.acting.resets.ResetConfig)",
    )


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.acting.resets import ResetConfig, choose_resets
    from vla_rl.outcomes.labeling import LabelConfig
    from vla_rl.training.practice import run_practice
    from vla_rl.training.round_labels import choose_labels

    folder, config, spec = open_run(arguments)
    if arguments.outcomes is not None:
        choose_labels(folder, load_config(LabelConfig, None, arguments.outcomes), config.budget)
    if arguments.resets is not None:
        compares = config.budget.check_episodes or config.budget.compare_episodes
        one_world = not config.workers and config.environments_per_worker == 1 and not compares
        choose_resets(folder.path, load_config(ResetConfig, None, arguments.resets), config.task.envs, one_world)
    continue_with("vla-rl", "train", "--resume", str(folder.path))
    summary = run_practice(folder, config, spec)
    for entry in summary["evaluations"]:
        print(f"{entry['label']:<12} success {entry['successes']}/{entry['episodes']}")
    print(f"report: {folder.path / 'report.html'}")
    return 0
