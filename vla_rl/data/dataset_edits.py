"""Edits of the episodes of a LeRobotDataset, which import applies. The dataset's own files never change.

The edits of the dataset in the folder ``DATASET`` lie beside it, in ``DATASET.edits/``, one file for each edited
episode. Each names the digest of the rows of its episode, so that edits of another dataset are refused.
"""

import hashlib
import json
import re

import numpy as np

from vla_rl.core.errors import StoreError, UserError
from vla_rl.data.edits import Changes, Editable, EditFolder, EditLog, Recording
from vla_rl.data.lerobot_files import NOT_NUMERIC, LeRobotFiles

_NAME = re.compile(r"\d{6,}")


class DatasetEdits(Editable):
    """The edits of a LeRobotDataset. Episodes are named by their number, ``3`` or ``000003``."""

    def __init__(self, files: LeRobotFiles) -> None:
        self._files = files
        self._dataset = files.folder.resolve()
        self.lock_folder = self._dataset.with_name(f"{self._dataset.name}.edits")
        self.edits = EditFolder(self.lock_folder, "{:0>6}".format)

    def every(self) -> dict[int, Changes]:
        """Return what edits amount to, by number of the episode; StoreError if one is damaged or of another dataset."""
        count = len(self._files.episodes)
        for name in self.edits.names():
            if not _NAME.fullmatch(name) or int(name) >= count:
                raise StoreError(
                    f"{self.edits.file(name)} is no edit of {self._dataset}, which has the episodes 0 to {count - 1}. "
                    "Remove it, or restore the dataset"
                )
        return {int(name): self.changes(name) for name in sorted(self.edits.names())}

    def recording(self, name: str) -> Recording:
        """Return digest, length and task of an episode as it was recorded. The outcome depends on the mapping."""
        count = len(self._files.episodes)
        if not name.isdecimal() or int(name) >= count:
            raise UserError(f"{self._dataset} has the episodes 0 to {count - 1}, not {name}")
        row, table = self._files.episodes[int(name)], self._files.table(int(name))
        length, tasks = int(row["length"]), [str(task) for task in row["tasks"]]
        features = {key: [feature["dtype"], list(feature["shape"])] for key, feature in self._files.features.items()}
        about = [features, self._files.fps, self._files.robot_type, length, tasks]
        sha = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
        for key in sorted(table.keys() & features.keys()):
            if features[key][0] not in NOT_NUMERIC:
                sha.update(key.encode())
                sha.update(np.ascontiguousarray(self._files.numbers(table[key])).tobytes())
        values = Changes(left_out=False, trim=(0, length))
        if len(tasks) == 1:
            values["task"] = tasks[0]
        return Recording(sha.hexdigest(), length, values, f"episode {name} of {self._dataset}")

    def _edits_of_another(self, name: str, found: Recording) -> EditLog:
        raise StoreError(
            f"{self.edits.file(name)} is an edit of other data than {found.where}. Restore that dataset, or move "
            f"{self.edits.path} away"
        )
