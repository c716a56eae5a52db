"""A run folder: all that a run leaves, and all that ``--resume RUN_DIR`` needs.

``config.yaml`` (resolved), ``episodes/`` (the episode store), ``checkpoints/``, ``policies/version_0000/`` (what
collectors and robots load), ``evaluation/`` (a store of the evaluation episodes), ``traces/``, ``metrics.jsonl``,
``summary.json`` and ``report.html``. ``cache/`` can be deleted at any time.
"""

import fcntl
import json
import os
from pathlib import Path
from typing import Any, Self

from vla_rl.core.config import load_config, save_config
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic


class RunFolder:
    """The paths of one run, and the lock that keeps two processes from training in it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.episodes = path / "episodes"
        self.evaluation = path / "evaluation"
        self.checkpoints = path / "checkpoints"
        self.policies = path / "policies"
        self.traces = path / "traces"
        self.cache = path / "cache"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, config: Any) -> Self:
        """Make a new run folder around a config.

        Raises:
            UserError: if the folder already holds a run, or cannot be made.
        """
        run = cls(path)
        if run.config_file.exists():
            raise UserError(f"{path} already holds a run; continue it with --resume {path}, or choose another --out")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the run folder {path}: {error.strerror}") from error
        save_config(config, run.config_file)
        return run

    @classmethod
    def open[ConfigT](cls, path: Path, config_class: type[ConfigT]) -> tuple[Self, ConfigT]:
        """Open a run to continue or to read it.

        Raises:
            UserError: if there is no run in the folder; ConfigError if its config does not fit this program.
        """
        run = cls(path)
        if not run.config_file.exists():
            raise UserError(f"{path} holds no run (no config.yaml); give the folder that --out named")
        return run, load_config(config_class, run.config_file)

    def policy(self, version: int) -> Path:
        """The folder of a policy version."""
        return self.policies / f"version_{version:04d}"

    def policy_exists(self, version: int) -> bool:
        """Whether a policy version has been written to its end; its config is the last file of it."""
        return (self.policy(version) / "config.json").exists()

    def policy_versions(self) -> list[int]:
        """The policy versions that have been written to their end, ascending."""
        found = (int(folder.name.removeprefix("version_")) for folder in self.policies.glob("version_*"))
        return sorted(version for version in found if self.policy_exists(version))

    def read_summary(self) -> dict[str, Any]:
        """The summary so far; empty before the first stage ended."""
        if not self.summary_file.exists():
            return {}
        summary: dict[str, Any] = json.loads(self.summary_file.read_text())
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json."""
        write_atomic(self.summary_file, json.dumps(summary, indent=1).encode())

    def __enter__(self) -> Self:
        self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(self._lock)
            raise UserError(f"another process is training in {self.path}; wait for it or stop it first") from error
        return self

    def __exit__(self, *_: object) -> None:
        if self._lock is not None:
            os.close(self._lock)  # closing releases the lock
            self._lock = None
