"""A run folder: all that a run leaves, and all that ``--resume RUN_DIR`` needs.

It holds ``config.yaml`` (resolved), ``episodes/`` (the episode store), ``checkpoints/`` and ``policies/version_0000/``
(what collectors and robots load). It also holds ``evaluation/`` (a store of the evaluation episodes), ``traces/``,
``metrics.jsonl``, ``summary.json`` and ``report.html``. ``branches.mp4`` is there where branches were filmed, and
``base/`` where Python was given a base policy as an object. ``cache/`` can be deleted at any time; ``ahead/`` holds
episodes of rounds that are not learnt from yet (``budget.staleness``).
"""

import errno
import fcntl
import itertools
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from vla_rl.core.config import config_from_dict, config_to_dict, flatten, load_config, save_config
from vla_rl.core.config_files import read_yaml
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.files import fsync_path, write_atomic
from vla_rl.core.json_files import read_json
from vla_rl.core.version_watcher import versions


def is_finetuning(raw: dict[str, Any]) -> bool:
    """Return whether the config of a run, as plain data, is one of offline fine-tuning: it names data, and no task."""
    return "data" in raw and "task" not in raw


class RunFolder:
    """The paths of one run, and the lock that keeps two processes from training in it at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_file = path / "config.yaml"
        self.episodes = path / "episodes"
        self.evaluation = path / "evaluation"
        self.ahead = path / "ahead"
        self.checkpoints = path / "checkpoints"
        self.policies = path / "policies"
        self.base = path / "base"
        self.traces = path / "traces"
        self.film = path / "branches.mp4"
        self.cache = path / "cache"
        self.metrics_file = path / "metrics.jsonl"
        self.summary_file = path / "summary.json"
        self._lock: int | None = None

    @classmethod
    def create(cls, path: Path, config: Any, start: Self | None = None) -> Self:
        """Make a new run folder around a config, whose file is written last: a folder with one is whole.

        The demonstrations, the supervised policy and its evaluation of the run ``start`` are copied, with all edits.

        Raises:
            UserError: if the folder already holds a run, or a store, or cannot be made.
        """
        run = cls(path)
        if run.config_file.exists():
            raise UserError(f"{path} already holds a run; continue it with --resume {path}, or choose another --out")
        if (path / "store.json").exists():
            raise UserError(
                f"{path} is an episode store; choose another --out, and name the store where it is asked for"
            )
        try:
            if start is not None:
                _copy_start(start, run)
            path.mkdir(parents=True, exist_ok=True)
            save_config(config, run.config_file)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UserError(f"cannot make the run folder {path}: {error.strerror}") from error
        return run

    @classmethod
    def open[ConfigT](cls, path: Path, config_class: type[ConfigT]) -> tuple[Self, ConfigT]:
        """Open a run, with its config of ``config_class``, to continue or to read it.

        Raises:
            UserError: if there is no run in the folder; ConfigError if its config does not fit this program.
        """
        run = cls(path)
        if not run.config_file.exists():
            raise UserError(f"{path} holds no run (no config.yaml); give the folder that --out named")
        raw = read_yaml(run.config_file)
        if is_finetuning(raw) and not hasattr(config_class, "data"):
            raise ConfigError(
                "this is a run of vla-rl finetune; it has no task to play. "
                "Continue it by `vla-rl finetune --resume RUN`, or play its policy by `vla-rl rollout RUN --robot sim`"
            )
        return run, config_from_dict(config_class, raw, where=str(run.config_file))

    @classmethod
    def resume[ConfigT](
        cls, path: Path, config_class: type[ConfigT], changes: Sequence[str], budget: str
    ) -> tuple[Self, ConfigT]:
        """Open a run to go on with it, to a larger ``budget`` where the changes, ``key=value``, say so.

        Nothing is written, see `extend`.

        Raises:
            UserError: If another key is changed, or the budget does not grow; else see `open`.
        """
        if other := [key for key, _, _ in (item.partition("=") for item in changes) if key != budget]:
            raise UserError(
                f"--resume goes on with the run's own config, of which only {budget} may grow; leave {other[0]} out"
            )
        run, config = cls.open(path, config_class)
        if not changes:
            return run, config
        larger = load_config(config_class, overrides=changes, base=config_to_dict(config))
        before, after = (flatten(config_to_dict(each))[budget] for each in (config, larger))
        if after < before:
            raise UserError(f"{budget} is {after}, and {path} was made with {before}; a run can only be extended")
        return run, larger

    def extend(self, config: Any) -> None:
        """Go on with a larger budget from now on; UserError if another process works on the run."""
        with self:
            save_config(config, self.config_file)
            self.write_summary({**self.read_summary(), "finished": False})

    def policy(self, version: int) -> Path:
        """Return the folder of a policy version."""
        return self.policies / f"version_{version:04d}"

    def candidate(self, version: int) -> Path:
        """Return the folder of a policy that is to become a version if check or comparison say so."""
        return self.policies / f"candidate_{version:04d}"

    def plain(self, version: int) -> Path:
        """Return the folder of the same policy without critic and residual."""
        return self.policies / f"plain_{version:04d}"

    def policy_exists(self, version: int) -> bool:
        """Return whether a policy version has been written to its end; its config is the last file of it."""
        return is_policy(self.policy(version))

    def keep_policy(self, version: int, source: Path) -> None:
        """Make a version of another policy, at one stroke."""
        _copy_whole(source, self.policy(version))

    def keep_base(self, source: Path) -> None:
        """Copy the base policy into the run, at one stroke, unless the run has one."""
        if not self.base.exists():
            _copy_whole(source, self.base)

    def put_aside(self, version: int, step: int) -> Path:
        """Rename a policy that is to be trained further, so that its version can be made anew; return where it is."""
        aside = self.policies / f"after_step_{step:08d}"
        self.policy(version).rename(aside)
        return aside

    def policy_versions(self) -> list[int]:
        """Return the policy versions that have been written to their end, ascending."""
        return sorted({number for number, _ in versions(self.policies) if self.policy_exists(number)})

    def read_summary(self) -> dict[str, Any]:
        """Return the summary so far; empty before the first stage ended."""
        try:
            summary = read_json(self.summary_file)
        except FileNotFoundError:
            return {}
        except ValueError as error:
            remedy = "move it away; only this summary of the run is lost"
            raise UserError(f"{self.summary_file} is damaged ({error}); {remedy}") from error
        if not isinstance(summary, dict):
            raise UserError(f"{self.summary_file} is damaged: it holds a {type(summary).__name__}; move it away")
        return summary

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Replace summary.json."""
        write_atomic(self.summary_file, json.dumps(summary, indent=1).encode())

    def is_finished(self) -> bool:
        """Return whether the run has come to its end, its report included."""
        return bool(self.read_summary().get("finished"))

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


