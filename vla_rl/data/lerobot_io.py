"""Exchange with LeRobotDataset v3: episodes out for lerobot's tools, and in from what lerobot has recorded.

Export goes through lerobot's own writer, so that statistics, tasks and videos are what its tools expect. What lerobot
has no field for travels in columns named ``vla_rl.*`` (names that begin with ``action`` or ``observation`` would become
inputs and outputs of lerobot's policies), so that an episode comes back bit by bit; only video is lossy. Import reads
the files themselves, in whole episodes: it needs neither lerobot's import time nor its way of asking a hub for what it
does not find.

Dependency law: lerobot, pyarrow, PIL and PyAV are imported where they are used.
"""

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError, UserError, did_you_mean
from vla_rl.core.outside import parse_json
from vla_rl.core.progress import track
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.cache_files import common_layout
from vla_rl.data.episode_header import EpisodeHeader
from vla_rl.data.lerobot_files import LeRobotFiles
from vla_rl.data.store import EpisodeStore, add_unless_same

LABELS = "vla_rl.labels"
LABELS_VERSION = 1

# What lerobot writes into every dataset, and what an export derives from the rest of an episode.
_BOOKKEEPING = frozenset(["timestamp", "frame_index", "episode_index", "index", "task_index"])
_INTERVENTION = ("intervention", "complementary_info.is_intervention")  # of its rollouts, of its HIL-SERL's buffers
_NARROWEST_VIDEO = 32  # pixels
_NOT_NUMERIC = frozenset(["image", "video", "string", "language"])
_EPISODE_LABELS = ("episode_id", "success", "terminated", "origin", "policy_version", "seed", "control_hz", "env_id")


@dataclass(frozen=True)
class LeRobotMapping:
    """Which columns of a LeRobotDataset become which parts of an episode. The defaults fit what lerobot records.

    As YAML, for `vla_rl.core.config.load_config`::

        state: [observation.state, observation.velocity]
        cameras: {front: observation.images.laptop}
        success: true

    Attributes:
        state: the columns that make up the state, one behind the other.
        action: the column of the action that was executed.
        cameras: our camera name -> column; empty: every camera, under the end of its own name.
        env_id: of the episodes; empty: ``lerobot/ROBOT_TYPE``.
        episode_prefix: episodes are called PREFIX-000000 and so on; empty: the name of the dataset's folder.
        demonstrations: without a column ``intervention``, whether a demonstrator acted (else a policy).
        success: the outcome of the episodes if there is no column ``next.success``; null: not labelled.
    """

    state: tuple[str, ...] = ("observation.state",)
    action: str = "action"
    cameras: dict[str, str] = field(default_factory=dict)
    env_id: str = ""
    episode_prefix: str = ""
    demonstrations: bool = True
    success: bool | None = None


@dataclass(frozen=True, slots=True)
class _ExtraColumn:
    """How an extra column [T, *row] stands in a LeRobotDataset: as [T, width], under a name that lerobot can bear."""

    key: str
    dtype: str
    row: tuple[int, ...]

    @property
    def width(self) -> int:
        return math.prod(self.row)

    @property
    def stored_dtype(self) -> np.dtype[Any]:
        dtype = np.dtype(self.dtype)
        return np.dtype(np.int64) if dtype == np.uint64 else dtype  # the bits, since torch reads no uint64

    def pack(self, extra: NDArray[Any] | None, length: int) -> NDArray[Any]:
        """An episode's extra as lerobot's column [T, width]; zeros for an episode that does not have it."""
        if extra is None:
            return np.zeros((length, self.width), self.stored_dtype)
        return np.ascontiguousarray(extra).view(self.stored_dtype).reshape(length, self.width)

    def unpack(self, values: NDArray[Any], length: int) -> NDArray[Any]:
        """The extra [T, *row] from lerobot's column."""
        return values.astype(self.stored_dtype, copy=False).view(self.dtype).reshape(length, *self.row)


@contextmanager
def _own_scheduling() -> Iterator[None]:
    """As root, the encoder of AV1 gives the whole process the highest real-time priority, and leaves it so."""
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        if os.sched_getscheduler(0) != policy:
            os.sched_setscheduler(0, policy, parameters)


