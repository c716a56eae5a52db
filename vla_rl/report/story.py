"""What a run has to tell while it goes on: the stage, its progress, what is being learnt, and the newest attempts.

Threading law: the run's thread calls `Story.on_metrics` and `Story.on_progress`, which only note something; whoever
shows the story calls the rest from threads of his own.
"""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, override

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError, UserError
from vla_rl.core.types import Episode
from vla_rl.report.run_episodes import open_store
from vla_rl.report.run_files import Run, read_run
from vla_rl.report.sinks import MetricSink
from vla_rl.report.wording import percent_interval

_LOOK_EVERY_S = 1.0
_BAR = 24
_DOING = {
    "demonstrate": "An expert shows the task.",
    "supervise": "The policy learns to imitate the demonstrations.",
    "evaluate": "The policy tries seeds that training never sees: its success is measured.",
    "collect": "The policy practises, and whoever supervises it takes over where it goes wrong.",
    "check": "The new policy plays without help; where it does worse than the one before, that one stays.",
    "practise": "From how the attempts ended, the policy learns which of its actions to repeat and which not.",
}


@dataclass(frozen=True)
class Moment:
    """Where a run is.

    Attributes:
        stage: its name; empty before the first one.
        number: of the stage, from 1; 0 before the first one.
        of: how many stages there are.
        done: of the stage's episodes or steps.
        total: how many of them there are; None: nobody knows.
        loss: of the actor, newest last; empty where nothing has been learnt in this stage.
    """

    stage: str = ""
    number: int = 0
    of: int = 0
    done: int = 0
    total: int | None = None
    loss: tuple[float, ...] = ()

    @property
    def doing(self) -> str:
        """What happens in this stage, in a sentence."""
        return _DOING.get(self.stage.partition(" ")[0], "Everything is being made ready.")


@dataclass
class Story(MetricSink):
    """See the module.

    Args:
        stages: names of the run's stages, in order; may be set later.
        run: the run folder; None while there is none yet.
        title: the task's name.

    Attributes:
        sentence: the task in words.
        pictures: of the task by camera, uint8 [H, W, 3].
        newest: the newest attempt that failed (False) and that succeeded (True).
        finished: the report is written.
    """

    stages: Sequence[str] = ()
    run: Path | None = None
    title: str = ""
    sentence: str = ""
    pictures: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict)
    newest: dict[bool, Episode] = field(default_factory=dict)
    finished: bool = False

    def __post_init__(self) -> None:
        self._moment = Moment(of=len(self.stages))
        self._looking = threading.Lock()
        self._seen: set[tuple[str, str]] = set()
        self._looked_s = 0.0

    @property
    def moment(self) -> Moment:
        """Where the run is now."""
        return self._moment

    @override
    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        loss = metrics.get("actor_loss")
        if metrics.get("kind") == "train" and loss is not None:
            now = self._moment
            self._moment = Moment(now.stage, now.number, now.of, now.done, now.total, (*now.loss, float(loss)))

    def on_progress(self, name: str, done: int, total: int | None) -> None:
        """Told by `vla_rl.core.progress`; what is no stage (the decoding of frames) belongs to the stage around it."""
        if name in self.stages:
            loss = self._moment.loss if name == self._moment.stage else ()
            number = self.stages.index(name) + 1
            self._moment = Moment(name, number, len(self.stages), done, total, loss)

    @override
    def truncate_after(self, step: int) -> None:
        """Nothing is kept."""

    @override
    def close(self) -> None:
        """Nothing is open."""

    def read(self) -> Run | None:
        """What the run folder says; None before there is anything in it."""
        try:
            return None if self.run is None else read_run(self.run)
        except UserError:
            return None

    def look(self) -> None:
        """Look for new attempts, at most once a second."""
        with self._looking:
            if self.run is None or time.monotonic() < self._looked_s + _LOOK_EVERY_S:
                return
            self._looked_s = time.monotonic()
            for name in ("episodes", "evaluation"):
                store = open_store(self.run / name, [])
                unseen = [(name, each) for each in (store.ids() if store else ()) if (name, each) not in self._seen]
                self._seen.update(unseen)
                wanted = {False, True}
                for _, episode_id in reversed(unseen):
                    try:
                        success = store.read_header(episode_id).success if store and wanted else None
                        if store and success in wanted:
                            wanted.discard(bool(success))
                            self.newest[bool(success)] = episode = store.read(episode_id)
                            self.sentence = self.sentence or episode.task
                    except StoreError:  # the report names damaged episodes
                        continue


def success_lines(run: Run) -> list[str]:
    """The success of each policy, then of each control, as a bar of characters with Wilson's 95 % interval."""
    named = [(policy.control or policy.label, policy) for policy in [*run.policies, *run.controls]]
    width = max((len(name) for name, _ in named), default=0)
    lines = []
    for name, policy in named:
        full = round(policy.rate * _BAR)
        bar = "█" * full + "░" * (_BAR - full)
        lines.append(f"{name:<{width}}  {bar}  {policy.rate:4.0%} {percent_interval(policy.interval)}")
    return lines
