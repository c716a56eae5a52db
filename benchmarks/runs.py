"""Runs as cells of a benchmark: verbs of the command line in processes of their own, which resume where they were."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError


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


def start_verb(arguments: list[str], folder: Path) -> RunningVerb:
    """Start a verb that makes a run folder, or goes on with the one that is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    verb, *rest = arguments
    where = ["--resume", str(folder)] if (folder / "config.yaml").exists() else [*rest, "--out", str(folder)]
    command = [sys.executable, "-m", "vla_rl.cli.main", verb, *where]
    return RunningVerb(command, folder.with_name(f"{folder.name}.log"))


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations of a run's own policies, in order."""
    summary: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return [entry for entry in summary["evaluations"] if entry.get("control") is None]
