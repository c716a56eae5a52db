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
        quaternions: the first of four dimensions each that are a quaternion x, y, z, w, see `RobotLimits`. The robot
            turns as the device does since then, in the frame in which its x, y, z are moved.
    """

    def __init__(
        self, absolute_dims: Sequence[int] = (), step_dims: Sequence[int] = (), quaternions: Sequence[int] = ()
    ) -> None:
        self._steps = list(step_dims)
        self._absolute = [*absolute_dims, *self._steps]
        self._rotations = [slice(first, first + 4) for first in quaternions]
        self._offset: Float32Array | None = None

    def release(self) -> None:
        """Release the device; the next command engages it anew."""
        self._offset = None

    def hold(self, last: Float32Array) -> Float32Array:
        """Return the command that keeps the robot at ``last``, the newest sent command, float32 [A]. Targets stay,
        steps are 0. The next command engages anew.
        """
        self.release()
        still = last.copy()
        still[self._steps] = 0.0
        return still

    def command(self, position: Float32Array, last: Float32Array) -> Float32Array:
        """Return the robot's command for the device's posture and the command that was sent last, float32 [A] each.

        See `hold` while the device says NaN, or a quaternion of zeros.
        """
        if not np.isfinite(position).all() or not all(position[part].any() for part in self._rotations):
            return self.hold(last)
        position = position.copy()
        for part in self._rotations:
            position[part] /= np.linalg.norm(position[part])
        if self._offset is None:
            self._offset = last - position
            self._offset[self._absolute] = 0.0
            for part in self._rotations:
                self._offset[part] = _product(position[part] * _INVERSE, last[part])
        command = np.asarray(position + self._offset, np.float32)
        for part in self._rotations:
            command[part] = _product(position[part], self._offset[part])
        return command


_INVERSE = np.array([-1, -1, -1, 1], np.float32)
"""Times a quaternion of length 1: the rotation back."""


def _product(turn: Float32Array, quaternion: Float32Array) -> Float32Array:
    """Return a rotation and then a turn, quaternions x, y, z, w, float32 [4]."""
    x, y, z, w = turn
    by = np.array([[w, -z, y, x], [z, w, -x, y], [-y, x, w, z], [-x, -y, -z, w]])
    return np.asarray(by @ quaternion, np.float32)
