"""Writes small LeRobotDatasets v3 as lerobot lays them out, so that a trap can break one fact of one file.

The mean gray level of every picture says which episode and row it belongs to.
"""

import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import Episode
from vla_rl.data.lerobot_import import LeRobotMapping, import_lerobot
from vla_rl.data.store import EpisodeStore

FPS = 30
STATE, ACTION, FRONT = "observation.state", "action", "observation.images.front"
JOINTS = ["shoulder_pan.pos", "elbow.pos", "gripper.pos"]
_LEVELS = 8  # steps of gray between one row and the next, more than a lossy video is off
_BOOKKEEPING = {"timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64"}
_BOOKKEEPING |= {"task_index": "int64"}


@dataclass(frozen=True)
class Video:
    """A video of all episodes of a dataset.

    Attributes:
        times_s: Times of its frames; None: one for each row, at the rate of the dataset.
        levels: Gray level of each frame; None: that of its row.
        spans_s: Begin and end of each episode in it; None: one behind the other.
    """

    times_s: Sequence[float] | None = None
    levels: Sequence[int] | None = None
    spans_s: Sequence[tuple[float, float]] | None = None


@dataclass(frozen=True)
class Dataset:
    """What `write` writes.

    Attributes:
        lengths: Rows of each episode.
        columns: Numeric column -> its names and its values in all rows, [N] or [N, ...].
        cameras: Camera column -> a video, or for images their height and width.
        fps: Rate that the dataset declares.
        stamps_s: ``timestamp`` of each episode's rows; None: as the rate says.
        robot_type: As in lerobot.
        features: Changes to the declared features.
    """

    lengths: Sequence[int] = (6, 5)
    columns: Mapping[str, tuple[Any, NDArray[Any]]] = field(default_factory=dict)
    cameras: Mapping[str, Video | tuple[int, int]] = field(default_factory=lambda: {FRONT: (8, 8)})
    fps: float = FPS
    stamps_s: Sequence[Sequence[float]] | None = None
    robot_type: str | None = "so101_follower"
    features: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def having(self, **columns: NDArray[Any]) -> "Dataset":
        """Return the dataset with unnamed columns; ``next_reward`` stands for ``next.reward``."""
        more = {name.replace("_", ".", 1): (None, values) for name, values in columns.items()}
        return replace(self, columns={**self.columns, **more})


def values(names: Sequence[str], rows: int) -> NDArray[np.float32]:
    """Return one number per joint and row that says which joint it is, float32 [rows, len(names)]."""
    first = np.array([len(name) for name in names], dtype=np.float32)
    return (first + np.arange(rows)[:, None] / 100).astype(np.float32)


def arm(names: Any = None, lengths: Sequence[int] = (6, 5), **changes: Any) -> Dataset:
    """Return a dataset of an arm with three joints; ``names`` as its features declare them."""
    order = names if isinstance(names, list) and len(names) == len(JOINTS) else JOINTS
    column = (JOINTS if names is None else names, values(order, sum(lengths)))
    return Dataset(lengths, {STATE: column, ACTION: column}, **changes)


def level(episode: int, row: int) -> int:
    """Return the gray level of the picture that belongs to a row of one of the first three episodes."""
    return (1 + 10 * episode + row) * _LEVELS


