"""Metric sinks of experiment trackers: Weights & Biases, MLflow and trackio, each where its library is installed.

Entry points of ``vla_rl.sinks``, called with the run folder and the facts of the summary. The trackers' own environment
variables decide where they write (``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI=file:mlruns``, ``TRACKIO_DIR``). No
tracker can delete records, so a resumed run logs the steps since its checkpoint twice.
"""

import importlib
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode
from vla_rl.report.media import CAMERA_PX, render_video, tile_cameras
from vla_rl.report.sinks import MetricSink, scalars, to_json
from vla_rl.report.wording import outcome

_PROJECT = "vla-rl"


class Tracker(MetricSink):
    """Logs numbers as ``kind/name`` over gradient steps, and evaluation episodes as videos."""

    _step = 0

    @override
    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        self._step, numbers = scalars(to_json(metrics))
        self._log(numbers)

    @override
    def on_episode(self, episode: Episode) -> None:
        if not episode.images:
            return
        with tempfile.TemporaryDirectory() as folder:
            kind = outcome(episode.success)
            file = Path(folder) / f"{episode.episode_id}-{kind}.mp4"
            file.write_bytes(render_video(tile_cameras(episode.images, CAMERA_PX), episode.control_hz))
            self._log_video(file, f"evaluate/{kind}")

    @abstractmethod
    def _log(self, numbers: Mapping[str, Any]) -> None:
        """Log numbers at the present step."""

    @abstractmethod
    def _log_video(self, file: Path, name: str) -> None:
        """Log a video at the present step."""


class WandbSink(Tracker):
    """Weights & Biases; a resumed run goes on in the same one."""

    def __init__(self, run_dir: Path, described: Mapping[str, Any]) -> None:
        self._wandb = _library("wandb")
        name = run_dir.resolve().name
        self._run = self._wandb.init(
            project=_PROJECT, name=name, id=name, resume="allow", dir=str(run_dir), config=dict(described)
        )
        self._run.define_metric("*", step_metric="gradient_step")

    @override
    def _log(self, numbers: Mapping[str, Any]) -> None:
        self._run.log({**numbers, "gradient_step": self._step})

    @override
    def _log_video(self, file: Path, name: str) -> None:
        self._log({name: self._wandb.Video(str(file), format="mp4", caption=file.stem)})

    @override
    def close(self) -> None:
        self._run.finish()


class MlflowSink(Tracker):
    """MLflow; a resumed run goes on in the one whose id is in ``mlflow_run.txt``."""

    def __init__(self, run_dir: Path, described: Mapping[str, Any]) -> None:
        self._client = _library("mlflow").MlflowClient()
        known = run_dir / "mlflow_run.txt"
        if known.exists():
            self._run = known.read_text().strip()
            return
        found = self._client.get_experiment_by_name(_PROJECT)
        experiment = found.experiment_id if found is not None else self._client.create_experiment(_PROJECT)
        self._run = self._client.create_run(experiment, run_name=run_dir.resolve().name).info.run_id
        known.write_text(self._run)
        for name, value in described.items():
            self._client.log_param(self._run, name, value)

    @override
    def _log(self, numbers: Mapping[str, Any]) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=self._step)

    @override
    def _log_video(self, file: Path, name: str) -> None:
        self._client.log_artifact(self._run, str(file), f"step_{self._step:06d}")

    @override
    def close(self) -> None:
        self._client.set_terminated(self._run)


class TrackioSink(Tracker):
    """trackio, the local tracker; a resumed run goes on under its name."""

    def __init__(self, run_dir: Path, described: Mapping[str, Any]) -> None:
        self._trackio = _library("trackio")
        name = run_dir.resolve().name
        self._trackio.init(project=_PROJECT, name=name, resume="allow", config=dict(described))

    @override
    def _log(self, numbers: Mapping[str, Any]) -> None:
        self._trackio.log(dict(numbers), step=self._step)

    @override
    def _log_video(self, file: Path, name: str) -> None:
        self._log({name: self._trackio.Video(str(file), caption=file.stem, format="mp4")})

    @override
    def close(self) -> None:
        self._trackio.finish()


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"the sink {name!r} needs its library: pip install {name}, or leave it out of sinks") from error
