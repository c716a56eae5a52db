"""Commands within velocity, acceleration and jerk limits, from targets that come at any rate, by Ruckig.

Called from the control thread only. The package `ruckig` is imported when a limiter is made.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array

Float64Array = NDArray[np.float64]


class JerkLimiter:
    """Follows targets with the fastest motion that the limits allow, and stops within the bounds.

    The invariant: full braking from the present state ends inside [low, high]. It holds at rest, and every motion to a
    target inside the bounds with a target velocity that can be braked inside them keeps it; other target velocities are
    replaced by 0. So bounds and limits hold at every tick, whatever the targets do.

    Args:
        low, high: bounds of the command, float [A].
        max_velocity, max_acceleration, max_jerk: limits, per second, second^2 and second^3, float [A].
        rate_hz: how often `follow` or `brake` is called.

    Attributes:
        at_rest: braking has ended.

    Raises:
        UserError: if the package ruckig is missing.
    """

    def __init__(
        self,
        low: Float64Array,
        high: Float64Array,
        max_velocity: Float64Array,
        max_acceleration: Float64Array,
        max_jerk: Float64Array,
        rate_hz: float,
    ) -> None:
        try:
            import ruckig
        except ImportError as error:
            raise UserError(
                "acceleration and jerk limits need the package 'ruckig': pip install ruckig, "
                "or take max_acceleration out of the robot's gate configuration"
            ) from error
        self._low, self._high = low, high
        self._max_velocity, self._max_acceleration, self._max_jerk = max_velocity, max_acceleration, max_jerk
        self._rate_hz = rate_hz
        self._interfaces = ruckig.ControlInterface
        self._finished = ruckig.Result.Finished
        size = len(low)
        self._generator = ruckig.Ruckig(size, 1.0 / rate_hz)
        self._input: Any = ruckig.InputParameter(size)
        self._output: Any = ruckig.OutputParameter(size)
        self._input.synchronization = ruckig.Synchronization.No
        self._input.max_velocity = max_velocity.tolist()
        self._input.max_acceleration = max_acceleration.tolist()
        self._input.max_jerk = max_jerk.tolist()
        self.reset(np.clip(np.zeros(size), low, high))

    def reset(self, position: Float64Array | Float32Array) -> None:
        """Rest at a position, [A]."""
        still = [0.0] * len(self._low)
        self._input.current_position = [float(number) for number in position]
        self._input.current_velocity = still
        self._input.current_acceleration = still
        self._last_target: Float64Array | None = None
        self.at_rest = True

    def follow(self, target: Float32Array) -> Float32Array:
        """The next command on the way to a target inside the bounds, float32 [A]."""
        aim = target.astype(np.float64)
        velocity = np.zeros_like(aim) if self._last_target is None else (aim - self._last_target) * self._rate_hz
        self._last_target = aim
        self._input.control_interface = self._interfaces.Position
        self._input.target_position = aim.tolist()
        self._input.target_velocity = self._safe_velocity(aim, velocity).tolist()
        self.at_rest = False
        self._generator.update(self._input, self._output)
        return self._take_output()

    def brake(self) -> Float32Array:
        """The next command on the fastest way to rest, float32 [A]."""
        self._last_target = None
        self._input.control_interface = self._interfaces.Velocity
        self._input.target_velocity = [0.0] * len(self._low)
        self.at_rest = self._generator.update(self._input, self._output) == self._finished
        return self._take_output()

    def _safe_velocity(self, target: Float64Array, velocity: Float64Array) -> Float64Array:
        """``velocity`` where braking from it at the target ends inside the bounds, else 0."""
        velocity = np.clip(velocity, -self._max_velocity, self._max_velocity)
        speed = np.abs(velocity)
        acceleration, jerk = self._max_acceleration, self._max_jerk
        # Braking from speed v: jerk phases only if v <= a^2 / j, else with a phase of constant deceleration between.
        short = speed * np.sqrt(speed / jerk)
        long = 0.5 * speed * (speed / acceleration + acceleration / jerk)
        distance = np.where(speed * jerk <= acceleration**2, short, long)
        room = np.where(velocity > 0, self._high - target, target - self._low)
        return np.where(distance <= room, velocity, 0.0)

    def _take_output(self) -> Float32Array:
        self._output.pass_to_input(self._input)
        return np.asarray(self._output.new_position, np.float32)
