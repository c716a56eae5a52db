"""Metric sinks of experiment trackers: Weights & Biases, MLflow and trackio, each where its library is installed.

Entries of ``vla_rl.sinks``, called with the run folder and what the summary says of the run. Where they write is what
their own environment variables say (``WANDB_MODE=offline``, ``MLFLOW_TRACKING_URI=file:mlruns``, ``TRACKIO_DIR``). None
of them can forget: a resumed run logs the steps since its checkpoint again.
"""

import importlib
import tempfile
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, override

from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode
from vla_rl.report.players import video_of
from vla_rl.report.sinks import MetricSink, to_json
from vla_rl.report.wording import outcome

_PROJECT = "vla-rl"


class Tracker(MetricSink):
    """What the trackers share: numbers as ``kind/name`` over gradient steps, evaluation episodes as videos."""

    def __init__(self) -> None:
        self._step = 0

    @override
    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        record = to_json(metrics)
        kind, self._step = record.get("kind", "metrics"), record.get("step", 0)
        skipped = ("step", "round", "time_s")
        numbers = {
            f"{kind}/{name}": value
            for name, value in record.items()
            if isinstance(value, int | float) and name not in skipped
        }
        self._log(numbers, self._step)

    @override
    def on_episode(self, episode: Episode) -> None:
        if not episode.images:
            return
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{episode.episode_id}-{outcome(episode.success)}.mp4"
            file.write_bytes(video_of(episode))
            self._log_video(file, self._step)

    @override
    def truncate_after(self, step: int) -> None:
        """See the module."""

    @abstractmethod
    def _log(self, numbers: Mapping[str, float], step: int) -> None: ...

    @abstractmethod
    def _log_video(self, file: Path, step: int) -> None: ...


class WandbSink(Tracker):
    """Weights & Biases; a resumed run goes on in the same one."""

    def __init__(self, run_dir: Path, described: Mapping[str, Any]) -> None:
        super().__init__()
        self._wandb = _library("wandb")
        name = run_dir.resolve().name
        self._run = self._wandb.init(
            project=_PROJECT, name=name, id=name, resume="allow", dir=str(run_dir), config=dict(described)
        )
        self._run.define_metric("*", step_metric="gradient_step")

    @override
    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        self._run.log({**numbers, "gradient_step": step})

    @override
    def _log_video(self, file: Path, step: int) -> None:
        video = self._wandb.Video(str(file), format="mp4", caption=file.stem)
        self._run.log({f"evaluate/{file.stem.rpartition('-')[2]}": video, "gradient_step": step})

    @override
    def close(self) -> None:
        self._run.finish()


class MlflowSink(Tracker):
    """MLflow; a resumed run goes on in the one whose id is in ``mlflow_run.txt``."""

    def __init__(self, run_dir: Path, described: Mapping[str, Any]) -> None:
        super().__init__()
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
    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            self._client.log_metric(self._run, name, value, step=step)

    @override
    def _log_video(self, file: Path, step: int) -> None:
        self._client.log_artifact(self._run, str(file), f"step_{step:06d}")

    @override
    def close(self) -> None:
        self._client.set_terminated(self._run)


class TrackioSink(Tracker):
    """trackio, the local tracker; a resumed run goes on under its name."""

    def __init__(self, run_dir: Path, described: Mapping[str, Any]) -> None:
        super().__init__()
        self._trackio = _library("trackio")
        name = run_dir.resolve().name
        self._trackio.init(project=_PROJECT, name=name, resume="allow", config=dict(described))

    @override
    def _log(self, numbers: Mapping[str, float], step: int) -> None:
        self._trackio.log(dict(numbers), step=step)

    @override
    def _log_video(self, file: Path, step: int) -> None:
        video = self._trackio.Video(str(file), caption=file.stem, format="mp4")
        self._trackio.log({f"evaluate/{file.stem.rpartition('-')[2]}": video}, step=step)

    @override
    def close(self) -> None:
        self._trackio.finish()


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"the sink {name!r} needs its library: pip install {name}, or leave it out of sinks") from error
