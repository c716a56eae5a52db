"""Exchange with LeRobotDataset v3: episodes in from what lerobot has recorded, and out for its tools.

The import reads the files themselves, in whole episodes. It needs neither lerobot's import time nor its requests to a
hub for missing files. All that can be checked without decoding a picture is checked before the first episode is added.
What `export_lerobot` wrote comes back bit by bit, and labels with their authors; only video is lossy.

Dependency law: pyarrow, PIL and PyAV are imported where they are used.
"""

import logging
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import ConfigError, StoreError, UserError, did_you_mean
from vla_rl.core.json_files import parse_json
from vla_rl.core.pictures import resized
from vla_rl.core.progress import track
from vla_rl.core.types import Episode, Origin, Source, Uint8Array
from vla_rl.data.dataset_edits import DatasetEdits
from vla_rl.data.edits import EditLog, describe, edited
from vla_rl.data.episode_file import header_of, storable_columns
from vla_rl.data.episode_header import EpisodeHeader, Survey, check_camera_names
from vla_rl.data.lerobot_features import (
    ENVIRONMENT,
    EPISODE_LABELS,
    FINAL_FOLDER,
    LABELS,
    LABELS_VERSION,
    OURS,
    ExtraColumn,
    described,
    dimensions_of,
    undamaged_labels,
)
from vla_rl.data.lerobot_files import NOT_NUMERIC, LeRobotFiles
from vla_rl.data.lerobot_outcomes import Outcomes, find_outcomes, labels_of
from vla_rl.data.lerobot_timestamps import video_errors
from vla_rl.data.lerobot_unread import unread_parts
from vla_rl.data.store import EpisodeStore, add_new

logger = logging.getLogger(__name__)

# What lerobot writes into every dataset.
_BOOKKEEPING = frozenset(["timestamp", "frame_index", "episode_index", "index", "task_index"])
_INTERVENTION = ("intervention", "complementary_info.is_intervention")  # of its rollouts, of its HIL-SERL's buffers


@dataclass(frozen=True)
class LeRobotMapping:
    """Which columns of a LeRobotDataset become which parts of an episode. The defaults fit what lerobot records.

    As YAML, for `vla_rl.core.config.load_config`::

        state: [observation.state, observation.velocity]
        cameras: {front: observation.images.laptop}
        image_size: [96, 96]
        success: next.reward>=0.95

    Attributes:
        state: the columns that make up the state, one behind the other.
        action: the column of the action that was executed.
        cameras: our camera name -> column; empty: every camera, under the end of its own name.
        image_size: height and width that the pictures of every camera are scaled to; null: unchanged.
        units: name of a dimension -> its unit (``rad``, ``deg``, ``m`` ...), since lerobot declares none.
        env_id: of the episodes; empty: ``lerobot/ROBOT_TYPE``.
        episode_prefix: episodes are called PREFIX-000000 and so on; empty: the name of the dataset's folder.
        demonstrations: without a column ``intervention``, whether a demonstrator acted (else a policy).
        success: ``COLUMN`` of 0 and 1, or ``COLUMN>=NUMBER``: an episode with such a row is a success. true or false:
            the outcome if there is no column ``next.success``. null: ``next.success``, else ``next.reward`` if it holds
            0 and 1, else not labeled.
        leave_out: numbers of episodes that are not taken in.
    """

    state: tuple[str, ...] = ("observation.state",)
    action: str = "action"
    cameras: dict[str, str] = field(default_factory=dict)
    image_size: tuple[int, int] | None = None
    units: dict[str, str] = field(default_factory=dict)
    env_id: str = ""
    episode_prefix: str = ""
    demonstrations: bool = True
    success: bool | str | None = None
    leave_out: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.image_size is not None and min(self.image_size) < 1:
            raise ConfigError(f"mapping.lerobot.image_size is {list(self.image_size)}; expected pixels, [96, 96]")


def import_lerobot(dataset_dir: Path, store: EpisodeStore, mapping: LeRobotMapping | None = None) -> list[str]:
    """Add the episodes of a LeRobotDataset v3 to a store. What `export_lerobot` wrote becomes what it was.

    A demonstrator's episodes have the origin ``demo``. A column ``intervention``, or
    ``complementary_info.is_intervention`` of lerobot's HIL-SERL, marks a person's steps. The others are then a
    policy's, and the origin is ``real``. Other numeric columns become extras. Those that lerobot's policies would read,
    or that may hold more of the action, are logged. So are columns that are left out (texts, cameras that the mapping
    does not name). See `add_new` for episodes that the store has.

    Returns:
        Ids of the episodes that were added.

    Raises:
        StoreError: For a folder that is not a whole LeRobotDataset v3, or whose rate, rows and videos disagree. Nothing
            is added unless all that is known without the pictures is right.
        UserError: For a column of the mapping that the dataset does not have, or an episode that is not valid.
    """
    reader = _Reader(dataset_dir, mapping or LeRobotMapping())
    reader.survey()
    reader.log()
    return add_new(store, map(reader.read, track(reader.chosen, "importing", "episode")))


