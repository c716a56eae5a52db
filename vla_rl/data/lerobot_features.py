"""What a LeRobotDataset v3 declares of its columns: names of dimensions, sizes of pictures, and columns of our own.

lerobot has no field for units, for both actions, or for the operator. These travel in columns named ``vla_rl.*``: names
that begin with ``action`` or ``observation`` would become inputs and outputs of lerobot's policies.
"""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import StoreError, UserError

LABELS = "vla_rl.labels"
LABELS_VERSION = 1
AUTHORS = "authors"
"""Key of the labels of an outcome, the oldest first: time, user, outcome before and after."""
EPISODE_LABELS = ("episode_id", "success", "terminated", "origin", "policy_version", "seed", "control_hz", "env_id")
ENVIRONMENT = "lerobot"
"""Environment of an episode from a LeRobotDataset; followed by ``/ROBOT_TYPE`` if the dataset names its robot."""
SUCCESS, REWARD, DONE = "next.success", "next.reward", "next.done"

OURS = (LABELS, SUCCESS, REWARD, DONE, "intervention")
"""Columns of an export that say nothing beside the labels."""

FINAL_FOLDER = "vla_rl_final"
"""Folder of an export with the observation after the last command of each episode, as EPISODE_ID.safetensors. A row of
a LeRobotDataset is a commanded step, so it cannot stand there.
"""

Feature = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ExtraColumn:
    """How an extra column [T, *row] stands in a LeRobotDataset.

    Attributes:
        key: Name of the column.
        dtype: Type of the extra, as numpy writes it.
        row: Shape of a row of the extra.
        shape: Shape of a row of the column.
        names: As the source declared them; None for a column of our own.
        success_at_least: Value from which the column means a success; None if it holds no outcome.
    """

    key: str
    dtype: str
    row: tuple[int, ...]
    shape: tuple[int, ...]
    names: Any = None
    success_at_least: float | None = None

    @classmethod
    def of(cls, name: str, dtype: str, row: tuple[int, ...]) -> "ExtraColumn":
        """Return the column of an extra that no dataset has named: flat, under a name that lerobot can bear."""
        # lerobot takes every column with "image" in its name for pictures when it merges statistics.
        key = f"vla_rl.extras.{re.sub('image', 'img', name, flags=re.IGNORECASE)}"
        return cls(key, dtype, row, (math.prod(row),))

    def as_in_source(self, key: str, feature: Feature) -> "ExtraColumn":
        """Return the column under its name and shape in the source; unchanged, if lerobot does not support them."""
        shape, least = tuple(feature["shape"]), feature.get("success_at_least")
        fits = math.prod(shape) == math.prod(self.row) and self.stored_dtype == np.dtype(self.dtype)
        if "image" in key.lower() or not fits:
            return self
        return replace(self, key=key, shape=shape, names=feature["names"], success_at_least=least)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        dtype = np.dtype(self.dtype)
        return np.dtype(np.int64) if dtype == np.uint64 else dtype  # the bits, since torch reads no uint64

    def pack(self, extra: NDArray[Any] | None, length: int) -> NDArray[Any]:
        """Return an episode's extra as lerobot's column; zeros for an episode that does not have it."""
        if extra is None:
            return np.zeros((length, *self.shape), self.stored_dtype)
        return np.ascontiguousarray(extra).view(self.stored_dtype).reshape(length, *self.shape)

    def unpack(self, values: NDArray[Any], length: int) -> NDArray[Any]:
        """Return the extra [T, *row] of lerobot's column."""
        return values.astype(self.stored_dtype, copy=False).view(self.dtype).reshape(length, *self.row)


@contextlib.contextmanager
def undamaged_labels() -> Iterator[None]:
    """Turn what wrong content of the column of labels raises into one StoreError."""
    try:
        yield
    except StoreError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, UserError) as error:
        raise StoreError(f"the column {LABELS} is damaged: {error!r}") from error


