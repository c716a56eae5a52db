"""Writes episodes as a LeRobotDataset v3 through lerobot's own writer, which adds the statistics its tools expect.

Episodes that came from a LeRobotDataset keep its columns, their names and its type of robot.

Dependency law: lerobot is imported where it is used.
"""

import json
import logging
import math
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.progress import announced, track
from vla_rl.core.types import Episode, Source
from vla_rl.data.cache_files import Layout, common_layout
from vla_rl.data.edits import EditLog
from vla_rl.data.episode_header import EpisodeHeader, only_where_declared
from vla_rl.data.lerobot_features import (
    AUTHORS,
    DONE,
    ENVIRONMENT,
    EPISODE_LABELS,
    FINAL_FOLDER,
    LABELS,
    LABELS_VERSION,
    REWARD,
    SUCCESS,
    ExtraColumn,
    Feature,
    columns_of,
    dimensions_of,
    placeholders,
)
from vla_rl.data.store import EpisodeStore

logger = logging.getLogger(__name__)
_NARROWEST_VIDEO = 32  # pixels

Values = Callable[[Episode], NDArray[Any]]


@dataclass
class _Plan:
    """The columns of an export.

    Attributes:
        features: lerobot's description of each column.
        values: Column -> its rows [T, ...] of an episode.
        parts: Where import finds the state, the action and the cameras.
        extras: Extra of an episode -> how it stands in the dataset.
    """

    features: dict[str, dict[str, Any]] = field(default_factory=dict)
    values: dict[str, Values] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    extras: dict[str, ExtraColumn] = field(default_factory=dict)

    def add(self, key: str, dtype: str, shape: Sequence[int], names: Any, values: Values) -> None:
        """Add a column, unless it is empty, which lerobot does not know, or there already."""
        if 0 not in shape and key not in self.features:
            self.features[key] = {"dtype": dtype, "shape": tuple(shape), "names": names}
            self.values[key] = values

    def observations(self) -> list[str]:
        """Return the columns of state and pictures."""
        return [key for key in (*self.parts["state"], *self.parts["cameras"].values()) if key in self.values]


