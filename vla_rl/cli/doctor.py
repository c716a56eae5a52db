"""Verify every episode of a store; with --repair, set damaged ones aside and remove what crashed writers left.

Example: vla-rl doctor runs/demo/episodes --repair
"""

import argparse
from pathlib import Path

from vla_rl.data.doctor import diagnose, format_findings, repair


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", type=Path, help="the folder of the episode store")
    parser.add_argument(
        "--repair", action="store_true", help="move damaged episodes to quarantine/; nothing is deleted"
    )


def run(arguments: argparse.Namespace) -> int:
    findings = repair(arguments.store) if arguments.repair else diagnose(arguments.store)
    print(format_findings(findings))
    return 1 if findings and not arguments.repair else 0
