"""A second practice run beside a first one, without a person, for comparison. It starts from the same supervised
policy, in a process of its own. While the first one learns on one core, the other one is free for it.
"""

import logging
import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from vla_rl.core.config import config_to_dict, load_config
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.core.logging_setup import log_to_stderr
from vla_rl.core.processes import belong_to_parent, end_processes, starting_children
from vla_rl.core.signals import stops_on_signals
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.media import save_clips
from vla_rl.report.sinks import MetricSink
from vla_rl.training.branch_film import film_branches
from vla_rl.training.config import RunConfig
from vla_rl.training.evaluation import note_evaluations
from vla_rl.training.plan import fitting_comparison
from vla_rl.training.practice import check_config, run_practice

NAME = "practice alone"
"""What its policies are called in the report of the first run."""
_SHARED = ("task", "policy", "supervised", "execution", "latency", "gate", "seed", "device", "torch_threads")
_SHARED_BUDGET = (
    *("demonstrations", "supervised_steps", "steps_per_demonstration"),
    *("episodes_per_round", "evaluation_episodes"),
)
# One round is as long as the rounds with a person take.
_ONE_ROUND = {"rounds": 1, "staleness": 0, "check_episodes": 0, "evaluation_pictures": "planned"}
_STOP_WITHIN_S = 2.0
logger = logging.getLogger(__name__)


def own_settings(how: str) -> dict[str, Any]:
    """Return what a config file says of practice alone itself, without what the first run decides for both."""
    return {name: value for name, value in read_yaml(config_file(how)).items() if name not in _SHARED}


class PracticeAlone(MetricSink):
    """Starts when the supervised policy of a run has been evaluated.

    Its success is noted in the run's summary, so that the report shows both. ``how`` is a config file of
    `vla_rl.core.config_files.config_file`.

    Raises:
        UserError: if there is no such file, or it does not fit the run.
    """

    def __init__(self, run: RunFolder, config: RunConfig, how: str) -> None:
        self._main, self._last_round = run, config.budget.rounds
        self.folder = RunFolder(run.path / "alone")
        self.log = run.path / "alone.log"
        self._process: multiprocessing.process.BaseProcess | None = None
        own = own_settings(how)
        base = config_to_dict(config)
        of_practice = {"compare_episodes": 0, **own.pop("budget", {})}
        budget = {**base["budget"], **of_practice, **_ONE_ROUND}
        for name in _SHARED_BUDGET:
            budget[name] = base["budget"][name]
        budget["compare_episodes"] = fitting_comparison(budget["compare_episodes"], budget["episodes_per_round"])
        own |= {name: base[name] for name in _SHARED} | {"budget": budget, "workers": 0}
        try:
            self._config = load_config(RunConfig, None, base=own)
            if self.folder.config_file.exists():  # it goes on as it began
                _, self._config = RunFolder.open(self.folder.path, RunConfig)
            check_config(self._config, has_demonstrations=True)
        except UserError as error:
            raise UserError(f"practice alone does not fit this run: {error} (--alone '' leaves it out)") from error
        if run.read_summary().get("evaluations"):
            self.start()

    def start(self) -> None:
        """Begin, or go on with what is there; nothing if it is under way or done."""
        if self._process is not None or self.folder.is_finished():
            return
        names = (self._main.path, self.folder.path, self._config, self.log)
        self._process = multiprocessing.get_context("spawn").Process(target=_practice_alone, args=names)
        with starting_children():
            self._process.start()

    @override
    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        if metrics.get("kind") == "evaluate":
            self.start()
            if metrics["round"] == self._last_round and self.folder.is_finished():
                self._note()

    def finish(self) -> bool:
        """Wait for its end, note its success, and return whether the report lacks something; UserError if it failed."""
        self.start()
        waited = self._process is not None and self._process.is_alive()
        if self._process is not None:
            self._process.join()
            if self._process.exitcode:
                raise UserError(f"practice alone ended with code {self._process.exitcode}; see {self.log}")
        return self._note() or waited

    def _note(self) -> bool:
        entries = [
            {**entry, "control": NAME}
            for entry in self.folder.read_summary().get("evaluations", [])
            if entry["round"] and entry.get("control") is None
        ]
        return note_evaluations(self._main, entries)

    @override
    def close(self) -> None:
        """Stop it where it is; it can be gone on with."""
        if self._process is not None:
            end_processes([self._process], _STOP_WITHIN_S)


def _practice_alone(start: Path, path: Path, config: RunConfig, log: Path) -> None:
    """In the process of its own: what `vla-rl train --from` does, with all that is printed in a file."""
    belong_to_parent()
    written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(written, stream.fileno())
    log_to_stderr()
    with stops_on_signals():
        folder = RunFolder(path)
        if not folder.config_file.exists():
            RunFolder.create(path, config, RunFolder(start))
        run_practice(folder, config, check_config(config, has_demonstrations=True))
        _film(folder)


def _film(folder: RunFolder) -> None:
    """What was imagined, for the report; a film that cannot be made is no reason to fail."""
    try:
        film = film_branches(folder.path)
    except UserError as error:
        logger.info("no film of branches: %s", error)
    else:
        save_clips(film.clips, folder.film, film.frames_per_s)
