"""Edits of the episodes of a LeRobotDataset, which import applies. The dataset's own files never change.

The edits of the dataset in the folder ``DATASET`` lie beside it, in ``DATASET.edits/``, one file for each edited
episode. Each names the digest of the rows of its episode, so that edits of another dataset are refused.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable
from typing import Unpack

import numpy as np

from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.types import Episode
from vla_rl.data.edits import Changes, EditFolder, EditLog, check_changes, describe, edited
from vla_rl.data.lerobot_files import LeRobotFiles
from vla_rl.data.store import locked

logger = logging.getLogger(__name__)

_NAME = re.compile(r"\d{6,}")
_NOT_NUMERIC = frozenset(["image", "video", "string", "language"])


class DatasetEdits:
    """The edits of a LeRobotDataset. Episodes are named by their number, ``3`` or ``000003``.

    Args:
        files: The dataset.

    Attributes:
        edits: Folder of the edits.

    Raises:
        StoreError: If an edit is damaged, or is not of this dataset.
    """

    def __init__(self, files: LeRobotFiles) -> None:
        self._files = files
        self._dataset = files.folder.resolve()
        self.edits = EditFolder(self._dataset.with_name(f"{self._dataset.name}.edits"))
        self._changes: dict[int, Changes] = {}
        for name in self.edits.names():
            if not _NAME.fullmatch(name) or int(name) >= len(files.episodes):
                raise StoreError(
                    f"{self.edits.file(name)} is no edit of {self._dataset}, which has the episodes 0 to "
                    f"{len(files.episodes) - 1}. Remove it, or restore the dataset"
                )
            self._changes[int(name)] = self.edit_log(name).changes

    def log(self) -> None:
        """Log the edits that import applies."""
        for index, changes in sorted(self._changes.items()):
            if changes:
                logger.info("%s, episode %d: %s", self.edits.path, index, describe(changes))

    def taken_in(self) -> list[int]:
        """Return the numbers of the episodes that are not left out."""
        count = len(self._files.episodes)
        return [index for index in range(count) if not self._changes.get(index, {}).get("left_out")]

    def gives_task(self, index: int) -> bool:
        """Return whether an edit gives an episode its task sentence."""
        return "task" in self._changes.get(index, {})

    def apply(self, index: int, episode: Episode) -> Episode:
        """Return an imported episode with its edits."""
        return edited(episode, self._changes.get(index, {}))

    def recorded_length(self, name: str) -> int:
        """Return the number of steps of an episode. Raises UserError if there is no such episode."""
        return int(self._files.episodes[self._number(name)]["length"])

    def edit_log(self, name: str) -> EditLog:
        """Return all edits of an episode.

        Raises:
            UserError: If there is no such episode.
            StoreError: If the edit is damaged, or is not of this dataset.
        """
        index = self._number(name)
        log, file = self.edits.read(f"{index:06d}"), self.edits.file(f"{index:06d}")
        digest = _digest(self._files, index)
        if log is None:
            return EditLog(digest)
        if log.digest != digest:
            raise StoreError(
                f"{file} is an edit of other data than episode {index} of {self._dataset}. Restore that dataset, or "
                f"move {self.edits.path} away"
            )
        log.check(self.recorded_length(name), file)
        return log

    def edit(self, name: str, **changes: Unpack[Changes]) -> None:
        """Change how import sees an episode, see `vla_rl.data.store.EpisodeStore.edit`.

        Raises:
            UserError: For values that the episode cannot have, or an episode that there is not.
            StoreError: If the edit cannot be saved.
        """
        length, tasks = self.recorded_length(name), self._files.episodes[self._number(name)]["tasks"]
        check_changes(changes, length, f"episode {name} of {self._dataset}")
        recorded = Changes(left_out=False, trim=(0, length))  # the outcome depends on the mapping
        if len(tasks) == 1:
            recorded["task"] = str(tasks[0])
        self._update(name, lambda log: log.changed(changes, recorded))

    def undo(self, name: str) -> None:
        """Undo the last edit of an episode that is not undone yet; the log keeps both. Raises as `edit`."""
        self._update(name, lambda log: log.undone(f"episode {name} of {self._dataset}"))

    def _update(self, name: str, change: Callable[[EditLog], EditLog]) -> None:
        index = self._number(name)
        change(self.edit_log(name))  # refuses before a folder is made
        try:
            self.edits.path.mkdir(exist_ok=True)
            with locked(self.edits.path, exclusive=True):
                log = change(self.edit_log(name))
                self.edits.write(f"{index:06d}", log)
        except OSError as error:
            raise StoreError(f"cannot save an edit in {self.edits.path}: {error.strerror}") from error
        self._changes[index] = log.changes

    def _number(self, name: str) -> int:
        if not name.isdecimal() or int(name) >= len(self._files.episodes):
            raise UserError(f"{self._dataset} has the episodes 0 to {len(self._files.episodes) - 1}, not {name}")
        return int(name)


def _digest(files: LeRobotFiles, index: int) -> str:
    """Return the digest of what the tables of a dataset say of an episode."""
    row, table = files.episodes[index], files.table(index)
    features = {key: [feature["dtype"], list(feature["shape"])] for key, feature in files.features.items()}
    about = [features, files.fps, files.robot_type, int(row["length"]), [str(task) for task in row["tasks"]]]
    sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for key in sorted(table.keys() & features.keys()):
        if features[key][0] not in _NOT_NUMERIC:
            sha.update(key.encode())
            sha.update(np.ascontiguousarray(files.numbers(table[key])).tobytes())
    return sha.hexdigest()