def described(feature: Feature, part: str) -> dict[str, Any]:
    """Return what an export needs to know of a column: the part of an episode that it became, its shape and names."""
    return {"part": part, "shape": list(feature["shape"]), "names": feature.get("names")}


def columns_of(source_columns: Mapping[str, Feature], part: str) -> dict[str, Feature]:
    """Return the columns of the source that became a part of the episode, in their order."""
    return {key: column for key, column in source_columns.items() if column["part"] == part}


def dimensions_of(columns: Mapping[str, Feature]) -> Dimensions:
    """Return the dimensions of columns that stand one behind the other.

    A name that several columns use gets the end of its column's name, ``elbow.velocity``. Undeclared columns beside
    declared ones are named after their column.

    Raises:
        UserError: For names that are not as many as the numbers, or repeated inside a column.
    """
    names = {key: _names(key, feature) for key, feature in columns.items()}
    if not any(names.values()):
        return UNDECLARED
    for key, feature in columns.items():
        size, end = math.prod(feature["shape"]), key.rpartition(".")[2]
        names[key] = names[key] or ([end] if size == 1 else placeholders(end, size))
    count = Counter(name for found in names.values() for name in set(found))
    flat = [
        f"{name}.{key.rpartition('.')[2]}" if count[name] > 1 else name
        for key, found in names.items()
        for name in found
    ]
    try:
        return Dimensions(tuple(flat))
    except UserError as error:
        raise UserError(f"the columns {list(columns)}: {error}; correct the names in meta/info.json") from error


def placeholders(name: str, size: int) -> list[str]:
    """Return names for the numbers of a vector that declares none."""
    return [f"{name}_{number}" for number in range(size)]


def picture_size(feature: Feature) -> tuple[int, int] | None:
    """Return height and width of a camera's pictures, channels first or last; None for what is no RGB camera."""
    shape, names = list(feature["shape"]), feature.get("names")
    info = {**(feature.get("video_info") or {}), **(feature.get("info") or {})}  # older datasets: video_info, video.*
    is_depth_map = info.get("is_depth_map") or info.get("video.is_depth_map")
    if len(shape) != 3 or 3 not in (shape[0], shape[2]) or is_depth_map:
        return None
    height, width = (0, 1) if shape[2] == 3 else (1, 2)
    if isinstance(names, list) and {"height", "width"} <= {*names}:
        named = names.index("height"), names.index("width")
        height, width = named if shape[3 - sum(named)] == 3 else (height, width)  # some call 3 x H x W height first
    return int(shape[height]), int(shape[width])


def _names(key: str, feature: Feature) -> list[str]:
    """Return one name per number; none if the column declares none, or names only its axes."""
    shape, names = tuple(feature["shape"]), _flat(feature.get("names"))
    if len(names) == math.prod(shape):
        return names
    if len(names) in (0, len(shape)):
        return []
    raise UserError(
        f"the column {key} has {math.prod(shape)} numbers and {len(names)} names: {names}; correct meta/info.json"
    )


def _flat(names: Any) -> list[str]:
    """Return names in the order of the numbers, whatever they are nested in."""
    if isinstance(names, str):
        return [names]
    if isinstance(names, Sequence):
        return [name for item in names for name in _flat(item)]
    if not isinstance(names, Mapping):
        return []
    if names and all(isinstance(place, int) for place in names.values()):  # name -> place, as the RL recorder has it
        if sorted(names.values()) != [*range(len(names))]:
            raise UserError(f"the names {dict(names)} do not count from 0; correct meta/info.json")
        return sorted(names, key=lambda name: int(names[name]))
    groups = {str(group): _flat(inner) for group, inner in names.items()}
    count = Counter(name for found in groups.values() for name in found)
    return [
        f"{group}.{name}" if count[name] > 1 and len(groups) > 1 else name for group in groups for name in groups[group]
    ]
