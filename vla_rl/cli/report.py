"""Rebuild the report of a run, also of one that is still going on or was killed.

Example: vla-rl report runs/demo
"""

import argparse
from pathlib import Path

from vla_rl.cli.run_config import RunConfig
from vla_rl.report.html import build_report
from vla_rl.training.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")


def run(arguments: argparse.Namespace) -> int:
    RunFolder.open(arguments.run, RunConfig)
    print(build_report(arguments.run))
    return 0
