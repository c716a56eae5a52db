"""How what a person holds drives a robot: takeover sources of leader devices share it."""

from collections.abc import Sequence

import numpy as np

from vla_rl.core.types import Float32Array


class Clutch:
    """Motion relative to where robot and device were when it engaged, so that no posture of the device makes it jump.

    Args:
        absolute_dims: dimensions that follow the device itself (grippers: the person sees what they squeeze).
        step_dims: dimensions that are steps of a tick (velocities), ``delta_dims`` of the limits. They follow the
            device itself as well: steps have no posture to be relative to.
    """

    def __init__(self, absolute_dims: Sequence[int] = (), step_dims: Sequence[int] = ()) -> None:
        self._steps = list(step_dims)
        self._absolute = [*absolute_dims, *self._steps]
        self._offset: Float32Array | None = None

    def release(self) -> None:
        """The next command engages it anew."""
        self._offset = None

    def hold(self, last: Float32Array) -> Float32Array:
        """Nobody drives: the command that keeps the robot where ``last``, the one that was sent last, has brought it,
        float32 [A]. Targets stay, steps are 0. The next command engages anew.
        """
        self.release()
        still = last.copy()
        still[self._steps] = 0.0
        return still

    def command(self, position: Float32Array, last: Float32Array) -> Float32Array:
        """The robot's command, float32 [A]; see `hold` while the device says NaN.

        Args:
            position: float32 [A], the device's posture.
            last: float32 [A], the command that was sent last: what the robot does, whatever a policy wanted.
        """
        if not np.isfinite(position).all():
            return self.hold(last)
        if self._offset is None:
            self._offset = last - position
            self._offset[self._absolute] = 0.0
        return np.asarray(position + self._offset, np.float32)
