"""Train: demonstrations, supervised policy, practice rounds.

Example: vla-rl train --config demo --out runs/handover task.env=vla_rl/Handover-v0 budget.rounds=5
"""

import argparse

from vla_rl.cli.run_arguments import add_run_arguments
from vla_rl.core.signals import continue_with


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, config="demo", out="runs/train")
    parser.add_argument(
        "--outcomes",
        nargs="*",
        metavar="KEY=VALUE",
        help="learn from labels of a person and a success detector (vla_rl.outcomes.labeling.LabelConfig)",
    )


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.cli.run_arguments import open_run
    from vla_rl.core.config import load_config
    from vla_rl.outcomes.labeling import LabelConfig
    from vla_rl.training.practice import run_practice
    from vla_rl.training.round_labels import choose_labels

    folder, config, spec = open_run(arguments)
    if arguments.outcomes is not None:
        choose_labels(folder, load_config(LabelConfig, None, arguments.outcomes), config.budget)
    continue_with("vla-rl", "train", "--resume", str(folder.path))
    summary = run_practice(folder, config, spec)
    for entry in summary["evaluations"]:
        print(f"{entry['label']:<12} success {entry['successes']}/{entry['episodes']}")
    print(f"report: {folder.path / 'report.html'}")
    return 0
