"""Commands within velocity, acceleration and jerk limits, from targets that come at any rate, by Ruckig.

Called from the control thread only. The package `ruckig` is imported when a limiter is made.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array

Float64Array = NDArray[np.float64]

_ROUNDING = 1e-9  # in units of a second at full speed


class JerkLimiter:
    """Follows a moving target as closely as the limits allow, and never leaves the bounds.

    Each dimension takes the target's velocity, corrected by its distance from the target. (Planning the fastest motion
    to every single target, with the target's velocity at its end, swings or lags: the target is elsewhere by then.)
    The invariant: full braking from the present state ends inside [low, high]. A step that would break it is replaced
    by a step of full braking, which keeps it. So bounds and limits hold at every step, whatever the targets do.

    Args:
        low, high: bounds of the command, float [A].
        max_velocity, max_acceleration, max_jerk: limits, per second, second^2 and second^3, float [A].
        rate_hz: how often `follow` or `brake` is called.

    Attributes:
        at_rest: braking has ended.
        braking_s: the longest time that braking takes from any state within the limits.

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
                "acceleration and jerk limits need the package 'ruckig'. Run pip install ruckig, "
                "or remove max_acceleration and max_jerk from the gate's limits"
            ) from error
        # Ruckig's tolerances are absolute: in units of the largest velocity its numbers are near 1 for every robot.
        self._unit = max_velocity
        self._low, self._high = low / max_velocity, high / max_velocity
        self._max_acceleration = max_acceleration / max_velocity
        self._rate_hz = rate_hz
        # Take the acceleration back, build up the opposite one, brake, and take that back.
        longest = max_velocity / max_acceleration + 2 * max_acceleration / max_jerk
        self.braking_s = float(longest.max(initial=0.0)) + 1.0 / rate_hz
        # A correction of the velocity takes the time to build up an acceleration and release it; half as fast is calm.
        self._gain = 1.0 / (2 * (max_acceleration / max_jerk + 1.0 / rate_hz))
        self._finished = ruckig.Result.Finished
        size = len(low)
        self._still = [0.0] * size
        self._generator = ruckig.Ruckig(size, 1.0 / rate_hz)
        self._output: Any = ruckig.OutputParameter(size)
        self._brake_path: Any = ruckig.Trajectory(size)
        self._input: Any = ruckig.InputParameter(size)
        self._brake_input: Any = ruckig.InputParameter(size)
        for parameters in (self._input, self._brake_input):
            parameters.control_interface = ruckig.ControlInterface.Velocity
            parameters.synchronization = ruckig.Synchronization.No
            parameters.max_velocity = [1.0] * size
            parameters.max_acceleration = self._max_acceleration.tolist()
            parameters.max_jerk = (max_jerk / max_velocity).tolist()
        self.reset(np.clip(np.zeros(size), low, high))

    def reset(self, position: Float64Array | Float32Array) -> None:
        """Rest at a position, [A]."""
        self._input.current_position = (np.asarray(position, np.float64) / self._unit).tolist()
        self._input.current_velocity = self._still
        self._input.current_acceleration = self._still
        self._last_target: Float64Array | None = None
        self.at_rest = True

    def follow(self, target: Float32Array, may_rest_at: Callable[[Float32Array], bool] | None = None) -> Float32Array:
        """Return the next command on the way to a target inside the bounds, float32 [A].

        A step after which braking would end at a position, float32 [A], that ``may_rest_at`` refuses is replaced by a
        step of full braking.
        """
        aim = target.astype(np.float64) / self._unit
        velocity = 0.0 if self._last_target is None else (aim - self._last_target) * self._rate_hz
        error = aim - self._input.current_position - np.asarray(self._input.current_velocity) / self._rate_hz
        # From afar no faster than can be braked with half of the acceleration: sqrt(2 (a / 2) |error|).
        correction = np.minimum(self._gain * np.abs(error), np.sqrt(self._max_acceleration * np.abs(error)))
        velocity = np.clip(velocity + np.sign(error) * correction, -1.0, 1.0)
        self._step(velocity)
        leaving = self._would_leave()
        if leaving.any():
            self._step(np.where(leaving, 0.0, velocity))
        if may_rest_at is not None and not may_rest_at(self._resting_position()):
            self._step(np.zeros(len(self._low)))
        self._last_target = aim
        self.at_rest = False
        return self._take_output()

    def brake(self) -> Float32Array:
        """Return the next command on the fastest way to rest, float32 [A]."""
        self._last_target = None
        self.at_rest = self._step(np.zeros(len(self._low))) == self._finished
        return self._take_output()

    def _step(self, velocity: Float64Array) -> Any:
        """Compute the next state on the way to a velocity; the present one stays until `_take_output`."""
        self._input.target_velocity = velocity.tolist()
        return self._generator.update(self._input, self._output)

    def _would_leave(self) -> NDArray[np.bool_]:
        """bool [A]: braking from the state that was just computed would end outside the bounds."""
        self._plan_braking()
        extrema = np.array([(bound.min, bound.max) for bound in self._brake_path.position_extrema])
        low, high = self._reach()
        outside: NDArray[np.bool_] = (extrema[:, 0] < low - _ROUNDING) | (extrema[:, 1] > high + _ROUNDING)
        return outside

    def _resting_position(self) -> Float32Array:
        """float32 [A], where braking from the state that was just computed would end."""
        self._plan_braking()
        position, _, _ = self._brake_path.at_time(self._brake_path.duration)
        return (np.asarray(position) * self._unit).astype(np.float32)

    def _plan_braking(self) -> None:
        braking = self._brake_input
        braking.current_position = self._output.new_position
        braking.current_velocity = self._output.new_velocity
        braking.current_acceleration = self._output.new_acceleration
        braking.target_velocity = self._still
        self._generator.calculate(braking, self._brake_path)

    def _reach(self) -> tuple[Float64Array, Float64Array]:
        """Return the bounds, each [A]; wider where the present position is outside: a robot may be found there."""
        position = np.asarray(self._input.current_position)
        return np.minimum(self._low, position), np.maximum(self._high, position)

    def _take_output(self) -> Float32Array:
        position = np.clip(self._output.new_position, *self._reach())
        self._output.pass_to_input(self._input)
        return (position * self._unit).astype(np.float32)