def survey_lerobot(dataset_dir: Path, mapping: LeRobotMapping | None = None) -> Survey:
    """Check a LeRobotDataset v3 as far as that goes without decoding a picture, and return what it holds.

    Raises:
        StoreError, UserError: As `import_lerobot`; the message names every episode that is wrong.
    """
    return _Reader(dataset_dir, mapping or LeRobotMapping()).survey()


class _Reader:
    """Reads the episodes of a dataset under a mapping, those with the numbers ``chosen``."""

    def __init__(self, folder: Path, mapping: LeRobotMapping) -> None:
        self._files = files = LeRobotFiles(Path(folder))
        with files.reading():
            count = len(files.episodes)
            if beyond := sorted({*mapping.leave_out} - {*range(count)}):
                raise UserError(f"mapping.lerobot.leave_out names {beyond}; {folder} has the episodes 0 to {count - 1}")
            self._edits = DatasetEdits(files).every()
            left_out = {index for index, changes in self._edits.items() if changes.get("left_out")}
            self.chosen = [index for index in range(count) if index not in left_out.union(mapping.leave_out)]
            self._mapping = mapping = _complete(mapping, files)
            self._state, self._action = self._dimensions(mapping.state), self._dimensions([mapping.action])
            names = {*self._state.names, *self._action.names}
            if unknown := sorted(mapping.units.keys() - names):
                raise UserError(
                    f"mapping.lerobot.units names {unknown[0]!r}; the state and action of {folder} have {sorted(names)}"
                )
            ours = LABELS in files.features or not count
            self._outcomes = Outcomes(LABELS) if ours else find_outcomes(files, mapping.success)
            self._used = {*_BOOKKEEPING, *mapping.state, mapping.action, *mapping.cameras.values()}

    def _dimensions(self, keys: Sequence[str]) -> Dimensions:
        try:
            names = dimensions_of({key: self._files.features[key] for key in keys}).names
        except UserError as error:
            raise UserError(f"{self._files.folder}: {error}") from error
        return Dimensions(names, tuple(self._mapping.units.get(name, "") for name in names))

    def survey(self) -> Survey:
        """Compare everything but the pictures, and return the headers. Raises StoreError or UserError."""
        with self._files.reading():
            headers, errors = self._headers()
            if wrong := {index: errors[index] for index in self.chosen if index in errors}:
                first, left_out = next(iter(wrong.values())), sorted({*self._mapping.leave_out, *wrong})
                others = f". To take in the others: mapping.lerobot.leave_out={left_out}"
                raise type(first)(f"{first}{others if len(wrong) < len(self.chosen) else ''}") from first
        found = Counter(header.success for header in headers)
        counts = f"{found[True]} success, {found[False]} failure, {found[None]} unknown"
        return Survey(tuple(headers), f"{self._outcomes.source}: {counts}")

    def log(self) -> None:
        """Log the edits that import applies, and the columns that it, or a policy, leaves out, as the survey found."""
        for index, changes in self._edits.items():
            if changes:
                logger.info("%s, episode %d: edited, %s", self._files.folder, index, describe(changes))
        others = {key: feature["dtype"] for key, feature in self._files.features.items() if key not in self._used}
        if others:
            named = ", ".join(f"{key} ({dtype})" for key, dtype in others.items())
            logger.warning("%s: columns that are left out: %s", self._files.folder, named)
        if self._outcomes.unread:
            logger.warning("%s: outcomes of episodes come from %s", self._files.folder, self._outcomes.source)
        mapping = self._mapping
        if LABELS not in self._files.features:
            unread = self._used - {*mapping.state, mapping.action, *mapping.cameras.values()}
            for sentence in unread_parts(self._files, mapping.state, mapping.action, unread):
                logger.warning("%s: %s", self._files.folder, sentence)

    def _headers(self) -> tuple[list[EpisodeHeader], dict[int, UserError]]:
        """Return the headers of the episodes that are right, and what is wrong with the others."""
        files, cameras = self._files, self._mapping.cameras
        sizes = {name: self._mapping.image_size or files.declared_size(key) for name, key in sorted(cameras.items())}
        stamps = {number: np.arange(row["length"]) / files.fps for number, row in enumerate(files.episodes)}
        headers: list[EpisodeHeader] = []
        errors: dict[int, UserError] = {}
        for index in track(self.chosen, "checking", "episode"):
            try:
                table = files.table(index)
                stamps[index] = files.stamps(index, table)
                headers.append(replace(header_of(self._episode(index, table, {})), cameras=sizes))
            except UserError as error:
                errors[index] = error
        for key in sorted({*cameras.values()}):
            if files.features[key]["dtype"] == "video":
                spans = {index: files.span(index, key) for index in stamps}
                times = {file: files.frame_times(file) for file in {span.file for span in spans.values()}}
                where = f"{files.folder}, camera {key}"
                errors = {**video_errors(times, spans, stamps, files.fps, where), **errors}
        return headers, errors

    def read(self, index: int) -> tuple[Episode, EditLog]:
        files, size = self._files, self._mapping.image_size
        with files.reading():
            table = files.table(index)
            images = {
                name: files.pictures(index, key, table, size) for name, key in sorted(self._mapping.cameras.items())
            }
            episode = self._episode(index, table, images)
        tasks = files.episodes[index]["tasks"]
        if len(tasks) > 1 and "task" not in self._edits.get(index, {}):
            logger.warning(
                "episode %d of %s has the tasks %s; all of it becomes %r, the task of most rows. "
                "Split it to keep them apart",
                *(index, files.folder, list(tasks), episode.task),
            )
        if "success" in self._edits.get(index, {}) or not (log := labels_of(table)).entries:
            return episode, EditLog("")
        return replace(episode, success=log.entries[0].old["success"]), log

    def _episode(self, index: int, table: Mapping[str, Any], images: Mapping[str, Uint8Array]) -> Episode:
        files, mapping = self._files, self._mapping
        length = int(files.episodes[index]["length"])

        def numbers(key: str) -> NDArray[Any]:
            if key not in table:
                raise StoreError(f"{files.folder}: meta/info.json declares {key}, its data files lack it; copy it anew")
            self._used.add(key)
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
            success=None,
            terminated=False,
            origin=Origin.DEMO if mapping.demonstrations else Origin.REAL,
            policy_version=-1 if mapping.demonstrations else 0,
            seed=None,
            control_hz=files.fps,
            env_id=mapping.env_id,
            state_dimensions=self._state,
            action_dimensions=self._action,
        )
        if LABELS in table:
            self._used.update(OURS)
            episode = self._restore(episode, str(table[LABELS][0].as_py()), numbers)
        else:
            used = {*_BOOKKEEPING, *mapping.state, mapping.action}
            unused = [key for key in table if key not in used and files.features[key]["dtype"] not in NOT_NUMERIC]
            success = self._outcomes.of(numbers)  # next.done is true for an episode that was cut, too: a success ended
            episode = replace(episode, success=success, terminated=bool(success))
            episode = self._interpret(episode, {key: numbers(key) for key in unused})
        storable_columns(episode)
        return edited(episode.validate(), self._edits.get(index, {}))

    def _restore(self, episode: Episode, text: str, numbers: Callable[[str], NDArray[Any]]) -> Episode:
        """Return the episode as it was before `export_lerobot`."""
        length = len(episode)
        with undamaged_labels():
            labels = parse_json(text)
            if labels["version"] != LABELS_VERSION:
                raise StoreError(f"{LABELS} has version {labels['version']!r}, this program reads {LABELS_VERSION}")
            extras = {}
            for name, (key, dtype, row) in labels["extras"].items():
                values = numbers(key) if math.prod(row) > 0 else np.empty(0, dtype)
                extras[name] = ExtraColumn(key, dtype, tuple(row), tuple(row)).unpack(values, length)
            known = {name: labels[name] for name in EPISODE_LABELS} | {"origin": Origin(labels["origin"])}
            episode = replace(
                episode,
                action_policy=numbers("vla_rl.action_policy").reshape(length, -1),
                action_sent=numbers("vla_rl.action_sent").reshape(length, -1),
                source=numbers("vla_rl.source").astype(np.uint8),
                extras=extras,
                state_dimensions=_restored(episode.state_dimensions, labels.get("state_dimensions")),
                action_dimensions=_restored(episode.action_dimensions, labels.get("action_dimensions")),
                source_columns=labels.get("source_columns", {}),
                **known,
            )
            has_final = labels.get("has_final", False)
        return self._final(episode) if has_final else episode

    def _final(self, episode: Episode) -> Episode:
        """Return an exported episode with the observation after its last command."""
        from safetensors.numpy import load_file

        file, mapping = self._files.folder / FINAL_FOLDER / f"{episode.episode_id}.safetensors", self._mapping
        if not file.exists():
            logger.warning("%s is missing: the episode has no observation after its last command", file)
            return episode
        rows = load_file(file)
        state = [np.empty(0, np.float32), *(rows[key].astype(np.float32).ravel() for key in mapping.state)]
        images = {name: resized(rows[mapping.cameras[name]], mapping.image_size) for name in episode.images}
        return replace(episode, final_state=np.concatenate(state), final_images=images)

    def _interpret(self, episode: Episode, others: Mapping[str, NDArray[Any]]) -> Episode:
        """Return the episode with what lerobot's own optional columns say of it; the others become extras."""
        features, mapping, names = self._files.features, self._mapping, {key: _plain(key) for key in others}
        if repeated := [name for name, count in Counter(names.values()).items() if count > 1]:
            raise UserError(f"{self._files.folder}: two columns become the extra {repeated[0]!r}; rename one of them")
        source = {key: described(features[key], "state") for key in mapping.state}
        source[mapping.action] = described(features[mapping.action], "action")
        source |= {key: {"part": f"images/{camera}"} for camera, key in mapping.cameras.items()}
        source |= {key: described(features[key], f"extras/{name}") for key, name in names.items()}
        if self._outcomes.column in names:
            source[self._outcomes.column]["success_at_least"] = self._outcomes.least
        if marked := [others[key] for key in _INTERVENTION if key in others]:
            by_person = marked[0].reshape(len(episode)).astype(bool)
            acted = np.where(by_person, Source.HUMAN, Source.POLICY).astype(np.uint8)
            episode = replace(episode, source=acted, origin=Origin.REAL, policy_version=0)
        return replace(episode, extras={name: others[key] for key, name in names.items()}, source_columns=source)


