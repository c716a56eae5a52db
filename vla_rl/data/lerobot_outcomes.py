"""Finds the column of a LeRobotDataset that holds the outcomes of its episodes, and reports it.

A column gives an outcome if it holds 0 and 1 only, or if a threshold is named. Any other number is no outcome.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.json_files import parse_json
from vla_rl.data.edits import EditLog, entry_of
from vla_rl.data.lerobot_features import AUTHORS, DONE, LABELS, REWARD, SUCCESS, undamaged_labels
from vla_rl.data.lerobot_files import NOT_NUMERIC, LeRobotFiles

_RULE = re.compile(r"(?P<column>[^<>=]+?)\s*(?:>=\s*(?P<least>[-+.\deE]+))?")
_OPTION = "mapping.lerobot.success"
_LIKELY = re.compile(r"succe|solved", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Where the outcomes of a dataset's episodes come from.

    Attributes:
        source: In words, for the user.
        column: Column of the outcomes; empty: none.
        least: An episode with a row of at least this value succeeded, any other one failed.
        ended: Column that says whether an episode ended; one without success that did not end has no outcome.
        constant: Outcome of all episodes without a column of outcomes.
        unread: Column whose name says that it holds outcomes, where none is read; else empty.
    """

    source: str
    column: str = ""
    least: float = 1.0
    ended: str = ""
    constant: bool | None = None
    unread: str = ""

    def of(self, numbers: Callable[[str], NDArray[Any]]) -> bool | None:
        """Return the outcome of an episode; None if it is unknown. ``numbers`` gives a column of it, [T]."""
        if not self.column:
            return self.constant
        if (numbers(self.column) >= self.least).any():
            return True
        return False if not self.ended or numbers(self.ended).ravel()[-1] else None


def find_outcomes(files: LeRobotFiles, rule: bool | str | None) -> Outcomes:
    """Return where the outcomes of a dataset come from.

    Args:
        files: The dataset.
        rule: ``COLUMN`` or ``COLUMN>=NUMBER``; or the outcome of all episodes if there is no column ``next.success``.

    Raises:
        UserError: For a rule that names no column, or a column of other numbers than 0 and 1 without a threshold.
    """
    if isinstance(rule, str):
        return _by_rule(files, rule)
    if SUCCESS in files.features:
        return _by_rule(files, SUCCESS)
    if rule is not None:
        return Outcomes(f"{_OPTION}={str(rule).lower()}", constant=rule)
    if REWARD not in files.features:
        kinds = {key: feature["dtype"] for key, feature in files.features.items()}
        unread = next((key for key in kinds if _LIKELY.search(key) and kinds[key] not in NOT_NUMERIC), "")
        hint = f"; {unread} may hold them: {_OPTION}={unread}" if unread else ""
        return Outcomes(f"no column: there is neither {SUCCESS} nor {REWARD}{hint}", unread=unread)
    values = files.whole(REWARD)
    remedy = f"if it holds them, set {_OPTION}='{REWARD}>={values.max() if values.any() else 1:g}'"
    if (other := _no_outcome(values)) is not None:
        return Outcomes(f"no column: {REWARD} holds {other:g}; {remedy}")
    if not values.any():
        return Outcomes(f"no column: {REWARD} is 0 in every row; {remedy}")
    return Outcomes(f"{REWARD} (1 is a success)", REWARD, ended=DONE if DONE in files.features else "")


def labels_of(table: Mapping[str, Any]) -> EditLog:
    """Return the labels of an exported episode's outcome; none if it is as recorded. StoreError for damaged ones."""
    if LABELS not in table:
        return EditLog("")
    with undamaged_labels():
        content = parse_json(str(table[LABELS][0].as_py()))
        plain = (
            {"time": time, "user": user, "old": {"success": old}, "new": {"success": new}}
            for time, user, old, new in content.get(AUTHORS, ())
        )
        log = EditLog("", tuple(map(entry_of, plain)))
        if log.entries and (last := log.entries[-1].new["success"]) != content["success"]:
            raise ValueError(f"the outcome is {content['success']}, the last label of it says {last}")
        return log


def _no_outcome(values: NDArray[Any]) -> float | None:
    """Return the first value that is neither 0 nor 1; None if there is none."""
    others = values[~np.isin(values, (0, 1))]
    return float(others.flat[0]) if others.size else None


def _by_rule(files: LeRobotFiles, rule: str) -> Outcomes:
    found = _RULE.fullmatch(rule.strip())
    column, least = (found["column"].strip(), found["least"]) if found else (rule, None)
    if column not in files.features or column in files.cameras():
        raise UserError(
            f"{_OPTION}={rule}: {files.folder} has no such column; expected true, false, COLUMN or COLUMN>=NUMBER."
            f"{did_you_mean(column, files.features)}"
        )
    if least is not None:
        try:
            return Outcomes(f"{column} >= {float(least):g}", column, float(least))
        except ValueError as error:
            raise UserError(f"{_OPTION}={rule}: {least!r} is no number") from error
    values = files.whole(column)
    if (other := _no_outcome(values)) is not None:
        raise UserError(
            f"{files.folder}: {column} holds {other:g}, which is no outcome; expected 0 and 1, or a threshold: "
            f"{_OPTION}='{column}>={values.max():g}'"
        )
    return Outcomes(f"{column} (1 is a success)", column)
