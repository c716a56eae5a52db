"""Metric sinks: one JSON line per record, and TensorBoard.

A record is a flat mapping ``{"kind": "train" | "collect" | "compare" | "check" | "evaluate", "round": int, "step": int,
...}`` with numbers for the rest; ``step`` counts gradient steps. All calls of one sink come from one thread.
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
from vla_rl.report.media import encode_gif, thinned, tile_cameras

_CLIP_PX, _CLIP_FRAMES = 128, 48  # of films in TensorBoard; larger ones take longer than the evaluation itself


class MetricSink(Subscriber):
    """A subscriber that writes metrics down. A context manager."""

    @abstractmethod
    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        """Write one record down."""

    def truncate_after(self, step: int) -> None:
        """Drop the records of later gradient steps, which a run resumed from the checkpoint of ``step`` repeats."""

    def close(self) -> None:
        """Flush and close."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class JsonlSink(MetricSink):
    """Appends every record as one line of strict JSON, at once, so that a run in progress can be read.

    Numbers that are not finite become null. Opening removes an incomplete last line, which a crash can leave.

    Raises:
        UserError: If the file cannot be opened or written (for example: disk full).
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        try:
            if file.is_file() and (content := file.read_bytes()):
                os.truncate(file, content.rfind(b"\n") + 1)
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
    """Writes every finite number of a record as the scalar ``kind/name``, episodes as films, evaluations as a table.

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
        self._step, numbers = scalars(record)
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in numbers.items()]
        self._add(self._summary(value=values))
        if record.get("kind") == "evaluate":
            self._rows.append(f"| {record['round']} | {self._step} | {record['success']:.1%} | {record['episodes']} |")
            head = ["| round | gradient steps | success | episodes |", "|---|---|---|---|"]
            self._add(self._text("evaluate/table", "\n".join([*head, *self._rows])))

    def on_episode(self, episode: Episode) -> None:
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
        # TensorBoard's convention: a START event discards the earlier events of its step and of later steps.
        start = self._session_log(status=self._session_log.START)
        self._writer.add_event(self._event(wall_time=time.time(), step=step + 1, session_log=start))

    def close(self) -> None:
        self._writer.close()


def scalars(record: Mapping[str, Any]) -> tuple[int, dict[str, float]]:
    """Return the gradient step of a record, and its numbers as ``kind/name``."""
    kind, skipped = record.get("kind", "metrics"), ("step", "round", "time_s")
    numbers = {name: value for name, value in record.items() if isinstance(value, int | float) and name not in skipped}
    return record.get("step", 0), {f"{kind}/{name}": value for name, value in numbers.items()}


def to_json(value: Any) -> Any:
    """Convert to plain data for strict JSON: numpy becomes numbers and lists, a number that is not finite None."""
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
    """Read the records of a metrics file, in the order written; damaged lines are skipped."""
    records = []
    for line in file.read_bytes().splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records
