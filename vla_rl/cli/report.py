"""Rebuild the report of a run, also of one in progress or killed, or compare runs.

Example: vla-rl report runs/demo
"""

import argparse
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.core.config_files import read_yaml
from vla_rl.data.run_folder import RunFolder, is_finetuning

if TYPE_CHECKING:
    from vla_rl.acting.task_config import TaskConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--compare", type=Path, nargs="+", metavar="RUN", help="write one page with other runs instead")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.acting.redraw import Redrawer
    from vla_rl.report.html import build_comparison, build_report

    task = _task_of(arguments.run)
    with closing(Redrawer(task)) as redraw:
        if arguments.compare:
            print(build_comparison([arguments.run, *arguments.compare], redraw))
        else:
            print(build_report(arguments.run, redraw))
    return 0


def _task_of(run: Path) -> "TaskConfig | None":
    """Return the task of a run, in whose simulation episodes are drawn again; None for offline fine-tuning."""
    from vla_rl.training.config import RunConfig
    from vla_rl.training.finetune import FinetuneConfig

    folder = RunFolder(run)
    if folder.config_file.exists() and is_finetuning(read_yaml(folder.config_file)):
        RunFolder.open(run, FinetuneConfig)
        return None
    return RunFolder.open(run, RunConfig)[1].task
