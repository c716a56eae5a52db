"""Cells of a benchmark: one small JSON file each, kept between calls, so that a long benchmark fills up bit by bit.

Every cell says on which processor, at which commit, with which settings and of which inputs it was measured. Cells of
other settings or inputs are never mixed in; the commits of all stand under their table.
"""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vla_rl.core.cache_keys import cache_key
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.training.machine import describe_machine


class Cells:
    """The cells in one folder.

    Args:
        folder: made if it is missing.
        settings: Ingredients of the cells' key (`vla_rl.core.cache_keys`); the commit stands for the program.
        inputs: Files and folders that are measured; None: there are none, or they are not at hand to gather cells.
            Cells that were published without a record of them are accepted.

    Attributes:
        digest: Key of the settings; also good for naming folders of intermediate results.

    Raises:
        UserError: if the folder holds a cell that was measured with other settings or of other inputs.
    """

    def __init__(self, folder: Path, settings: Any, inputs: Any = None) -> None:
        self.folder = folder
        self.digest = cache_key(settings)
        self._inputs = None if inputs is None else cache_key(inputs)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder of results {folder}: {error.strerror}") from error
        for file in self._files():
            measured = _read(file).get("measured", {})
            for name, now in (("settings", self.digest), ("inputs", self._inputs)):
                found = measured.get(name)
                if found != now and (name == "settings" or None not in (found, now)):
                    raise UserError(
                        f"{file} was measured with other {name} ({found}, now {now}); "
                        "move it away to measure anew, or give another --out"
                    )

    def __contains__(self, name: str) -> bool:
        return (self.folder / f"{name}.json").exists()

    def write(self, name: str, values: dict[str, Any]) -> None:
        """Keep a cell."""
        measured = {"commit": commit(), "settings": self.digest, "cpu": describe_machine()["cpu"]}
        if self._inputs is not None:
            measured["inputs"] = self._inputs
        cell = {**values, "measured": measured}
        write_atomic(self.folder / f"{name}.json", (json.dumps(cell, indent=1) + "\n").encode())

    def once(self, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Measure a cell unless it is there."""
        if name not in self:
            self.write(name, measure())

    def read(self) -> list[dict[str, Any]]:
        """All cells that have been measured, in the order of their names."""
        return list(self.by_name().values())

    def by_name(self) -> dict[str, dict[str, Any]]:
        """Name -> cell, all that have been measured."""
        return {file.stem: _read(file) for file in self._files()}

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("*.json"))


def _read(file: Path) -> dict[str, Any]:
    try:
        cell: dict[str, Any] = json.loads(file.read_text())
    except ValueError as error:
        raise UserError(f"{file} is no readable cell ({error}); remove it to measure it anew") from error
    return cell


def commit(where: Path = Path(__file__).parent) -> str | None:
    """The commit of the source tree, with ``-dirty`` behind it if anything but documents and results was changed; None
    outside a repository.
    """
    try:
        found = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=where, capture_output=True, text=True, check=True
        )
        changed = subprocess.run(
            ["git", "diff", "--quiet", "HEAD", "--", ":/", ":(top,exclude)docs", ":(top,exclude)*.md"], cwd=where
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return found.stdout.strip() + ("-dirty" if changed.returncode else "")


def origin(cells: list[dict[str, Any]]) -> str:
    """Where cells were measured, for the note under a table."""
    found: dict[str, set[str]] = {}
    for cell in cells:
        found.setdefault(cell["measured"]["cpu"], set()).add(str(cell["measured"]["commit"]))
    each = (f"on {cpu} at commit {', '.join(sorted(commits))}" for cpu, commits in sorted(found.items()))
    return f"Measured {'; '.join(each)}."