def write(folder: Path, dataset: Dataset) -> Path:
    """Write a dataset into a new folder and return it."""
    import pyarrow
    import pyarrow.parquet as parquet

    total = sum(dataset.lengths)
    episode = np.repeat(np.arange(len(dataset.lengths)), dataset.lengths)
    row = np.concatenate([np.arange(length) for length in dataset.lengths])
    stamps = row / dataset.fps if dataset.stamps_s is None else np.concatenate(dataset.stamps_s)
    book = dict(zip(_BOOKKEEPING, (stamps, row, episode, np.arange(total), np.zeros(total)), strict=True))
    table = {name: pyarrow.array(book[name].astype(dtype)) for name, dtype in _BOOKKEEPING.items()}
    features: dict[str, Any] = {
        name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in _BOOKKEEPING.items()
    }
    for key, (names, column) in dataset.columns.items():
        shape = list(column.shape[1:]) or [1]
        features[key] = {"dtype": column.dtype.name, "shape": shape, "names": names}
        flat = pyarrow.array(column.ravel())
        is_scalar = math.prod(shape) == 1
        table[key] = flat if is_scalar else pyarrow.FixedSizeListArray.from_arrays(flat, math.prod(shape))
    metadata: dict[str, Any] = {
        "episode_index": np.arange(len(dataset.lengths)),
        "tasks": [["put it in"]] * len(dataset.lengths),
        "length": list(dataset.lengths),
        **dict.fromkeys(("data/chunk_index", "data/file_index"), [0] * len(dataset.lengths)),
        **dict.fromkeys(("meta/episodes/chunk_index", "meta/episodes/file_index"), [0] * len(dataset.lengths)),
        "dataset_from_index": np.cumsum([0, *dataset.lengths[:-1]]),
        "dataset_to_index": np.cumsum(dataset.lengths),
    }
    levels = [level(*place) for place in zip(episode.tolist(), row.tolist(), strict=True)]
    for key, camera in dataset.cameras.items():
        size = (32, 32) if isinstance(camera, Video) else camera
        shape, names = [*size, 3], ["height", "width", "channels"]
        features[key] = {"dtype": "video" if isinstance(camera, Video) else "image", "shape": shape, "names": names}
        if isinstance(camera, Video):
            metadata |= _write_video(folder, key, camera, dataset, levels)
        else:
            cells = [{"bytes": _png(_picture(gray, size)), "path": None} for gray in levels]
            table[key] = pyarrow.array(cells, pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()}))
    for key, changes in dataset.features.items():
        features[key] = {**features[key], **changes}
    info = {
        "codebase_version": "v3.0",
        "fps": dataset.fps,
        "features": features,
        "robot_type": dataset.robot_type,
        "total_episodes": len(dataset.lengths),
        "total_frames": total,
        "total_tasks": 1,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
        "splits": {"train": f"0:{len(dataset.lengths)}"},
    }
    for place in ("data/chunk-000", "meta/episodes/chunk-000"):
        (folder / place).mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    tasks = pyarrow.table({"task_index": [0], "task": ["put it in"]})
    parquet.write_table(tasks, folder / "meta/tasks.parquet")
    parquet.write_table(pyarrow.table(table), folder / "data/chunk-000/file-000.parquet")
    parquet.write_table(pyarrow.table(metadata), folder / "meta/episodes/chunk-000/file-000.parquet")
    return folder


def _write_video(folder: Path, key: str, video: Video, dataset: Dataset, levels: Sequence[int]) -> dict[str, Any]:
    """Write a video file and return what the table of episodes says of it."""
    import av

    times = np.arange(len(levels)) / FPS if video.times_s is None else np.asarray(video.times_s)
    shown = levels if video.levels is None else video.levels
    file = folder / "videos" / key / "chunk-000" / "file-000.mp4"
    file.parent.mkdir(parents=True)
    ticks = 100 * FPS  # a second
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"g": "2", "qp": "0", "bf": "0"})  # lossless
        stream.width = stream.height = 32
        stream.pix_fmt = "yuv420p"
        stream.codec_context.time_base = Fraction(1, ticks)
        for gray, time_s in zip(shown, times, strict=True):
            frame = av.VideoFrame.from_ndarray(_picture(gray, (32, 32)), format="rgb24")
            frame.pts, frame.time_base = round(time_s * ticks), Fraction(1, ticks)
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    ends = np.cumsum(dataset.lengths) / dataset.fps
    spans = video.spans_s or [*zip([0.0, *ends[:-1]], ends, strict=True)]
    begins, stops = zip(*spans, strict=True)
    places = dict.fromkeys((f"videos/{key}/chunk_index", f"videos/{key}/file_index"), [0] * len(spans))
    return {**places, f"videos/{key}/from_timestamp": list(begins), f"videos/{key}/to_timestamp": list(stops)}


def _picture(gray: int, size: tuple[int, int]) -> NDArray[np.uint8]:
    """A picture whose mean is a gray level, with a gradient, so that it does not look like a covered camera."""
    columns = gray % 256 + np.linspace(-7, 7, size[1])
    return np.broadcast_to(columns[None, :, None], (*size, 3)).clip(0, 255).astype(np.uint8)


def _png(picture: NDArray[np.uint8]) -> bytes:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(picture).save(content, "PNG")
    return content.getvalue()


def imported(
    folder: Path, dataset: Dataset, mapping: LeRobotMapping | None = None, name: str = "data"
) -> list[Episode]:
    """What becomes of a dataset."""
    store = EpisodeStore(folder / f"{name}-store")
    import_lerobot(write(folder / name, dataset), store, mapping)
    return [store.read(episode_id) for episode_id in store.ids()]
