"""Commands within the limits of a robot: joint limits and workspace, then rate, or velocity, acceleration and jerk."""

import functools
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from robot_io.limits import RobotLimits, nearer_signs
from robot_io.reasons import Reason
from robot_io.smoothing import JerkLimiter
from vla_rl.core.types import Float32Array

_JOINT_LIMIT, _WORKSPACE, _SELF_COLLISION = int(Reason.JOINT_LIMIT), int(Reason.WORKSPACE), int(Reason.SELF_COLLISION)
_RATE, _SMOOTHED = int(Reason.RATE), int(Reason.SMOOTHED)


class MotionLimits:
    """Turns targets into commands, each within reach of the command before. Part of the safety gate.

    Args:
        config: Limits, checked.
        command_hz: Rate of the commands.
        commands_per_tick: K, commands in the time of one action. Actions are interpolated linearly, discrete
            dimensions excepted, before the limits are applied at the robot's rate.
        tool_position, too_close: See `robot_io.gate.SafetyGate`.

    Attributes:
        low, high: float32 [A], joint limits.
        max_step: float32 [A], largest change from one command to the next; infinite where a dimension may jump.
        smooth_dims: Dimensions that are neither discrete nor steps.
        previous: float32 [A], the last command.
        braking_s: Longest time that coming to rest takes.
    """

    def __init__(
        self,
        config: RobotLimits,
        command_hz: float,
        commands_per_tick: int,
        tool_position: Callable[[Float32Array], NDArray[np.floating]] | None,
        too_close: Callable[[Float32Array], bool] | None,
    ) -> None:
        self._config = config
        self._discrete_dims, self._delta_dims = list(config.discrete_dims), list(config.delta_dims)
        self.low = np.asarray(config.low, np.float32)
        self.high = np.asarray(config.high, np.float32)
        self.max_step = (np.asarray(config.max_velocity) / command_hz).astype(np.float32)
        self.max_step[self._discrete_dims] = np.inf
        self.smooth_dims = np.setdiff1d(np.arange(len(config.low)), [*config.discrete_dims, *config.delta_dims])
        self._tool_position = tool_position if config.workspace_low else None
        self._too_close = too_close if config.self_distance else None
        self._guards_places = self._tool_position is not None or self._too_close is not None
        self._fractions = np.linspace(0, 1, commands_per_tick + 1, dtype=np.float32)[1:]
        self._limiter = _make_limiter(config, self.smooth_dims, command_hz)
        self.braking_s = 0.0 if self._limiter is None else self._limiter.braking_s
        self.reset(np.clip(np.zeros_like(self.low), self.low, self.high))

    def reset(self, posture: Float32Array) -> None:
        """Rest at a posture, float32 [A]."""
        self.previous = posture
        self._target = np.minimum(np.maximum(posture, self.low), self.high)
        self.hold_at([], posture)

    def hold_at(self, dims: NDArray[np.int_] | list[int], position: Float32Array) -> None:
        """Rest at once: some dimensions at a position, float32 [A], the others at the last command."""
        self.previous = self.previous.copy()
        self.previous[dims] = position[dims]
        if self._limiter is not None:
            self._limiter.reset(self.previous[self.smooth_dims])

    @property
    def at_rest(self) -> bool:
        """The last commands ended the motion."""
        smooth_at_rest = self._limiter is None or self._limiter.at_rest
        return smooth_at_rest and not self.previous[self._delta_dims].any()

    def brake(self, count: int) -> Float32Array:
        """Return commands on the way to rest, or at rest, float32 [count, A]."""
        commands = np.tile(self.previous, (count, 1))
        commands[:, self._delta_dims] = 0
        if self._limiter is not None:
            for command in commands:
                command[self.smooth_dims] = self._limiter.brake()
        self._target = self.previous = commands[-1].copy()  # what is returned belongs to the caller
        return commands

    def follow(self, action: Float32Array, count: int) -> tuple[Float32Array, int]:
        """Return commands on the way to a finite action [A], float32 [count, A], and why they differ from it."""
        reasons = 0
        action = nearer_signs(action, self.previous, self._config.quaternions)
        target = np.minimum(np.maximum(action, self.low), self.high)
        if (target != action).any():
            reasons = _JOINT_LIMIT
        if self._guards_places and (objections := self._objections(target)):
            reasons |= objections
            target = self._target
        if self._limiter is not None and (action == self.previous).all():
            return self.brake(count), reasons  # a hold: come to rest where the motion ends, do not turn back
        targets = target[None] if len(self._fractions) == 1 else self._interpolate(target, count)
        self._target = target
        self._turned_back = 0
        # A robot that is already where it must not be may leave.
        guarded = ~self._objections(self.previous) if self._guards_places else 0
        commands = self._limit_steps(targets, guarded) if self._limiter is None else self._smooth(targets, guarded)
        reasons |= self._turned_back
        if (commands != targets).any():
            reasons |= _RATE if self._limiter is None else _SMOOTHED
        self.previous = commands[-1].copy()
        return commands, reasons

    def _interpolate(self, target: Float32Array, count: int) -> Float32Array:
        """float32 [count, A] from the last target, which is not sent again, to this one: the last ones of K."""
        targets = self._target + self._fractions[-count:, None] * (target - self._target)
        targets[:, self._discrete_dims] = target[self._discrete_dims]
        targets[-1] = target
        return targets

    def _smooth(self, targets: Float32Array, guarded: int) -> Float32Array:
        """Return float32 [count, A] within the limits, to which no ``guarded`` reason objects."""
        assert self._limiter is not None
        commands = targets.copy()
        for command in commands:
            command[self.smooth_dims] = self._limiter.follow(
                command[self.smooth_dims], functools.partial(self._may_rest_at, guarded) if guarded else None
            )
        return commands

    def _may_rest_at(self, guarded: int, position: Float32Array) -> bool:
        command = self.previous.copy()
        command[self.smooth_dims] = position
        return self._may_go_to(command, guarded)

    def _limit_steps(self, targets: Float32Array, guarded: int) -> Float32Array:
        """float32 [count, A], no two commands in a row further apart than the velocity limit allows, none for which a
        reason among ``guarded`` objects.
        """
        commands = np.empty_like(targets)
        previous, step = self.previous, self.max_step
        for target, command in zip(targets, commands, strict=True):
            np.maximum(target, previous - step, out=command)
            np.minimum(command, previous + step, out=command)
            if guarded and not self._may_go_to(command, guarded):
                command[:] = previous
            previous = command
        return commands

    def _may_go_to(self, command: Float32Array, guarded: int) -> bool:
        objections = self._objections(command) & guarded
        self._turned_back |= objections
        return not objections

    def _objections(self, command: Float32Array) -> int:
        """Why the robot must not be at a command that its joint limits allow: WORKSPACE, SELF_COLLISION."""
        reasons = 0
        if self._tool_position is not None:
            position, config = self._tool_position(command), self._config
            if not ((position >= config.workspace_low).all() and (position <= config.workspace_high).all()):
                reasons = _WORKSPACE
        if self._too_close is not None and self._too_close(command):
            reasons |= _SELF_COLLISION
        return reasons


def _make_limiter(config: RobotLimits, dims: NDArray[np.intp], rate_hz: float) -> JerkLimiter | None:
    if not config.max_acceleration or not len(dims):
        return None
    limits = (config.low, config.high, config.max_velocity, config.max_acceleration, config.max_jerk)
    low, high, velocity, acceleration, jerk = (np.asarray(limit, np.float64)[dims] for limit in limits)
    return JerkLimiter(low, high, velocity, acceleration, jerk, rate_hz)