def export_lerobot(store: EpisodeStore, out_dir: Path, ids: Sequence[str] | None = None, video: bool = False) -> Path:
    """Write episodes as a LeRobotDataset v3.

    ``action`` is what imitation should reproduce (`Episode.imitation_action`); ``next.reward`` is 1 at the last step of
    a success; ``intervention`` marks the steps that a person decided.

    Args:
        store: where the episodes are.
        out_dir: the folder to make; it appears when it is complete.
        ids: the episodes, in this order; None for all.
        video: cameras as AV1 video (small, lossy) instead of PNG images (exact).

    Raises:
        StoreError: for a folder that exists, no episodes, episodes of unequal shapes or rates, or a rate that is not a
            whole number (lerobot knows no others).
        UserError: if lerobot is not installed.
    """
    try:
        from lerobot.datasets.lerobot_dataset import LeRobotDataset
        from lerobot.utils.utils import SuppressProgressBars
    except ImportError as error:
        raise UserError(f"exporting needs {error.name}; install vla-rl with the extra 'train'") from error

    out_dir = Path(out_dir)
    if out_dir.exists():
        raise StoreError(f"{out_dir} exists; export to a new folder")
    headers = [store.read_header(episode_id) for episode_id in (store.ids() if ids is None else ids)]
    fps = _common_fps(headers)
    if video and any(width < _NARROWEST_VIDEO for _, width in headers[0].cameras.values()):
        raise StoreError(
            f"the encoder of AV1 crashes on cameras narrower than {_NARROWEST_VIDEO} pixels, these are "
            f"{dict(headers[0].cameras)}; export images instead of video"
        )
    extras = _extra_columns(headers)
    environments = {header.env_id for header in headers}
    temporary = out_dir.with_name(f".{out_dir.name}.{os.getpid()}.tmp")
    try:
        dataset = LeRobotDataset.create(
            repo_id=f"local/{out_dir.name}",
            fps=fps,
            root=temporary,
            features=_features(headers[0], extras, video),
            robot_type=environments.pop() if len(environments) == 1 else None,
            use_videos=video,
            video_backend="pyav",
        )
        with SuppressProgressBars(), _own_scheduling():
            for header in track(headers, "exporting", "episode"):
                for frame in _frames(store.read(header.episode_id), extras):
                    dataset.add_frame(frame)
                dataset.save_episode(parallel_encoding=False)
        dataset.finalize()
        temporary.rename(out_dir)
    except OSError as error:
        raise StoreError(f"cannot export to {out_dir}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return out_dir


def _common_fps(headers: Sequence[EpisodeHeader]) -> int:
    """Their control rate; raises StoreError unless there are episodes, of equal shapes, at one whole rate."""
    if common_layout(headers) is None:
        raise StoreError("there are no episodes to export")
    sizes = sorted({(header.state_dim, header.action_dim) for header in headers})
    if len(sizes) > 1:
        raise StoreError(f"these episodes have the state and action sizes {sizes}: export them apart")
    rates = sorted({header.control_hz for header in headers})
    if len(rates) > 1:
        raise StoreError(f"these episodes have the rates {rates} Hz; a LeRobotDataset has one: export them apart")
    if not rates[0].is_integer():
        raise StoreError(f"the episodes have {rates[0]} steps per second; lerobot knows whole numbers only")
    return int(rates[0])


def _extra_columns(headers: Sequence[EpisodeHeader]) -> dict[str, _ExtraColumn]:
    """The columns for the extras that any of the episodes has, by extra."""
    columns: dict[str, _ExtraColumn] = {}
    for header in headers:
        for name, (dtype, row) in header.extras.items():
            # lerobot takes every column with "image" in its name for pictures when it merges statistics.
            column = _ExtraColumn(f"vla_rl.extras.{re.sub('image', 'img', name, flags=re.IGNORECASE)}", dtype, row)
            if columns.setdefault(name, column) != column:
                raise StoreError(
                    f"the extra column {name!r} is {dtype} {list(row)} in {header.episode_id!r} and "
                    f"{columns[name].dtype} {list(columns[name].row)} in others; export them apart"
                )
    if len({column.key for column in columns.values()}) < len(columns):
        raise StoreError(f"two of the extra columns {sorted(columns)} have the same name for lerobot; rename one")
    return columns


def _features(header: EpisodeHeader, extras: Mapping[str, _ExtraColumn], video: bool) -> dict[str, dict[str, Any]]:
    """lerobot's description of the columns."""
    features: dict[str, dict[str, Any]] = {
        f"observation.images.{camera}": {
            "dtype": "video" if video else "image",
            "shape": (*size, 3),
            "names": ["height", "width", "channels"],
        }
        for camera, size in header.cameras.items()
    }
    vectors = {"observation.state": ("state", header.state_dim)}
    vectors |= dict.fromkeys(("action", "vla_rl.action_policy", "vla_rl.action_sent"), ("action", header.action_dim))
    for key, (name, size) in vectors.items():
        names = [f"{name}_{number}" for number in range(size)]
        features[key] = {"dtype": "float32", "shape": (size,), "names": names}
    scalars = {"next.reward": "float32", "next.done": "bool", "next.success": "bool", "intervention": "bool"}
    scalars |= {"vla_rl.source": "uint8", LABELS: "string"}
    features |= {key: {"dtype": dtype, "shape": (1,), "names": None} for key, dtype in scalars.items()}
    for column in extras.values():
        features[column.key] = {"dtype": column.stored_dtype.name, "shape": (column.width,), "names": None}
    return {key: feature for key, feature in features.items() if 0 not in feature["shape"]}  # lerobot has no empty ones


def _frames(episode: Episode, extras: Mapping[str, _ExtraColumn]) -> Iterator[dict[str, Any]]:
    """The steps of an episode as lerobot takes them."""
    length = len(episode)
    last = np.arange(length)[:, None] == length - 1  # [T, 1]
    succeeded = last & bool(episode.success)
    columns: dict[str, NDArray[Any]] = {
        "observation.state": episode.state,
        "action": episode.imitation_action(),
        "vla_rl.action_policy": episode.action_policy,
        "vla_rl.action_sent": episode.action_sent,
        "vla_rl.source": episode.source[:, None],
        "intervention": episode.source[:, None] == Source.HUMAN,
        "next.reward": succeeded.astype(np.float32),
        "next.done": last,
        "next.success": succeeded,
    }
    columns |= {f"observation.images.{camera}": image for camera, image in episode.images.items()}
    for name, column in extras.items():
        columns[column.key] = column.pack(episode.extras.get(name), length)
    columns = {key: column for key, column in columns.items() if column.size > 0}
    labels = {name: getattr(episode, name) for name in _EPISODE_LABELS}
    labels["version"] = LABELS_VERSION
    labels["extras"] = {name: [extras[name].key, extras[name].dtype, extras[name].row] for name in episode.extras}
    constants = {"task": episode.task, LABELS: json.dumps(labels)}
    for step in range(length):
        yield {key: column[step] for key, column in columns.items()} | constants


def import_lerobot(dataset_dir: Path, store: EpisodeStore, mapping: LeRobotMapping | None = None) -> list[str]:
    """Add the episodes of a LeRobotDataset v3 to a store. What `export_lerobot` wrote becomes what it was.

    A demonstrator's episodes have the origin ``demo``; with a column ``intervention``, or the
    ``complementary_info.is_intervention`` of lerobot's HIL-SERL, the steps that it marks are a person's, the others a
    policy's, and the origin is ``real``. Numeric columns that mean nothing to us become extras.
    Episodes that the store already has, with the same content, are left out, so that an import can be repeated; another
    one under a taken id gets an id ending in ``.2``, ``.3`` ...

    Returns:
        the ids of the episodes that were added.

    Raises:
        StoreError: for a folder that is not a whole LeRobotDataset v3.
        UserError: for a column of the mapping that the dataset does not have, or an episode that is not valid.
    """
    files = LeRobotFiles(Path(dataset_dir))
    mapping = _complete(mapping or LeRobotMapping(), files)
    added = []
    for index in track(range(len(files.episodes)), "importing", "episode"):
        episode_id = add_unless_same(store, _read_episode(files, index, mapping).validate())
        if episode_id is not None:
            added.append(episode_id)
    return added


def _complete(mapping: LeRobotMapping, files: LeRobotFiles) -> LeRobotMapping:
    """The mapping with its defaults filled in from the dataset. Raises UserError for columns that are not there."""
    cameras = mapping.cameras or {key.split(".", 2)[-1]: key for key in files.cameras()}
    state = mapping.state if LABELS not in files.features else tuple(k for k in mapping.state if k in files.features)
    for key in (*state, mapping.action, *cameras.values()):
        if key not in files.features:
            raise UserError(f"{files.folder} has no column {key!r}.{did_you_mean(key, files.features)}")
    folder_name = re.sub(r"[^A-Za-z0-9._-]", "_", files.folder.resolve().name).lstrip("._-") or "lerobot"
    return replace(
        mapping,
        state=state,
        cameras=cameras,
        env_id=mapping.env_id or f"lerobot/{files.robot_type or 'unknown'}",
        episode_prefix=mapping.episode_prefix or folder_name[:90],
    )


def _read_episode(files: LeRobotFiles, index: int, mapping: LeRobotMapping) -> Episode:
    table = files.table(index)
    length = int(files.episodes[index]["length"])
    images = {camera: files.pictures(index, key, table) for camera, key in sorted(mapping.cameras.items())}

    def numbers(key: str) -> NDArray[Any]:
        return files.numbers(table[key])

    state = [numbers(key).astype(np.float32).reshape(length, -1) for key in mapping.state]
    action = numbers(mapping.action).astype(np.float32).reshape(length, -1)
    episode = Episode(
        episode_id=f"{mapping.episode_prefix}-{index:06d}",
        images=images,
        state=np.concatenate([np.empty((length, 0), np.float32), *state], axis=1),
        action_policy=action,
        action_sent=action,
        source=np.full(length, Source.DEMO if mapping.demonstrations else Source.POLICY, np.uint8),
        task=files.task(index, table),
        success=mapping.success,
        terminated=False,
        origin=Origin.DEMO if mapping.demonstrations else Origin.REAL,
        policy_version=-1 if mapping.demonstrations else 0,
        seed=None,
        control_hz=files.fps,
        env_id=mapping.env_id,
    )
    if LABELS in table:
        return _restore(episode, str(table[LABELS][0].as_py()), numbers)
    used = {*_BOOKKEEPING, *mapping.state, mapping.action}
    unused = [key for key in table if key not in used and files.features[key]["dtype"] not in _NOT_NUMERIC]
    return _interpret(episode, unused, numbers)


def _restore(episode: Episode, text: str, numbers: Callable[[str], NDArray[Any]]) -> Episode:
    """The episode as it was before `export_lerobot`."""
    length = len(episode)
    try:
        labels = parse_json(text)
        if labels["version"] != LABELS_VERSION:
            raise StoreError(f"{LABELS} has version {labels['version']!r}, this program reads {LABELS_VERSION}")
        extras = {}
        for name, (key, dtype, row) in labels["extras"].items():
            column = _ExtraColumn(key, dtype, tuple(row))
            values = numbers(key) if column.width > 0 else np.empty(0, dtype)
            extras[name] = column.unpack(values, length)
        known = {name: labels[name] for name in _EPISODE_LABELS} | {"origin": Origin(labels["origin"])}
        return replace(
            episode,
            action_policy=numbers("vla_rl.action_policy").reshape(length, -1),
            action_sent=numbers("vla_rl.action_sent").reshape(length, -1),
            source=numbers("vla_rl.source").astype(np.uint8),
            extras=extras,
            **known,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StoreError(f"the column {LABELS} is damaged: {error!r}") from error


def _interpret(episode: Episode, unused: Sequence[str], numbers: Callable[[str], NDArray[Any]]) -> Episode:
    """The episode with what lerobot's own optional columns say about it; the others become extras."""
    extras = {re.sub(r"[^A-Za-z0-9._-]", "_", key): numbers(key) for key in unused}
    success = episode.success
    if "next.success" in extras:
        success = bool(extras["next.success"].any())
    if marked := [extras[key] for key in _INTERVENTION if key in extras]:
        by_person = marked[0].reshape(len(episode)).astype(bool)
        source = np.where(by_person, Source.HUMAN, Source.POLICY).astype(np.uint8)
        episode = replace(episode, source=source, origin=Origin.REAL, policy_version=0)
    # lerobot's next.done does not tell an episode that ended from one that was cut; a success has ended.
    return replace(episode, success=success, terminated=bool(success), extras=extras)
