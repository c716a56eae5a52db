"""Subscribers that write metrics down: one JSON line per record, and TensorBoard.

A record is a flat mapping ``{"kind": "train" | "collect" | "evaluate", "round": int, "step": int, ...}`` with numbers
for the rest; ``step`` counts gradient steps. All calls of one sink come from one thread.
"""

import errno
import json
import math
import os
import time
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.protocols import Subscriber
from vla_rl.core.types import Episode

_CLIP_PX = 128  # height of moving pictures in TensorBoard
_CLIP_FRAMES = 48  # at most, of each: to write them took longer than to evaluate the policy


class MetricSink(Subscriber):
    """A subscriber that writes metrics down; steps and episodes are the recorder's and the store's business."""

    @abstractmethod
    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write one record down."""

    @abstractmethod
    def truncate_after(self, step: int) -> None:
        """Forget the records of later gradient steps, which a run resumed from the checkpoint of ``step`` repeats."""

    @abstractmethod
    def close(self) -> None:
        """Flush and close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JsonlSink(MetricSink):
    """Appends every record as one line of strict JSON, at once, so that the file can be read while the run goes on.

    Numbers that are not finite become null. A last line that a crash left torn is removed when the file is opened.

    Raises:
        UserError: if the file cannot be opened or written (for example: disk full).
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            if file.is_file():
                _remove_torn_line(file)
            self._stream = file.open("ab", buffering=0)
        except OSError as error:
            raise UserError(f"cannot open the metrics file {file}: {error.strerror}") from error

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        line = json.dumps(to_json(metrics), allow_nan=False).encode() + b"\n"
        try:
            if self._stream.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # a disk that fills up takes a part first
        except OSError as error:
            raise UserError(f"cannot write to the metrics file {self.file}: {error.strerror}") from error

    def truncate_after(self, step: int) -> None:
        records = read_records(self.file)
        self._stream.close()
        kept = [json.dumps(record) + "\n" for record in records if record.get("step", 0) <= step]
        write_atomic(self.file, "".join(kept).encode())
        self._stream = self.file.open("ab", buffering=0)

    def close(self) -> None:
        self._stream.close()


class TensorBoardSink(MetricSink):
    """Writes every finite number of a record as the scalar ``kind/name`` at its gradient step, episodes as moving
    pictures, and the evaluations as a table.

    TensorBoard's own writer imports in half a second and needs no torch; torch.utils.tensorboard takes 3.5 s.
    """

    def __init__(self, directory: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.text.summary import text_pb
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event, self._session_log, self._summary, self._text = Event, SessionLog, Summary, text_pb
        self._step, self._rows = 0, list[str]()
        self._writer = EventFileWriter(str(directory), flush_secs=5)

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        record = to_json(metrics)
        kind, step = record.get("kind", "metrics"), record.get("step", 0)
        self._step = step
        numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name != "step"}
        values = [self._summary.Value(tag=f"{kind}/{name}", simple_value=value) for name, value in numbers.items()]
        self._add(self._summary(value=values))
        if kind == "evaluate":
            self._rows.append(f"| {record['round']} | {step} | {record['success']:.1%} | {record['episodes']} |")
            head = ["| round | gradient steps | success | episodes |", "|---|---|---|---|"]
            self._add(self._text("evaluate/table", "\n".join([*head, *self._rows])))

    def on_episode(self, episode: Episode) -> None:
        from vla_rl.report.images import encode_gif, thinned, tile_cameras

        if not episode.images:
            return
        shown, stride = thinned(len(episode), _CLIP_FRAMES)
        frames = tile_cameras({camera: images[shown] for camera, images in episode.images.items()}, _CLIP_PX)
        gif = encode_gif(frames, round(1000 * stride / episode.control_hz))
        name = "success" if episode.success else "failure"
        size = {"width": frames.shape[2], "height": frames.shape[1], "colorspace": 3}
        picture = self._summary.Image(encoded_image_string=gif, **size)
        self._add(self._summary(value=[self._summary.Value(tag=f"evaluate/{name}", image=picture)]))

    def _add(self, summary: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), step=self._step, summary=summary))

    def truncate_after(self, step: int) -> None:
        # TensorBoard's convention: a START event discards what was said before of its step and later ones.
        start = self._session_log(status=self._session_log.START)
        self._writer.add_event(self._event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        self._writer.close()


def to_json(value: Any) -> Any:
    """Plain data for strict JSON: numpy becomes numbers and lists, a number that is not finite becomes None."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return to_json(value.tolist())
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"a metric cannot be a {type(value).__name__}; expected numbers, text, lists or mappings of them")


def read_records(file: Path) -> list[dict[str, Any]]:
    """The records of a metrics file, in the order written. A line that is no record (torn, damaged) is passed over."""
    records = []
    for line in file.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def _remove_torn_line(file: Path) -> None:
    with file.open("r+b") as stream:
        content = stream.read()
        stream.truncate(content.rfind(b"\n") + 1)
