"""Gradient steps with checkpoints and metrics in a run folder, for practice and offline fine-tuning. A crash costs at
most the steps since the last checkpoint. On a CPU the resumed run ends in the same weights, bit by bit, as an
uninterrupted one.
"""

import io
import itertools
import time
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.algorithms.base import Algorithm
from vla_rl.core.errors import UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.progress import Progress
from vla_rl.core.signals import deferred_signals
from vla_rl.credit import CreditConfig
from vla_rl.data.cache import CachedEpisode, FrameCache, RetentionConfig
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training.algorithms import save_learned
from vla_rl.training.checkpoint import save_checkpoint
from vla_rl.training.people import quality_by_operator
from vla_rl.training.plan import Stage
from vla_rl.training.records import RunRecords

LOG_EVERY_STEPS = 50
CHECKPOINT_EVERY_S = 60.0
"""Also of a run whose steps take long: what a crash costs at most, beside its own number of steps."""
TRACED_FAILURES = 24
_MEASURED = ("_loss", "_gradient_norm")  # what is no number any more when training diverges


class LearningRun:
    """Learns in one run folder, locked by the caller, from the records so far."""

    def __init__(
        self, folder: RunFolder, checkpoint_every: int, records: RunRecords, retention: RetentionConfig | None = None
    ) -> None:
        self.folder = folder
        self.store = EpisodeStore(folder.episodes)
        self.cache = FrameCache(self.store, folder.cache, retention)
        self._checkpoint_every = checkpoint_every
        self._subscribers, self._published = records.subscribers, set(records.published)
        self._progress = records.progress
        self._result = ""  # of the present stage, in words

    def _learn(self, learner: Algorithm, stage: Stage) -> None:
        """Gradient steps from the newest checkpoint inside the stage to its end, then a new policy version."""
        first_step = stage.first_step
        if self._progress and stage.first_step < self._progress[0] <= stage.end_step:
            first_step, state = self._progress
            learner.load_state_dict(state)
        self._progress = None
        learner.begin_round(self.cache, stage.round)
        if first_step == stage.first_step:
            self._before_first_step(learner, stage)
        loss = ""  # of the newest logged step: none yet, or none left where the last checkpoint is the stage's end
        started_s, last_step, saved_s = time.perf_counter(), first_step, time.monotonic()
        shown = Progress(stage.name, stage.end_step, "step", done=first_step)
        with deferred_signals() as asked_to_stop, shown as progress:
            for step in range(first_step, stage.end_step):
                logs = _numbers(learner.update(step))
                done = step + 1
                if done % LOG_EVERY_STEPS == 0 or done == stage.end_step:
                    now_s = time.perf_counter()
                    logs["steps_per_s"] = (done - last_step) / (now_s - started_s)
                    started_s, last_step = now_s, done
                    self._publish("train", stage, done, logs)
                    loss = f"loss {logs.get('actor_loss', logs.get('critic_loss', 0.0)):.4f}"
                progress.advance(loss)
                due = done % self._checkpoint_every == 0 or time.monotonic() - saved_s > CHECKPOINT_EVERY_S
                stop = asked_to_stop()
                if due or stop or done == stage.end_step:
                    self._refuse_divergence(logs, stage, done)
                    save_checkpoint(self.folder.checkpoints, done, learner.state_dict())
                    saved_s = time.monotonic()
                if stop:
                    raise stop
        self._result = f"{loss}, "
        self._save_traces(learner)
        if quality := quality_by_operator(self.cache, self.store, learner.trace, learner.config.chunk_ticks):
            self._publish_once("operators", stage, quality)
        self._after_last_step(learner, stage)
        save_learned(learner, self._policy_of(stage), stage.policy_version)

    def _refuse_divergence(self, logs: Mapping[str, float], stage: Stage, done: int) -> None:
        """Weights that are no numbers any more must not take the place of good ones."""
        lost = [
            f"{name} is {value}" for name, value in logs.items() if name.endswith(_MEASURED) and not isfinite(value)
        ]
        if lost:
            raise UserError(
                f"{stage.name}: the training diverged, at gradient step {done} {' and '.join(lost)}; the checkpoint "
                f"before stays. Lower the learning rate in {self.folder.config_file} and go on with --resume"
            )

    def _policy_of(self, stage: Stage) -> Path:
        return self.folder.policy(stage.policy_version)

    def _before_first_step(self, learner: Algorithm, stage: Stage) -> None:
        """What is to be known of a learner before it learns from a round; nothing here."""

    def _after_last_step(self, learner: Algorithm, stage: Stage) -> None:
        """What is to be known of a learner that has learned, before its policy is written; nothing here."""

    def _publish(self, kind: str, stage: Stage, step: int, values: Mapping[str, float]) -> None:
        record = {"kind": kind, "round": stage.round, "step": step, "time_s": time.time(), **values}
        for subscriber in self._subscribers:
            subscriber.on_metrics(record)

    def _publish_once(self, kind: str, stage: Stage, values: Mapping[str, float]) -> None:
        """Publish what there is one of in a round, unless a process that was killed since has done it."""
        if (kind, stage.round) not in self._published:
            self._published.add((kind, stage.round))
            self._publish(kind, stage, stage.first_step, values)

    def _note_wall_time(self, name: str, wall_s: float) -> None:
        """Add to the stage's wall time; a resumed stage counts what each attempt took."""
        summary = self.folder.read_summary()
        times = {entry["name"]: entry["wall_s"] for entry in summary.get("stages", [])}
        times[name] = times.get(name, 0.0) + wall_s
        summary["stages"] = [{"name": key, "wall_s": round(value, 3)} for key, value in times.items()]
        summary["wall_s"] = round(sum(times.values()), 3)
        self.folder.write_summary(summary)

    def _save_traces(self, learner: Algorithm) -> None:
        """Trace values and weights along the newest real success and takeover, and along the newest failures. The
        report sorts failures by where the probability of success falls.
        """
        chosen: dict[str, list[CachedEpisode]] = {"takeover": [], "success": [], "failure": []}
        for episode in reversed(self.cache.episodes):
            if not 0 < episode.human_steps < CreditConfig().min_human_steps:  # a touch shows neither help nor its lack
                kind = "takeover" if episode.human_steps else "success" if episode.success else "failure"
                if len(chosen[kind]) < (TRACED_FAILURES if kind == "failure" else 1):
                    chosen[kind].append(episode)
        for episode in itertools.chain(*chosen.values()):
            frames = np.arange(episode.start, episode.start + episode.length)
            columns = learner.trace(self.cache, frames)
            if columns:
                self.folder.traces.mkdir(exist_ok=True)
                columns["source"] = self.cache.source[frames]
                content = io.BytesIO()
                np.savez(content, allow_pickle=False, **columns)
                write_atomic(self.folder.traces / f"{episode.episode_id}.npz", content.getvalue())


def _numbers(logs: Any) -> dict[str, float]:
    """Check what an update returned: a user's algorithm may return nothing, or tensors, and UserError says so."""
    if not isinstance(logs, Mapping):
        raise UserError(
            f"update() of the algorithm returned a {type(logs).__name__}; expected what to log, such as what "
            "update_actor returns: names and numbers"
        )
    for name, value in logs.items():
        if not isinstance(value, int | float | np.number):
            raise UserError(
                f"update() of the algorithm logs {name!r} as a {type(value).__name__}; expected a number: float(...) "
                "of it"
            )
    return dict(logs)
