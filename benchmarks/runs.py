"""Runs as cells of a benchmark: verbs of the command line in processes of their own, which resume where they were."""

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.statistics import bootstrap_interval
from vla_rl.core.cache_keys import cache_key, claim
from vla_rl.core.config_files import config_file, read_yaml
from vla_rl.core.errors import UserError
from vla_rl.data.run_folder import RunFolder
from vla_rl.report.statistics import wilson_interval

_PRESETS = {"train": ["demo"], "demo": ["demo", "imagined"], "finetune": ["finetune"]}
"""Verb -> the presets that it reads without being asked."""


def short_name(task: str) -> str:
    """``vla_rl/PegInsert-v0`` -> ``PegInsert``, for files and tables."""
    return task.partition("/")[2].partition("-")[0]


@dataclass(frozen=True)
class Cell:
    """One run of a grid: of a task, a seed, and a method or algorithm."""

    task: str
    seed: int
    method: str

    @property
    def name(self) -> str:
        """For files and folders."""
        return f"{self.base}-{self.method}"

    @property
    def base(self) -> str:
        """The run that the cells of a task and seed start from."""
        return f"{short_name(self.task)}-{self.seed}"


def in_float32(preset: str, changes: Sequence[str] = ()) -> list[str]:
    """Return the changes to a preset that keep the precision of its published cells: float32, the earlier default of
    every algorithm but those of `ResidualLearning`. Later changes may name another one.
    """
    from vla_rl.algorithms.residual_learner import ResidualLearning
    from vla_rl.core.registry import find

    named = [change.partition("=")[2] for change in changes if change.startswith("algorithm=")]
    algorithm = find("algorithms", named[-1] if named else read_yaml(config_file(preset)).get("algorithm", "habc"))
    is_mixed = issubclass(algorithm.config_class, ResidualLearning)
    sections = ["supervised"] if is_mixed else ["supervised", "learning"]
    return [f"{section}.actor.precision=float32" for section in sections]


class RunningVerb:
    """A verb in a process of its own.

    Args:
        command: of the process.
        log: what it prints is appended here.
    """

    def __init__(self, command: list[str], log: Path) -> None:
        self._log, self._started_s = log.open("a"), time.perf_counter()
        self.cpu_s = 0.0
        self._process = subprocess.Popen(command, stdout=self._log, stderr=subprocess.STDOUT)

    def wait_or_fail(self) -> float:
        """Wait for the end; returns the seconds that it took. ``cpu_s`` then says how many seconds of processor time it
        and its workers took.

        Raises:
            UserError: if the verb failed.
        """
        _, status, usage = os.wait4(self._process.pid, 0)  # unlike `Popen.wait`, it says what was used
        code = self._process.returncode = os.waitstatus_to_exitcode(status)
        self.cpu_s = usage.ru_utime + usage.ru_stime
        self._log.close()
        if code:
            raise UserError(f"a run of the benchmark ended with code {code}; see {self._log.name}")
        return time.perf_counter() - self._started_s


def run_verb(arguments: list[str], folder: Path) -> float:
    """Run a verb that makes a run folder to its end, or what is left of it.

    Returns:
        the seconds of processor time that it took now.

    Raises:
        UserError: if the folder was begun with other arguments or another preset, or the verb fails.
    """
    claim_run(arguments, folder)
    if RunFolder(folder).is_finished():
        return 0.0
    verb = start_verb(arguments, folder)
    verb.wait_or_fail()
    return verb.cpu_s


def claim_run(arguments: list[str], folder: Path) -> None:
    """Note beside a run folder what it is begun with, or refuse one that was begun with anything else.

    Raises:
        UserError: in that case.
    """
    verb, *rest = arguments
    names = [*_PRESETS[verb], *(after for before, after in itertools.pairwise(rest) if before == "--config")]
    claim(
        folder.with_name(f"{folder.name}.key"),
        cache_key([arguments, [read_yaml(config_file(name)) for name in names]]),
        f"{folder} was begun with other arguments or another preset; move it away to measure anew",
        made=(folder / "config.yaml").exists(),
    )


def start_verb(arguments: list[str], folder: Path) -> RunningVerb:
    """Start a verb that makes a run folder, or goes on with the one that is there; see `run_verb`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    claim_run(arguments, folder)
    verb, *rest = arguments
    where = ["--resume", str(folder)] if (folder / "config.yaml").exists() else [*rest, "--out", str(folder)]
    command = [sys.executable, "-m", "vla_rl.cli.main", verb, *where]
    return RunningVerb(command, folder.with_name(f"{folder.name}.log"))


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run's own policies, in order."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return [entry for entry in summary["evaluations"] if entry.get("control") is None]


def gain_columns(cells: list[dict[str, Any]]) -> str:
    """Columns of a table, of the same over several seeds: success before and after practice, the gain, steps to success
    and processor minutes.
    """
    first, last = (_percent(cells, name) for name in ("supervised", "practised"))
    gains = np.array([cell["practised"]["success"] - cell["supervised"]["success"] for cell in cells])
    low, high = bootstrap_interval(gains, np.mean, seed=0)
    lengths = [[cell[name]["steps"] for cell in cells if cell[name]["steps"]] for name in ("supervised", "practised")]
    steps = " -> ".join(f"{np.mean(found):.0f}" if found else "-" for found in lengths)
    minutes = np.mean([cell["cpu_s"] for cell in cells]) / 60
    return (
        f"| {first} | **{last}** | {100 * gains.mean():+.0f} [{100 * low:+.0f}, {100 * high:+.0f}] | {steps} "
        f"| {minutes:.1f} |"
    )


def _percent(cells: list[dict[str, Any]], name: str) -> str:
    """Pooled success. All seeds share their starts: for other starts than these the interval is too narrow."""
    episodes = sum(cell["evaluation_episodes"] for cell in cells)
    successes = sum(round(cell[name]["success"] * cell["evaluation_episodes"]) for cell in cells)
    low, high = wilson_interval(successes, episodes)
    return f"{successes / episodes:.0%} [{low * 100:.0f}, {high * 100:.0f}]"
