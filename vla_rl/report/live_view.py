"""A live view in rerun: cameras, state, actions, who acts, what the gate changed. A subscriber of the loop.

Steps are handed to a thread of its own, the newest first when it falls behind: the control loop never waits for a
viewer. rerun is imported when a view is made.
"""

import logging
import queue
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Subscriber
from vla_rl.core.types import Episode, Source, Step

_log = logging.getLogger(__name__)

_WAITING_STEPS = 8
_SERIES = ("observation_age_ms", "action_age_ms", "chunk_index", "gate_reasons", "policy_version")


class LiveView(Subscriber):
    """See the module. A context manager.

    Args:
        target: a file ``NAME.rrd`` to record to, ``spawn`` to open a viewer, or the address of one
            (``rerun+http://HOST:9876/proxy``).
        name: of the robot.

    Attributes:
        dropped: steps that were not shown, because the view fell behind.

    Raises:
        UserError: if rerun is missing, or the target does not work.
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
        self._step = 0
        self.dropped = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._steps.put(None)
        self._thread.join()
        try:
            self._stream.flush()
        except RuntimeError as gone:  # what was shown is no reason to leave a robot half closed
            _log.warning("the live view did not show everything: %s", gone)
        self._stream.disconnect()

    def on_step(self, step: Step) -> None:
        """Hand a step over; at once, or not at all."""
        try:
            self._steps.put_nowait(step)
        except queue.Full:
            self.dropped += 1

    def on_episode(self, episode: Episode) -> None:
        """Say how an attempt ended."""
        outcome = {True: "success", False: "failure", None: "no outcome"}[episode.success]
        self._stream.log("log", self._rerun.TextLog(f"{episode.episode_id}: {outcome} after {len(episode)} steps"))

    def _show_all(self) -> None:
        while (step := self._steps.get()) is not None:
            self._show(step)
            self._step += 1

    def _show(self, step: Step) -> None:
        rerun, stream, observation = self._rerun, self._stream, step.observation
        stream.set_time("step", sequence=self._step)
        for camera, image in observation.images.items():
            stream.log(f"camera/{camera}", rerun.Image(image))
        stream.log("state", rerun.Scalars(observation.state))
        stream.log("action/policy", rerun.Scalars(step.action_policy))
        stream.log("action/sent", rerun.Scalars(step.action_sent))
        stream.log("who/human", rerun.Scalars(float(step.source is Source.HUMAN)))
        stream.log("who/hold", rerun.Scalars(float(step.source is Source.HOLD)))
        for name in _SERIES:
            if name in step.extras:
                stream.log(f"loop/{name}", rerun.Scalars(float(step.extras[name])))
