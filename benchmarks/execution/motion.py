"""How smoothly a robot was moved: jumps of the planned action inside chunks and at their seams, jerk of the command."""

from collections.abc import Sequence

import numpy as np

from vla_rl.core.protocols import Subscriber
from vla_rl.core.types import Float32Array, Source, Step


class Motion(Subscriber):
    """A subscriber that keeps the commands of attempts.

    Args:
        discrete_dims: action dimensions that may jump (grippers), left out.
        control_hz: commands per second.
    """

    def __init__(self, discrete_dims: Sequence[int], control_hz: float) -> None:
        self._discrete_dims, self._control_hz = list(discrete_dims), control_hz
        self._within: list[Float32Array] = []
        self._seams: list[Float32Array] = []
        self._jerks: list[Float32Array] = []
        self._start()

    def begin(self) -> None:
        """The next step is the first of an attempt."""
        self._finish()
        self._start()

    def on_step(self, step: Step) -> None:
        """Keep what the policy's side asked for and what was sent."""
        self._planned.append(step.action_policy)
        self._sent.append(step.action_sent)
        self._chunks.append(int(step.extras["chunk_id"]) if step.source is Source.POLICY else -1)

    def measures(self) -> dict[str, float]:
        """Measure all attempts. ``seam_ratio`` is the 99th percentile of the jumps at seams over the median jump within
        chunks. ``within_ratio`` is the 99th percentile of the jumps within chunks over the same median. The root mean
        square jerk of the command is in the action's units per second^3.
        """
        self.begin()
        within, seams, jerks = (np.concatenate(parts) for parts in (self._within, self._seams, self._jerks))
        median = float(np.median(within))
        return {
            "median_jump": median,
            "seam_ratio": float(np.percentile(seams, 99)) / median if len(seams) else 0.0,
            "within_ratio": float(np.percentile(within, 99)) / median,
            "jerk_rms": float(np.sqrt(np.mean(np.square(jerks)))),
        }

    def _start(self) -> None:
        self._planned: list[Float32Array] = []
        self._sent: list[Float32Array] = []
        self._chunks: list[int] = []

    def _finish(self) -> None:
        """Take the attempt's jumps and jerks in."""
        if len(self._sent) < 4:
            return
        planned = np.delete(np.stack(self._planned), self._discrete_dims, axis=1)  # [T, A']
        sent = np.delete(np.stack(self._sent), self._discrete_dims, axis=1)
        chunks = np.array(self._chunks)
        jumps = np.linalg.norm(np.diff(planned, axis=0), axis=1)
        both = (chunks[1:] >= 0) & (chunks[:-1] >= 0)  # a hold has no seam
        same = chunks[1:] == chunks[:-1]
        self._within.append(jumps[both & same])
        self._seams.append(jumps[both & ~same])
        self._jerks.append(np.linalg.norm(np.diff(sent, n=3, axis=0), axis=1) * self._control_hz**3)
