"""Reads the files of a LeRobotDataset v3, an episode at a time: parquet tables, PNG images, videos.

Random access through lerobot decodes frame by frame. Episodes are decoded here as a whole, which is some hundred times
faster for video. pyarrow, PIL and PyAV are imported where they are used.
"""

import contextlib
import functools
import io
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError, UserError, one_line
from vla_rl.core.json_files import read_json
from vla_rl.core.pictures import resized
from vla_rl.core.types import Uint8Array
from vla_rl.data.lerobot_features import picture_size
from vla_rl.data.lerobot_timestamps import Float64Array, VideoSpan, check_frames, check_stamps

Size = tuple[int, int]
_PICTURES = ("image", "video")
NOT_NUMERIC = frozenset([*_PICTURES, "string", "language"])
"""Types of columns that hold no numbers."""


class LeRobotFiles:
    """A LeRobotDataset v3 in a folder.

    Features are as ``meta/info.json`` has them; an unknown type of robot is "". ``episodes`` has one row for each
    episode: length, tasks, and where its data is.

    Raises:
        StoreError: if the folder holds no dataset of version 3, or not a whole one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with self.reading():
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
            self.robot_type = str(info.get("robot_type") or "")
            self._data_path, self._video_path = info["data_path"], info.get("video_path") or ""
            self._held: tuple[str, Any] = "", None  # a data file without its pictures
            files = sorted((folder / "meta/episodes").glob("*/*.parquet"))
            rows = [row for file in files for row in parquet.read_table(file).to_pylist()]
            self.episodes = sorted(rows, key=lambda row: int(row["episode_index"]))
            if len(self.episodes) != info["total_episodes"]:
                raise ValueError(f"{len(self.episodes)} of {info['total_episodes']} episodes; was it finalized?")

    def task(self, index: int, table: Mapping[str, Any]) -> str:
        """Return the task sentence of most of an episode's rows.

        Raises:
            StoreError: If the table of episodes does not name it.
        """
        named = [str(task) for task in self.episodes[index]["tasks"]]
        with self.reading():
            found = self._sentences[int(np.bincount(self.numbers(table["task_index"])).argmax())]
        if found not in named:
            raise StoreError(
                f"{self.folder}: episode {index} has the tasks {named} in meta/episodes, its rows {found!r} in "
                "meta/tasks.parquet; correct the wrong one"
            )
        return found

    @functools.cached_property
    def _sentences(self) -> dict[int, str]:
        import pyarrow.parquet as parquet

        every = parquet.read_table(self.folder / "meta/tasks.parquet").to_pydict()
        sentences = next(column for name, column in every.items() if name != "task_index")
        return dict(zip(every["task_index"], map(str, sentences), strict=True))

    def cameras(self) -> list[str]:
        """Return the columns that hold pictures."""
        return [key for key, feature in self.features.items() if feature["dtype"] in _PICTURES]

    def table(self, index: int) -> dict[str, Any]:
        """Return the episode's columns but the pictures, name -> pyarrow column."""
        import pyarrow.parquet as parquet

        with self.reading():
            row, file = self.episodes[index], self._data_file(index)
            if self._held[0] != file:  # it holds many episodes
                names = [name for name in parquet.read_schema(self._inside(file)).names if name not in self.cameras()]
                self._held = file, parquet.read_table(self._inside(file), columns=names)
            held = self._held[1]
            table = held.take(np.flatnonzero(held["episode_index"].to_numpy() == row["episode_index"]))
            if len(table) != row["length"] or not len(table):
                raise ValueError(f"{file} has {len(table)} of {row['length']} steps of episode {index}")
            return {key: table[key] for key in table.column_names}

    def whole(self, key: str) -> NDArray[Any]:
        """Return a numeric column of all files, [N, ...]."""
        import pyarrow.parquet as parquet

        with self.reading():
            files = sorted({self._data_file(index) for index in range(len(self.episodes))})
            columns = [parquet.read_table(self._inside(file), columns=[key])[key] for file in files]
            return np.concatenate([self.numbers(column) for column in columns])

    def numbers(self, column: Any) -> NDArray[Any]:
        """Return a numeric column of a table as an array [T, ...], [T] for single numbers."""
        import pyarrow

        with self.reading():
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

    def pictures(self, index: int, key: str, table: dict[str, Any], size: Size | None = None) -> Uint8Array:
        """Return the pictures of one camera, uint8 [T, H, W, 3], of an episode with this table.

        They are scaled to a size if one is given.

        Raises:
            StoreError: For pictures of another size than the column declares, or video frames at other times than the
                rows.
        """
        declared, where = self.declared_size(key), f"{self.folder}: episode {index}, camera {key}"
        with self.reading():
            if self.features[key]["dtype"] == "video":
                decoded = self._video(index, key, self.stamps(index, table), where)
            else:
                decoded = self._images(index, key)
            pictures = []
            for picture in decoded:
                if picture.shape[:2] != declared:
                    raise StoreError(
                        f"{where}: a picture is {picture.shape[0]} x {picture.shape[1]}, meta/info.json declares "
                        f"{declared[0]} x {declared[1]}; correct the shape in meta/info.json"
                    )
                pictures.append(resized(picture, size))
            return np.stack(pictures)

    def declared_size(self, key: str) -> Size:
        """Height and width of a camera's pictures. Raises UserError for a column that holds no RGB pictures."""
        found = picture_size(self.features[key])
        if found is None or self.features[key]["dtype"] not in _PICTURES:
            raise UserError(
                f"{self.folder}: {key} has the shape {self.features[key]['shape']} and is not an RGB camera; "
                "name the cameras to import in mapping.lerobot.cameras"
            )
        return found

    def stamps(self, index: int, table: dict[str, Any]) -> Float64Array:
        """Return the times of an episode's rows from its start, float64 [T], s.

        Raises:
            StoreError: Unless they rise step by step at the rate of the dataset.
        """
        length, where = int(self.episodes[index]["length"]), f"{self.folder}: episode {index}"
        rows = self.numbers(table["frame_index"]) if "frame_index" in table else np.arange(length)
        if not np.array_equal(rows, np.arange(length)):
            raise StoreError(f"{where}: frame_index is {rows[:8].tolist()}..., expected 0 to {length - 1} in order")
        if "timestamp" not in table:
            return np.arange(length) / self.fps
        stamps = self.numbers(table["timestamp"]).astype(np.float64).reshape(length)
        check_stamps(stamps, self.fps, where)
        return stamps

    def span(self, index: int, key: str) -> VideoSpan:
        """Return where an episode's pictures of a camera stand in a video."""
        with self.reading():
            row = self.episodes[index]
            place = {"chunk_index": row[f"videos/{key}/chunk_index"], "file_index": row[f"videos/{key}/file_index"]}
            file = str(self._video_path.format(video_key=key, **place))
            return VideoSpan(file, row[f"videos/{key}/from_timestamp"], row[f"videos/{key}/to_timestamp"])

    def frame_times(self, file: str) -> Float64Array:
        """Return the times of all frames of a video in the order of showing, float64 [N], s. Decodes nothing."""
        import av

        with self.reading():
            with av.open(str(self._inside(file))) as container:
                stream = container.streams.video[0]
                shown = [packet.pts for packet in container.demux(stream) if packet.pts is not None]
            return np.sort(np.array(shown, dtype=np.float64)) * float(stream.time_base or 1)

    def _video(self, index: int, key: str, stamps: Float64Array, where: str) -> Iterator[Uint8Array]:
        import av

        span = self.span(index, key)
        expected, row = span.start_s + stamps, 0
        with av.open(str(self._inside(span.file))) as container:
            stream = container.streams.video[0]
            container.seek(round(expected[0] / stream.time_base), stream=stream)  # to the key frame at or before
            for frame in container.decode(stream):
                if frame.time > expected[0] - 0.5 / self.fps:
                    check_frames(np.array([frame.time]), expected[row : row + 1], self.fps, where)
                    yield np.asarray(frame.to_ndarray(format="rgb24"), dtype=np.uint8)
                    row += 1
                if row == len(expected):
                    return
        raise ValueError(f"{span.file} has {row} of {len(expected)} frames of episode {index}")

    def _images(self, index: int, key: str) -> Iterator[Uint8Array]:
        import pyarrow.parquet as parquet
        from PIL import Image

        file, number = self._inside(self._data_file(index)), self.episodes[index]["episode_index"]
        for cell in parquet.read_table(file, columns=[key], filters=[("episode_index", "==", number)])[key]:
            with Image.open(io.BytesIO(cell["bytes"].as_py())) as picture:
                yield np.asarray(picture.convert("RGB"))

    def _data_file(self, index: int) -> str:
        row = self.episodes[index]
        return str(self._data_path.format(chunk_index=row["data/chunk_index"], file_index=row["data/file_index"]))

    def _inside(self, file: str) -> Path:
        """Return a file of the dataset. Raises ValueError for one that lies outside of its folder."""
        if ".." in Path(file).parts or Path(file).is_absolute():
            raise ValueError(f"its info names the file {file!r}, which lies outside of it")
        return self.folder / file

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """Turn anything that reading the files raises into one StoreError that names the folder."""
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