def _copy_start(source: RunFolder, target: RunFolder) -> None:
    """Copy what a run had before its first round. Made under another name, so that a crash leaves no half of it."""
    if target.path.exists() and any(target.path.iterdir()):
        raise UserError(f"{target.path} is not empty; choose another --out")
    unfinished = RunFolder(target.path.with_name(f".{target.path.name}.unfinished"))
    shutil.rmtree(unfinished.path, ignore_errors=True)
    for theirs, ours in ((source.episodes, unfinished.episodes), (source.evaluation, unfinished.evaluation)):
        for folder, pattern in itertools.product(("episodes", "edits"), ("demo-*", "v0000-*")):
            (ours / folder).mkdir(parents=True, exist_ok=True)
            for file in (theirs / folder).glob(pattern):
                shutil.copy(file, ours / folder)
        shutil.copy(theirs / "store.json", ours)
    shutil.copytree(source.policy(0), unfinished.policy(0))
    _sync(unfinished.path)
    unfinished.path.replace(target.path)


def run_of(folder: Path) -> Path | None:
    """Return the run that a folder is, or to which the policy in it belongs; None: there is none."""
    path = folder.resolve()
    is_version = path.parent.name == "policies" and not (path / "policies").is_dir()
    run = path.parent.parent if is_version else path
    return run if (run / "policies").is_dir() and (run / "config.yaml").is_file() else None


def is_policy(folder: Path) -> bool:
    """Return whether a policy has been written there to its end."""
    return (folder / "config.json").exists()


def _copy_whole(source: Path, target: Path) -> None:
    """Copy a folder under another name first, so that a crash leaves no half of it."""
    unfinished = target.with_name(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    shutil.copytree(source, unfinished)
    _sync(unfinished)
    unfinished.rename(target)


def _sync(folder: Path) -> None:
    for file in folder.rglob("*"):
        fsync_path(file)
