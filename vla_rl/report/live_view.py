"""A live view in rerun: cameras, state, actions, the acting source, changes by the gate. A subscriber of the loop.

A thread of its own sends the steps, and drops some when it is too slow: the control loop never waits for a viewer.
"""

import logging
import queue
import threading
from pathlib import Path
from typing import Self

from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Subscriber
from vla_rl.core.types import Episode, Source, Step
from vla_rl.report.wording import outcome

_log = logging.getLogger(__name__)

_WAITING_STEPS = 8
_SERIES = ("observation_age_ms", "action_age_ms", "chunk_index", "gate_reasons", "policy_version")


class LiveView(Subscriber):
    """Streams steps to rerun. A context manager.

    Args:
        target: A file ``NAME.rrd`` to record to, ``spawn`` to open a viewer, or the address of one
            (``rerun+http://HOST:9876/proxy``).
        name: Name of the robot.

    Attributes:
        dropped: Number of steps that were not shown, because the view was too slow.

    Raises:
        UserError: If rerun is missing, or the target does not work.
    """

    def __init__(self, target: str, name: str) -> None:
        try:
            import rerun
        except ImportError as error:
            raise UserError("the live view needs rerun: pip install 'vla-rl[viz]'") from error
        self._rerun = rerun
        self._stream = rerun.RecordingStream(name.replace("/", "-"))  # rerun takes no slash
        try:
            if target == "spawn":
                self._stream.spawn()
            elif target.endswith(".rrd"):
                Path(target).parent.mkdir(parents=True, exist_ok=True)
                self._stream.save(target)
            else:
                self._stream.connect_grpc(target)
        except (OSError, RuntimeError, ValueError) as error:
            raise UserError(f"the live view cannot go to {target!r}: {error}") from error
        self._steps: queue.Queue[Step | None] = queue.Queue(_WAITING_STEPS)
        self._thread = threading.Thread(target=self._show_all, name="live view", daemon=True)
        self.dropped = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._steps.put(None)
        self._thread.join()
        try:
            self._stream.flush()
        except RuntimeError as gone:  # what was shown is no reason to leave a robot half closed
            _log.warning("the live view did not show everything: %s", gone)
        self._stream.disconnect()

    def on_step(self, step: Step) -> None:
        """Queue a step, or drop it."""
        try:
            self._steps.put_nowait(step)
        except queue.Full:
            self.dropped += 1

    def on_episode(self, episode: Episode) -> None:
        """Log the outcome of an attempt."""
        words = f"{episode.episode_id}: {outcome(episode.success)} after {len(episode)} steps"
        self._stream.log("log", self._rerun.TextLog(words))

    def _show_all(self) -> None:
        rerun, stream = self._rerun, self._stream
        for number, step in enumerate(iter(self._steps.get, None)):
            stream.set_time("step", sequence=number)
            for camera, image in step.observation.images.items():
                stream.log(f"camera/{camera}", rerun.Image(image))
            stream.log("state", rerun.Scalars(step.observation.state))
            stream.log("action/policy", rerun.Scalars(step.action_policy))
            stream.log("action/sent", rerun.Scalars(step.action_sent))
            stream.log("who/human", rerun.Scalars(float(step.source is Source.HUMAN)))
            stream.log("who/hold", rerun.Scalars(float(step.source is Source.HOLD)))
            for name in _SERIES:
                if name in step.extras:
                    stream.log(f"loop/{name}", rerun.Scalars(float(step.extras[name])))
