"""The whole story on one task: demonstrations, a supervised policy that often fails, practice under supervision, and
a report.

Example: vla-rl demo --out runs/demo --seed 1
"""

import argparse
import itertools
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.cli.run_arguments import add_run_arguments
from vla_rl.core.config import load_config
from vla_rl.core.errors import UserError
from vla_rl.training.run_folder import RunFolder

if TYPE_CHECKING:
    from vla_rl.runs.config import RunConfig

DEFAULT_OUT = "runs/demo"
# Measured with configs/demo.yaml on two cores of an EPYC, see docs/results/demo.json.
SAMPLES_PER_S, EPISODES_PER_S, START_AND_REPORT_S = 900, 11, 15
logger = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_run_arguments(parser, config="demo", out=DEFAULT_OUT)


def run(arguments: argparse.Namespace) -> int:
    from vla_rl.runs.practice import open_run, practise

    if not arguments.resume and arguments.out is None:
        _choose_folder(arguments)
    folder, config, spec = open_run(arguments)
    budget = config.budget
    logger.info(
        "%s: %d demonstrations, then %d rounds of %d episodes; about %.0f minutes on two CPU cores. Ctrl-C is safe.",
        ", ".join(config.task.envs),
        budget.demonstrations,
        budget.rounds,
        budget.episodes_per_round,
        _expected_minutes(config),
    )
    summary = practise(folder, config, spec)
    first, last = summary["evaluations"][0], summary["evaluations"][-1]
    print(
        f"success {first['successes']}/{first['episodes']} after supervision, {last['successes']}/{last['episodes']} "
        f"after practice, in {summary['wall_s'] / 60:.1f} minutes"
    )
    print(f"report: {folder.path / 'report.html'}")
    return 0


def _expected_minutes(config: "RunConfig") -> float:
    budget = config.budget
    samples = budget.supervised_steps * config.supervised.actor.batch_size
    samples += budget.rounds * budget.steps_per_round * config.learning.actor.batch_size
    evaluations = 1 + (budget.rounds if budget.evaluate_every_round else 1)
    episodes = budget.demonstrations + budget.rounds * budget.episodes_per_round
    episodes += evaluations * budget.evaluation_episodes
    return (samples / SAMPLES_PER_S + episodes / EPISODES_PER_S + START_AND_REPORT_S) / 60


def _choose_folder(arguments: argparse.Namespace) -> None:
    """Without --out: go on with an unfinished demo of the same config, or else take the next free name."""
    from vla_rl.runs.practice import asked_config

    config = asked_config(arguments)
    for number in itertools.count(1):
        folder = RunFolder(Path(DEFAULT_OUT if number == 1 else f"{DEFAULT_OUT}-{number}"))
        if not folder.config_file.exists():
            arguments.out = folder.path
            return
        if arguments.start is None and not folder.is_finished() and _config_of(folder) == config:
            logger.info("going on with the unfinished run in %s", folder.path)
            arguments.resume = folder.path
            arguments.config = arguments.policy = arguments.seed = None
            arguments.overrides = []
            return


def _config_of(folder: RunFolder) -> "RunConfig | None":
    from vla_rl.runs.config import RunConfig

    try:
        return load_config(RunConfig, folder.config_file)
    except UserError:  # of another version of this program
        return None
