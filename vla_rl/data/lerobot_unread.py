"""Finds the columns of a LeRobotDataset that hold more of its state or its action than a policy learns from."""

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from vla_rl.core.types import Float32Array
from vla_rl.data.lerobot_files import LeRobotFiles

_ACTION = "action"


def unread_parts(files: LeRobotFiles, state: Sequence[str], action: str, unread: Collection[str]) -> Iterator[str]:
    """Yield a sentence on observations and one on actions that are left out, with the setting that changes it.

    Args:
        files: The dataset.
        state: Columns of the state.
        action: Column of the action. Another one than ``action`` was chosen by the caller, and gets no sentence.
        unread: Other columns of numbers.
    """
    if observed := _others(files, state, [key for key in unread if key.startswith("observation.")]):
        setting = f"mapping.lerobot.state=[{', '.join((*state, *observed))}]"
        yield f"lerobot's policies would read {', '.join(observed)}, ours will not; to let them, set {setting}"
    parts = [key for key in unread if key.startswith(f"{_ACTION}.")] if action == _ACTION else []
    if parts := _others(files, [action], parts):
        yield (
            f"the action is read from {action}. More of it may stand in {', '.join(parts)}, which no policy learns. To "
            f"learn another column instead, set mapping.lerobot.action={parts[0]}. To learn several, join them in the "
            "dataset"
        )


def _others(files: LeRobotFiles, read: Sequence[str], keys: Collection[str]) -> list[str]:
    """Return the columns of which a number is in none of the ``read`` columns, in all rows alike."""
    known = [number for key in (read if keys else ()) for number in _numbers(files, key)]
    return [
        key
        for key in sorted(keys)
        if not all(any(np.array_equal(number, other) for other in known) for number in _numbers(files, key))
    ]


def _numbers(files: LeRobotFiles, key: str) -> Float32Array:
    """Return a column of all episodes, float32 [numbers of a row, N]."""
    values = files.whole(key)
    return values.reshape(len(values), -1).astype(np.float32).T