def export_lerobot(store: EpisodeStore, out_dir: Path, ids: Sequence[str] | None = None, video: bool = False) -> Path:
    """Write episodes as a LeRobotDataset v3.

    ``action`` is what imitation should reproduce (`Episode.imitation_action`). ``next.reward`` is 1 at the last step of
    a success, and ``intervention`` marks the steps that a person decided. If an outcome is unknown, ``next.reward`` and
    ``next.success`` are left out: lerobot has no value for it, and would read a failure.

    Args:
        store: Of the episodes.
        out_dir: Folder to make; it appears when it is complete.
        ids: The episodes, in this order; None for all.
        video: Cameras as AV1 video (small, lossy) instead of PNG images (exact).

    Raises:
        StoreError: For a folder that exists, no episodes, or episodes of unequal shapes or rates.
        UserError: If lerobot is not installed, or an episode lacks a dimension that the others have.
    """
    out_dir = Path(out_dir)
    if out_dir.exists():
        raise StoreError(f"{out_dir} exists; export to a new folder")
    headers = [store.read_header(episode_id) for episode_id in (store.ids() if ids is None else ids)]
    layout, fps = _common(headers)
    if video and any(width < _NARROWEST_VIDEO for _, width in layout.cameras.values()):
        raise StoreError(
            f"the encoder of AV1 crashes on cameras narrower than {_NARROWEST_VIDEO} pixels, these are "
            f"{dict(layout.cameras)}; export images instead of video"
        )
    plan = _plan(headers, layout, video)
    try:
        with announced("loading lerobot"):
            from lerobot.datasets.lerobot_dataset import LeRobotDataset
            from lerobot.utils.utils import SuppressProgressBars
    except ImportError as error:
        raise UserError(f"exporting needs {error.name}; install vla-rl with the extra 'train'") from error
    temporary = out_dir.with_name(f".{out_dir.name}.{os.getpid()}.tmp")
    try:
        dataset = LeRobotDataset.create(
            repo_id=f"local/{out_dir.name}",
            fps=fps,
            root=temporary,
            features=plan.features,
            robot_type=_robot_type(headers),
            use_videos=video,
            video_backend="pyav",
        )
        with SuppressProgressBars(), _own_scheduling():
            for header in track(headers, "exporting", "episode"):
                episode = store.read(header.episode_id)
                episode = episode.matched(layout.dimensions_of(header.state_dim), "the export")
                for frame in _frames(episode, plan, store.edit_log(header.episode_id)):
                    dataset.add_frame(frame)
                dataset.save_episode(parallel_encoding=False)
                _write_final(temporary / FINAL_FOLDER, episode, plan)
        dataset.finalize()
        temporary.rename(out_dir)
    except OSError as error:
        raise StoreError(f"cannot export to {out_dir}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out_dir


@contextmanager
def _own_scheduling() -> Iterator[None]:
    """As root, the encoder of AV1 gives the whole process the highest real-time priority, and leaves it so."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, parameters)


def _common(headers: Sequence[EpisodeHeader]) -> tuple[Layout, int]:
    """Their layout and control rate; raises StoreError unless there are episodes, of equal shapes, at a whole rate."""
    layout = common_layout(headers)
    if layout is None:
        raise StoreError("there are no episodes to export")
    sizes = sorted({(header.state_dim, header.action_dim) for header in headers})
    if len(sizes) > 1:
        raise StoreError(f"these episodes have the state and action sizes {sizes}: export them apart")
    rates = sorted({header.control_hz for header in headers})
    if len(rates) > 1:
        raise StoreError(f"these episodes have the rates {rates} Hz; a LeRobotDataset has one: export them apart")
    if not rates[0].is_integer():
        raise StoreError(f"the episodes have {rates[0]} steps per second; lerobot knows whole numbers only")
    return layout, int(rates[0])


def _robot_type(headers: Sequence[EpisodeHeader]) -> str | None:
    """Return the robot that all episodes were recorded on, as the source called it; None for several, or if unknown."""
    environments = {header.env_id for header in headers}
    only = environments.pop() if len(environments) == 1 else ENVIRONMENT
    return None if only == ENVIRONMENT else only.removeprefix(f"{ENVIRONMENT}/")


def _plan(headers: Sequence[EpisodeHeader], layout: Layout, video: bool) -> _Plan:
    """Plan the columns. Those of the source are written again if all episodes were read from the same ones."""
    first, plan = headers[0], _Plan()
    source = first.source_columns if all(one.source_columns == first.source_columns for one in headers) else {}
    keys = {name: next(iter(columns_of(source, f"images/{name}")), None) for name in layout.cameras}
    plan.parts["cameras"] = {name: key or f"observation.images.{name}" for name, key in keys.items()}
    for camera, key in plan.parts["cameras"].items():
        shape = (*layout.cameras[camera], 3)
        plan.add(key, "video" if video else "image", shape, ["height", "width", "channels"], _pictures(camera))
    state, action = layout.dimensions_of(first.state_dim)
    plan.parts["state"] = _add_vector(plan, source, "state", state, first.state_dim, lambda episode: episode.state)
    plan.parts["action"] = _add_vector(plan, source, "action", action, first.action_dim, Episode.imitation_action)
    names, size = list(action.names) or placeholders("action", first.action_dim), (first.action_dim,)
    plan.add("vla_rl.action_policy", "float32", size, names, lambda episode: episode.action_policy)
    plan.add("vla_rl.action_sent", "float32", size, names, lambda episode: episode.action_sent)
    plan.add("vla_rl.source", "uint8", (1,), None, lambda episode: episode.source[:, None])
    plan.features[LABELS] = {"dtype": "string", "shape": (1,), "names": None}  # its values: see `_frames`
    unknown = [header.episode_id for header in headers if header.success is None]
    _add_extras(plan, headers, source, tells_outcomes=not unknown)
    plan.add(DONE, "bool", (1,), None, _is_last)
    plan.add("intervention", "bool", (1,), None, lambda episode: episode.source[:, None] == Source.HUMAN)
    if unknown:
        logger.warning(
            "%d of %d episodes have no outcome, the first is %s: the export has no %s and no %s of ours. Label them "
            "(vla-rl label), or export the others alone",
            *(len(unknown), len(headers), unknown[0], SUCCESS, REWARD),
        )
        return plan
    plan.add(SUCCESS, "bool", (1,), None, _succeeded)
    plan.add(REWARD, "float32", (1,), None, lambda episode: _succeeded(episode).astype(np.float32))
    return plan


def _add_vector(
    plan: _Plan, source: Mapping[str, Feature], part: str, dimensions: Dimensions, size: int, vector: Values
) -> list[str]:
    """Add the columns of the state or of the action, those of the source if they still fit. Returns their keys."""
    columns = columns_of(source, part)
    widths = [math.prod(column["shape"]) for column in columns.values()]
    if sum(widths) != size or dimensions_of(columns).names != dimensions.names or not columns:
        key = "observation.state" if part == "state" else "action"
        columns = {key: {"shape": [size], "names": list(dimensions.names) or placeholders(part, size)}}
        widths = [size]
    ends = np.cumsum(widths).tolist()
    for (key, column), end, width in zip(columns.items(), ends, widths, strict=True):
        plan.add(key, "float32", column["shape"], column["names"], _part(vector, end - width, end, column["shape"]))
    return list(columns)


def _add_extras(
    plan: _Plan, headers: Sequence[EpisodeHeader], source: Mapping[str, Feature], tells_outcomes: bool
) -> None:
    """Add the columns of the extras. One that all episodes have keeps the name that the source gave it."""
    held = Counter(name for header in headers for name in header.extras)
    for header in headers:
        for name, (dtype, row) in header.extras.items():
            column = ExtraColumn.of(name, dtype, row)
            for key, feature in columns_of(source, f"extras/{name}").items():
                if held[name] == len(headers) and (tells_outcomes or "success_at_least" not in feature):
                    column = column.as_in_source(key, feature)
            if plan.extras.setdefault(name, column) != column:
                other = plan.extras[name]
                raise StoreError(
                    f"the extra column {name!r} is {dtype} {list(row)} in {header.episode_id!r} and {other.dtype} "
                    f"{list(other.row)} in others; export them apart"
                )
    if len({column.key for column in plan.extras.values()}) < len(plan.extras):
        raise StoreError(f"two of the extra columns {sorted(plan.extras)} have the same name for lerobot; rename one")
    for name, column in plan.extras.items():
        plan.add(column.key, column.stored_dtype.name, column.shape, column.names, _extra(name, column))


def _pictures(camera: str) -> Values:
    return lambda episode: episode.images[camera]


def _part(vector: Values, begin: int, end: int, shape: Sequence[int]) -> Values:
    return lambda episode: vector(episode)[:, begin:end].reshape(-1, *shape)


def _extra(name: str, column: ExtraColumn) -> Values:
    """Return the rows of an extra; if it holds the outcome, and that was relabeled since, the new outcome."""

    def values(episode: Episode) -> NDArray[Any]:
        packed, least = column.pack(episode.extras.get(name), len(episode)), column.success_at_least
        if least is None or bool((packed >= least).any()) == episode.success:
            return packed
        return (_succeeded(episode) * max(least, 1)).astype(packed.dtype).reshape(packed.shape)

    return values


def _is_last(episode: Episode) -> NDArray[np.bool_]:
    return np.arange(len(episode))[:, None] == len(episode) - 1  # [T, 1]


def _succeeded(episode: Episode) -> NDArray[np.bool_]:
    return _is_last(episode) & bool(episode.success)


def _write_final(folder: Path, episode: Episode, plan: _Plan) -> None:
    """Write the observation after the last command, by the columns of the observations."""
    from safetensors.numpy import save_file

    if episode.final_state is None:
        return
    images = {camera: image[None] for camera, image in episode.final_images.items()}
    as_step = replace(episode, images=images, state=episode.final_state[None])
    rows = {key: np.ascontiguousarray(plan.values[key](as_step)[0]) for key in plan.observations()}
    folder.mkdir(exist_ok=True)
    save_file(rows, folder / f"{episode.episode_id}.safetensors")


def _frames(episode: Episode, plan: _Plan, log: EditLog) -> Iterator[dict[str, Any]]:
    labels = {name: getattr(episode, name) for name in EPISODE_LABELS} | only_where_declared(episode)
    extras = {name: plan.extras[name] for name in episode.extras}
    labels |= {"version": LABELS_VERSION, "parts": plan.parts}
    labels["extras"] = {name: [column.key, column.dtype, column.row] for name, column in extras.items()}
    if log.labels and episode.success is not None:  # what is unknown is a question again
        labels[AUTHORS] = [[one.time, one.user, one.old["success"], one.new["success"]] for one in log.labels]
    constants = {"task": episode.task, LABELS: json.dumps(labels)}
    rows = {key: values(episode) for key, values in plan.values.items()}
    for step in range(len(episode)):
        yield {key: row[step] for key, row in rows.items()} | constants