def _plain(key: str) -> str:
    """Return the name of a column as the name of a file."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", key)


def _complete(mapping: LeRobotMapping, files: LeRobotFiles) -> LeRobotMapping:
    """Return the mapping with its defaults filled in from the dataset. Raises UserError for missing columns."""
    parts = _exported_parts(files)
    names = {key: _plain(key.split(".", 2)[-1]) for key in files.cameras()}
    count = Counter(names.values())
    names = {key: name if count[name] == 1 else _plain(key.removeprefix("observation.")) for key, name in names.items()}
    cameras = mapping.cameras or parts.get("cameras") or {name: key for key, name in names.items()}
    state, action = mapping.state, mapping.action
    if LABELS in files.features:  # an export names its own columns, and has none for an empty state
        default = LeRobotMapping()
        state = tuple(parts.get("state", state)) if state == default.state else state
        state = tuple(key for key in state if key in files.features)
        action = parts.get("action", [action])[0] if action == default.action else action
    for key in (*state, action, *cameras.values()):
        if key not in files.features:
            raise UserError(f"{files.folder} has no column {key!r}.{did_you_mean(key, files.features)}")
    check_camera_names(cameras, "mapping.lerobot.cameras={NAME: COLUMN}")
    folder_name = _plain(files.folder.resolve().name).lstrip("._-") or "lerobot"
    return replace(
        mapping,
        state=state,
        action=action,
        cameras=cameras,
        env_id=mapping.env_id or "/".join(filter(None, (ENVIRONMENT, files.robot_type))),
        episode_prefix=mapping.episode_prefix or folder_name[:90],
    )


def _exported_parts(files: LeRobotFiles) -> dict[str, Any]:
    """Return the columns that hold the state, the action and the cameras of an export; empty for another dataset."""
    if LABELS not in files.features or not files.episodes:
        return {}
    with undamaged_labels():
        parts: dict[str, Any] = parse_json(str(files.table(0)[LABELS][0].as_py()))["parts"]
        return {**parts, "cameras": {str(name): str(key) for name, key in parts["cameras"].items()}}


def _restored(found: Dimensions, raw: dict[str, Any] | None) -> Dimensions:
    """Return the dimensions that an episode declared before its export; the columns' own names must be theirs."""
    if raw is None:
        return UNDECLARED
    declared = Dimensions.from_plain(raw)
    if declared.names != found.names:
        raise StoreError(
            f"meta/info.json names the dimensions {list(found.names)}, {LABELS} {list(declared.names)}; export anew"
        )
    units = zip(found.unit_of_each(), declared.unit_of_each(), strict=True)
    return Dimensions(found.names, tuple(given or known for given, known in units))  # those of the mapping come first
