"""What is known of an episode without reading its columns, and which names an episode and its columns may have."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from vla_rl.core.dimensions import UNDECLARED, Dimensions, Pair
from vla_rl.core.errors import ConfigError, StoreError
from vla_rl.core.types import Episode, Origin

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}", re.ASCII)
COLUMN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
"""What a camera or an extra column may be called: it becomes the name of a file."""
_HEADER_KINDS = {"episode_id": str, "length": int, "task": str, "terminated": bool, "policy_version": int}
_HEADER_KINDS |= {"control_hz": float, "env_id": str, "state_dim": int, "action_dim": int, "human_steps": int}
_HEADER_KINDS |= {"digest": str, "has_final": bool}
DIMENSIONS = ("state_dimensions", "action_dimensions")
"""The header fields that are written only where the source declares names."""
OPTIONAL_LABELS = (*DIMENSIONS, "source_columns")
_OPTIONAL = (*OPTIONAL_LABELS, "has_final")
LABELS = ("episode_id", "task", "success", "terminated", "origin", "policy_version", "seed", "control_hz", "env_id")
"""The header fields that are those of `Episode`; `OPTIONAL_LABELS` are so too."""


@dataclass(frozen=True, slots=True)
class EpisodeHeader:
    """What is known of an episode without reading its columns. The fields shared with `Episode` mean the same.

    Attributes:
        length: number of steps T.
        state_dim: S.
        action_dim: A.
        cameras: camera name -> (H, W).
        extras: name of each extra column -> (dtype as numpy writes it, shape of a row).
        human_steps: how many steps a person decided (`Source.HUMAN`).
        digest: SHA-256 over all columns and the other header fields, in hexadecimal.
        has_final: Whether the observation after the last command is stored. Older recordings have none.
    """

    episode_id: str
    length: int
    task: str
    success: bool | None
    terminated: bool
    origin: Origin
    policy_version: int
    seed: int | None
    control_hz: float
    env_id: str
    state_dim: int
    action_dim: int
    cameras: Mapping[str, tuple[int, int]]
    extras: Mapping[str, tuple[str, tuple[int, ...]]]
    human_steps: int
    digest: str
    state_dimensions: Dimensions = UNDECLARED
    action_dimensions: Dimensions = UNDECLARED
    source_columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    has_final: bool = False

    @property
    def dimensions(self) -> Pair:
        """Dimensions of the state and of the actions."""
        return self.state_dimensions, self.action_dimensions

    def to_plain(self) -> dict[str, Any]:
        """Return the header as JSON data."""
        names = [each.name for each in fields(EpisodeHeader) if each.name not in _OPTIONAL]
        return {name: getattr(self, name) for name in names} | only_where_declared(self)

    @staticmethod
    def from_plain(raw: Mapping[str, Any]) -> "EpisodeHeader":
        """Return the header from JSON data. Raises KeyError, TypeError or ValueError for other data."""
        values = {each.name: raw[each.name] for each in fields(EpisodeHeader) if each.name not in _OPTIONAL}
        values["has_final"] = raw.get("has_final", False)
        for name, kind in _HEADER_KINDS.items():
            if type(values[name]) is not kind:
                raise TypeError(f"header field {name} is {values[name]!r}")
        if not isinstance(values["success"], bool | None) or not isinstance(values["seed"], int | None):
            raise TypeError(f"header fields success and seed are {values['success']!r} and {values['seed']!r}")
        if not (math.isfinite(values["control_hz"]) and values["control_hz"] > 0):
            raise ValueError(f"header field control_hz is {values['control_hz']!r}")
        for name, least in (("length", 1), ("state_dim", 0), ("action_dim", 0), ("human_steps", 0)):
            if values[name] < least:
                raise ValueError(f"header field {name} is {values[name]}")
        values["origin"] = Origin(values["origin"])
        sizes = values["cameras"].items()
        values["cameras"] = {str(name): (int(height), int(width)) for name, (height, width) in sizes}
        extras = values["extras"].items()
        values["extras"] = {str(name): (str(dtype), tuple(map(int, row))) for name, (dtype, row) in extras}
        for name, size in zip(DIMENSIONS, (values["state_dim"], values["action_dim"]), strict=True):
            found = Dimensions.from_plain(raw[name]) if name in raw else UNDECLARED
            values[name] = found.check_size(size, f"header field {name}")
        values["source_columns"] = raw.get("source_columns", {})
        for column in values["source_columns"].values():
            if not isinstance(column["part"], str) or not all(type(size) is int for size in column.get("shape", ())):
                raise TypeError(f"header field source_columns holds {str(column)[:120]}")
        check_episode_id(values["episode_id"])
        for name in (*values["cameras"], *values["extras"]):  # they become names of files
            if not COLUMN_NAME.fullmatch(name):
                raise ValueError(f"header names a column {name[:120]!r}")
        return EpisodeHeader(**values)


@dataclass(frozen=True, slots=True)
class Survey:
    """What is known of a source before it is taken in: headers without digests (empty if only the import can know).

    ``outcomes`` says where its outcomes come from; empty for episodes that carry their own.
    """

    headers: tuple[EpisodeHeader, ...] = ()
    outcomes: str = ""


def only_where_declared(episode: "Episode | EpisodeHeader") -> dict[str, Any]:
    """Return the header fields that not every episode has, as JSON data."""
    declared = {name: found.to_plain() for name, found in zip(DIMENSIONS, episode.dimensions, strict=True) if found}
    has_final = episode.has_final if isinstance(episode, EpisodeHeader) else episode.final_state is not None
    others = {"source_columns": episode.source_columns, "has_final": has_final}
    return declared | {name: value for name, value in others.items() if value}


def check_camera_names(names: Iterable[str], rename: str) -> None:
    """Refuse cameras that no episode could be saved with, before one is recorded.

    Raises:
        ConfigError: With the first of them, and how to ``rename`` it.
    """
    for name in names:
        if not COLUMN_NAME.fullmatch(name):
            raise ConfigError(
                f"the camera {name!r} cannot be stored under this name: use 1 to 100 of A-Z a-z 0-9 . _ - and begin "
                f"with a letter or a digit; name it by {rename}"
            )


def is_episode_id(name: object) -> bool:
    """Return whether a name can be a file name on any system: 1 to 100 of ``[A-Za-z0-9._-]``, no leading . or -."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def check_episode_id(episode_id: str) -> None:
    """Raise StoreError unless `is_episode_id`."""
    if not is_episode_id(episode_id):
        shown = repr(episode_id)[:120]
        raise StoreError(
            f"bad episode id {shown}: use 1 to 100 of A-Z a-z 0-9 . _ - and begin with a letter, a digit or _"
        )
