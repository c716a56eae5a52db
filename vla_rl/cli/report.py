"""Rebuild the report of a run, also of one that is still going on or was killed; or put it beside another run; or draw
pictures of it.

Example: vla-rl report runs/demo --picture docs/images/demo.png
"""

import argparse
from contextlib import closing
from pathlib import Path

from vla_rl.training.run_folder import RunFolder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="the run folder")
    parser.add_argument("--beside", type=Path, metavar="RUN", help="another run, side by side with this one, no report")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="success and one episode in one PNG, no report")
    parser.add_argument(
        "--figures", type=Path, metavar="DIR", help="the SVGs of docs/method.md from this run, no report"
    )


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.report.beside import build_comparison
    from vla_rl.report.figures import save_figures
    from vla_rl.report.html import build_report
    from vla_rl.report.picture import save_picture
    from vla_rl.runs.config import RunConfig
    from vla_rl.runs.redraw import Redrawer

    _, config = RunFolder.open(arguments.run, RunConfig)
    if arguments.picture:
        print(save_picture(arguments.run, arguments.picture))
    if arguments.figures:
        for file in save_figures(arguments.run, arguments.figures):
            print(file)
    with closing(Redrawer(config.task)) as redraw:
        if arguments.beside:
            print(build_comparison(arguments.run, arguments.beside, redraw))
        if not (arguments.picture or arguments.figures or arguments.beside):
            print(build_report(arguments.run, redraw))
    return 0
