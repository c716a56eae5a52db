"""Reads the files of a LeRobotDataset v3, an episode at a time: parquet tables, PNG images, videos.

Random access through lerobot decodes frame by frame; episodes are decoded here as a whole, which is some hundred times
faster for video. pyarrow, PIL and PyAV are imported where they are used.
"""

import contextlib
import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError, UserError, one_line
from vla_rl.core.outside import read_json
from vla_rl.core.types import Uint8Array

logger = logging.getLogger(__name__)


class LeRobotFiles:
    """A LeRobotDataset v3 in a folder.

    Attributes:
        features: column name -> its dtype, shape and names, as ``meta/info.json`` has them.
        fps: steps per second.
        robot_type: as recorded; "" if it was not.
        episodes: one row for each episode: length, tasks, and where its data is.

    Raises:
        StoreError: if the folder holds no dataset of version 3, or not a whole one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with self._reading():
            import pyarrow.parquet as parquet

            info = read_json(folder / "meta/info.json")
            version = str(info["codebase_version"])
            if not version.startswith("v3."):
                raise StoreError(
                    f"{folder} is a LeRobotDataset {version}, this program reads v3.0; "
                    "convert it with lerobot.scripts.convert_dataset_v21_to_v30"
                )
            self.features: dict[str, dict[str, Any]] = info["features"]
            self.fps = float(info["fps"])
            self.robot_type = str(info["robot_type"] or "")
            self._data_path, self._video_path = info["data_path"], info["video_path"]
            files = sorted((folder / "meta/episodes").glob("*/*.parquet"))
            rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
            self.episodes = sorted(rows, key=lambda row: int(row["episode_index"]))
            if len(self.episodes) != info["total_episodes"]:
                raise ValueError(f"{len(self.episodes)} of {info['total_episodes']} episodes; was it finalized?")

    def task(self, index: int, table: dict[str, Any]) -> str:
        """The episode's task sentence: an episode of ours has one. Of several, which stand there in no order of time,
        it is the one that most of the frames in its table have, and that is said.
        """
        named = [str(task) for task in self.episodes[index]["tasks"]]
        if len(named) == 1:
            return named[0]
        import pyarrow.parquet as parquet

        with self._reading():
            every = parquet.read_table(self.folder / "meta/tasks.parquet").to_pydict()
            sentences = next(column for name, column in every.items() if name != "task_index")
            most = int(np.bincount(self.numbers(table["task_index"])).argmax())
            task = str(sentences[every["task_index"].index(most)])
        logger.warning(
            "episode %d of %s has the tasks %s; all of it is taken as %r, which most of its frames have: split it if "
            "they are to be told apart",
            index,
            self.folder,
            named,
            task,
        )
        return task

    def cameras(self) -> list[str]:
        """The columns that hold pictures."""
        return [key for key, feature in self.features.items() if feature["dtype"] in ("image", "video")]

    def table(self, index: int) -> dict[str, Any]:
        """The episode's columns, name -> pyarrow column, without those that are in videos."""
        import pyarrow.parquet as parquet

        with self._reading():
            row = self.episodes[index]
            file = self._data_path.format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"])
            filters = [("episode_index", "==", row["episode_index"])]
            table = parquet.read_table(self._inside(file), filters=filters)
            if len(table) != row["length"]:
                raise ValueError(f"{file} has {len(table)} of {row['length']} steps of episode {index}")
            return {key: table[key] for key in table.column_names}

    def numbers(self, column: Any) -> NDArray[Any]:
        """A numeric column of a table as an array [T, ...], [T] for single numbers."""
        import pyarrow

        with self._reading():
            values = column.combine_chunks()
            length = len(values)
            row: list[int] = []
            while isinstance(values, pyarrow.ExtensionArray) or pyarrow.types.is_nested(values.type):
                if isinstance(values, pyarrow.ExtensionArray):
                    values = values.storage
                else:
                    outer, values = len(values), values.flatten()
                    row.append(len(values) // outer)
            return values.to_numpy(zero_copy_only=False).reshape(length, *row)

    def pictures(self, index: int, key: str, table: dict[str, Any]) -> Uint8Array:
        """The pictures of one camera, uint8 [T, H, W, 3]."""
        feature = self.features[key]
        is_depth = (feature.get("info") or {}).get("is_depth_map", False)
        if is_depth or 3 not in (feature["shape"][0], feature["shape"][-1]):
            raise UserError(
                f"{self.folder}: {key} has the shape {feature['shape']} and is not an RGB camera; "
                "name the cameras to import in mapping.cameras"
            )
        with self._reading():
            if feature["dtype"] == "video":
                return self._video(index, key)
            return np.stack([_decode_picture(cell) for cell in table[key].to_pylist()])

    def _video(self, index: int, key: str) -> Uint8Array:
        import av

        row = self.episodes[index]
        start_s, length = row[f"videos/{key}/from_timestamp"], row["length"]
        place = {"chunk_index": row[f"videos/{key}/chunk_index"], "file_index": row[f"videos/{key}/file_index"]}
        file = self._video_path.format(video_key=key, **place)
        frames: list[Uint8Array] = []
        with av.open(str(self._inside(file))) as container:
            stream = container.streams.video[0]
            container.seek(round(start_s / stream.time_base), stream=stream)  # to the key frame at or before
            for frame in container.decode(stream):
                if frame.time > start_s - 0.5 / self.fps:
                    frames.append(np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8))
                if len(frames) == length:
                    return np.stack(frames)
        raise ValueError(f"{file} has {len(frames)} of {length} frames of episode {index}")

    def _inside(self, file: str) -> Path:
        """A file of the dataset. Raises ValueError for one that lies outside of its folder, whatever the info says."""
        if ".." in Path(file).parts or Path(file).is_absolute():
            raise ValueError(f"its info names the file {file!r}, which lies outside of it")
        return self.folder / file

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except ImportError as error:
            raise UserError(
                f"reading a LeRobotDataset needs {error.name}; install vla-rl with the extra 'train'"
            ) from error
        except Exception as error:  # JSON, parquet, picture and video readers raise dozens of kinds
            raise StoreError(f"cannot read {self.folder} as a LeRobotDataset v3: {one_line(error)}") from error


def _decode_picture(cell: dict[str, Any]) -> Uint8Array:
    from PIL import Image

    with Image.open(io.BytesIO(cell["bytes"])) as picture:
        return np.asarray(picture.convert("RGB"))
