"""The whole pipeline on one task: demonstrations, a supervised policy that often fails, supervised practice, parallel
practice without a person, and a report. A page on the loopback and a panel in the terminal show the progress.

Example: vla-rl demo --out runs/demo --seed 1
"""

import argparse
import contextlib
import itertools
import logging
import os
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.cli.run_arguments import add_run_arguments, asked_config, open_run
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.core.registry import find, names
from vla_rl.core.signals import continue_with
from vla_rl.data.run_folder import RunFolder

if TYPE_CHECKING:
    from vla_rl.report.monitor import Monitor
    from vla_rl.training.config import RunConfig

DEFAULT_CONFIG, DEFAULT_OUT = "demo", "runs/demo"
PICTURE_PX = 256
# Measured with configs/demo.yaml on two cores of an EPYC, see docs/results/demo.json.
SAMPLES_PER_S, EPISODES_PER_S, START_AND_REPORT_S = 900, 11, 15
logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, config=DEFAULT_CONFIG, out=DEFAULT_OUT)
    parser.add_argument(
        "--alone",
        default="imagined",
        metavar="CONFIG",
        help="how a second run practices without a person, on the other core (default: imagined; '': there is none)",
    )
    parser.add_argument("--port", type=int, default=0, help="of the page that shows the run (default: any free one)")


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.report.monitor import Monitor, monitor_page

    monitor = Monitor(title=_asked_task(arguments))
    with monitor_page(monitor, arguments.port) as address:
        logger.info("watch it: %s", address)
        if sys.stdin.isatty() and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            webbrowser.open(address)
        _draw_task(monitor)
        return _practice(arguments, monitor, address)


def _practice(arguments: argparse.Namespace, monitor: "Monitor", address: str) -> int:
    from vla_rl.acting.redraw import Redrawer
    from vla_rl.core.progress import watched_by
    from vla_rl.report.html import build_report
    from vla_rl.report.monitor import monitor_panel, success_lines
    from vla_rl.report.run_files import headline, read_run
    from vla_rl.training.beside import PracticeAlone
    from vla_rl.training.plan import plan
    from vla_rl.training.practice import run_practice

    if not arguments.resume and arguments.out is None:
        _choose_folder(arguments)
    folder, config, spec = open_run(arguments)
    continue_with("vla-rl", "demo", "--resume", str(folder.path))
    budget = config.budget
    logger.info(
        "%s: %d demonstrations, then %d rounds of %d episodes; about %.0f minutes on two CPU cores. Ctrl-C is safe.",
        ", ".join(config.task.envs),
        budget.demonstrations,
        budget.rounds,
        budget.episodes_per_round,
        _expected_minutes(config),
    )
    monitor.stages, monitor.run = [stage.name for stage in plan(budget)], folder.path
    with contextlib.ExitStack() as stack:
        beside = None
        if arguments.alone and budget.rounds:
            beside = stack.enter_context(PracticeAlone(folder, config, arguments.alone))
            logger.info("beside it a second run practices without a person: %s", beside.log)
        with watched_by(monitor.on_progress), monitor_panel(monitor, address):
            run_practice(folder, config, spec, [monitor, *([beside] if beside else [])])
        if beside and beside.finish():
            with contextlib.closing(Redrawer(config.task)) as redraw:
                build_report(folder.path, redraw)
    monitor.finished = True
    done = read_run(folder.path)
    print("\n".join([headline(done), "", *success_lines(done), ""]))
    print(f"report:   {folder.path / 'report.html'}\ntry it:   vla-rl play --run {folder.path}")
    return 0


def _asked_task(arguments: argparse.Namespace) -> str:
    """Return the task's name, found without the seconds that it takes to load what trains."""
    named = [word.removeprefix("task.env=") for word in arguments.overrides if word.startswith("task.env=")]
    file = arguments.resume / "config.yaml" if arguments.resume else config_file(arguments.config or DEFAULT_CONFIG)
    return str(named[-1] if named else read_yaml(file).get("task", {}).get("env", ""))


def _draw_task(monitor: "Monitor") -> None:
    """What the policy will learn, seen before anything is learned; of a task that draws itself at any size."""
    if monitor.title in names("tasks"):
        env = find("tasks", monitor.title)(image_size=PICTURE_PX)
        monitor.pictures = env.reset(seed=0)[0]["pixels"]
        monitor.sentence = env.task_description
        env.close()


def _expected_minutes(config: "RunConfig") -> float:
    budget = config.budget
    samples = budget.first_steps * config.supervised.actor.batch_size
    samples += budget.rounds * budget.steps_per_round * config.learning.actor.batch_size
    evaluations = 1 + (budget.rounds if budget.evaluate_every_round else 1)
    episodes = budget.demonstrations + budget.rounds * budget.episodes_per_round
    episodes += evaluations * budget.evaluation_episodes
    return (samples / SAMPLES_PER_S + episodes / EPISODES_PER_S + START_AND_REPORT_S) / 60


def _choose_folder(arguments: argparse.Namespace) -> None:
    """Without --out: go on with an unfinished demo of the same config, or else take the next free name."""
    from vla_rl.training.config import RunConfig

    config = asked_config(arguments)
    for number in itertools.count(1):
        folder = RunFolder(Path(DEFAULT_OUT if number == 1 else f"{DEFAULT_OUT}-{number}"))
        if not folder.config_file.exists():
            arguments.out = folder.path
            return
        if arguments.start is not None or folder.is_finished():
            continue
        with contextlib.suppress(UserError):  # the config of another version of this program
            if load_config(RunConfig, folder.config_file) == config:
                logger.info("going on with the unfinished run in %s", folder.path)
                arguments.resume = folder.path
                arguments.config = arguments.policy = arguments.seed = None
                arguments.overrides = []
                return
