"""The safety gate: it stands between every source of actions and the robot, and is on by default.

Each action passes in this order: watchdogs (shape, finite numbers, ages of observation and plan) -> joint limits and
workspace -> rate limit, or velocity, acceleration and jerk limits. A fault brakes the robot to rest and holds it. A
fault may pass; one that lasts latches the stop, and only a person re-arms it. What the joint monitor or an interlock
reports, and a pause of this process, latch it at once. A robot that pushes against something, or was moved in a
pause, then holds where it is: its last command would push on, or pull it back. After a pause the gate sends nothing
until a reading says where the robot is. Every change has a reason, which is returned with the command, counted, and
logged when it begins. Called from the control thread only.

Order of a stop: hold while braking -> at rest, latched -> the loop calls the robot's `stop`, which damps -> until
`SafetyGate.rearm`. A policy can skip none of it: the gate sees actions and times, never their origin.

Limits hold from command to command. The loop makes them hold per second: it never sends the commands of a tick closer
together than their equal parts of it, and tells the gate how many there is still time for.
"""

import functools
import logging
from collections.abc import Callable, Sequence
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from robot_io.joint_monitor import JointMonitor
from robot_io.limits import (
    GateConfig,
    RobotLimits,
    agreed_posture,
    check_limits,
    nearer_signs,
    no_rotations,
    rest_tolerance,
)
from robot_io.smoothing import JerkLimiter
from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Condition, Verdict
from vla_rl.core.types import Float32Array

__all__ = ["GateConfig", "Reason", "SafetyGate"]

_log = logging.getLogger(__name__)


class Reason(IntFlag):
    """Why the gate changed an action. Recorded as the column ``gate_reasons``."""

    NOT_FINITE = 1
    WRONG_SHAPE = 2
    JOINT_LIMIT = 4
    WORKSPACE = 8
    OBSERVATION_STALE = 16
    ACTION_STALE = 32
    RATE = 64
    LATCHED = 128
    SMOOTHED = 256
    FOLLOWING_ERROR = 512
    FROZEN = 1024
    EFFORT = 2048
    OUT_OF_RANGE = 4096
    LOOP_PAUSED = 8192
    OTHER_PUBLISHER = 16384
    E_STOP = 32768
    SELF_COLLISION = 65536
    DEAD_MAN = 131072
    CONTROLLERS = 262144
    INVALID_QUATERNION = 524288


# Plain numbers for the control loop: arithmetic on an IntFlag takes a microsecond each time.
_NOT_FINITE, _WRONG_SHAPE, _JOINT_LIMIT, _WORKSPACE, _OBSERVATION_OLD, _ACTION_OLD, _RATE, _LATCHED, _SMOOTHED = map(
    int, list(Reason)[:9]
)
_OF_BODY = {
    JointMonitor.FOLLOWING: int(Reason.FOLLOWING_ERROR),
    JointMonitor.FROZEN: int(Reason.FROZEN),
    JointMonitor.EFFORT: int(Reason.EFFORT),
    JointMonitor.BEYOND: int(Reason.OUT_OF_RANGE),
}
_GAP, _SELF_COLLISION, _NO_ROTATION = (
    int(Reason.LOOP_PAUSED),
    int(Reason.SELF_COLLISION),
    int(Reason.INVALID_QUATERNION),
)
_INTERLOCKS = int(Reason.OTHER_PUBLISHER | Reason.E_STOP | Reason.DEAD_MAN | Reason.CONTROLLERS)
_LATCHING = _GAP | _INTERLOCKS | sum(_OF_BODY.values())  # no passing faults
_IN_THE_WAY = _OF_BODY[JointMonitor.FOLLOWING] | _OF_BODY[JointMonitor.EFFORT]
_FAULTS = _NOT_FINITE | _NO_ROTATION | _WRONG_SHAPE | _OBSERVATION_OLD | _ACTION_OLD | _LATCHING
_LONG_AGO = 1 << 62


class SafetyGate:
    """See the module. A `vla_rl.core.protocols.Gate`.

    Args:
        config: the robot's limits, none of low, high and max_velocity empty.
        rate_hz: how often `admit` is called, the control rate.
        commands_per_tick: how many commands the robot takes in the time of one action. Actions are interpolated
            linearly, discrete dimensions excepted, before the limits are applied at the robot's rate.
        tool_position: the tool's x, y, z in meters, [3], at a command [A]; needed for workspace limits. Called up to
            twice a command.
        names: of the action dimensions, for what is said about them.
        too_close: whether parts of the robot are too close to each other at a command [A]; needed for
            ``self_distance``. Called as often.

    Attributes:
        counts: how many actions were changed for each reason, since the gate was made.
        rest: float32 [A], where the attempt began.
        latched: the stop has latched.
        why: what was noticed of the robot itself, as a sentence; empty if nothing was.
        braking_s: how long coming to rest may take by the limits.

    Raises:
        ConfigError: see `robot_io.limits.check_limits`; for limits of another number of dimensions than names.
        UserError: if there are acceleration limits and the package ruckig is missing.
    """

    def __init__(
        self,
        config: GateConfig,
        rate_hz: float,
        commands_per_tick: int = 1,
        tool_position: Callable[[Float32Array], NDArray[np.floating]] | None = None,
        names: Sequence[str] = (),
        too_close: Callable[[Float32Array], bool] | None = None,
    ) -> None:
        config = RobotLimits.of(config)
        check_limits(config, rate_hz, commands_per_tick, tool_position is not None, too_close is not None)
        if names and len(names) != len(config.low):
            raise ConfigError(
                f"the limits are those of {len(config.low)} dimensions, the robot takes {len(names)} "
                f"({', '.join(names)}): are they the limits of this robot?"
            )
        self.config = config
        self.commands_per_tick = commands_per_tick
        command_hz = rate_hz * commands_per_tick
        self._discrete_dims = list(config.discrete_dims)
        self._low = np.asarray(config.low, np.float32)
        self._high = np.asarray(config.high, np.float32)
        self._max_step = (np.asarray(config.max_velocity) / command_hz).astype(np.float32)
        self._max_step[self._discrete_dims] = np.inf
        self._tool_position = tool_position if config.workspace_low else None
        self._too_close = too_close if config.self_distance else None
        self._guards_places = self._tool_position is not None or self._too_close is not None
        self._delta_dims = list(config.delta_dims)
        self._smooth_dims = np.setdiff1d(np.arange(len(config.low)), [*config.discrete_dims, *config.delta_dims])
        self._fractions = np.linspace(0, 1, commands_per_tick + 1, dtype=np.float32)[1:]
        self._limiter = _make_limiter(config, self._smooth_dims, command_hz)
        self.braking_s = 0.0 if self._limiter is None else self._limiter.braking_s
        self._max_observation_age_ns = config.max_observation_age_ms * 1e6
        self._max_action_age_ns = config.max_action_age_ms * 1e6
        self._stop_after_ns = config.stop_after_ms * 1e6
        self._max_gap_ns = config.max_gap_ms * 1e6
        tolerance, one_tick = rest_tolerance(config), self._max_step * commands_per_tick
        tolerance[self._delta_dims] = np.inf  # limits of steps say nothing of where the joint may be
        yielding = [*config.discrete_dims, *config.delta_dims]
        low, high, silent_ns = self._low - tolerance, self._high + tolerance, self._max_observation_age_ns
        self._joint_monitor = JointMonitor(config.joint_monitor, low, high, one_tick, silent_ns, yielding, names)
        # A gripper keeps what it holds, unless it squeezes too hard.
        self._yielding = np.intersect1d(self._smooth_dims, config.joint_monitor.yielding_dims).astype(np.int64)
        self._may_yield = np.setdiff1d(self._smooth_dims, self._yielding)
        self._interlocks = 0
        self.why = ""
        self.counts: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.latched = False
        self._begin_at(np.clip(np.zeros_like(self._low), self._low, self._high))

    def reset(self, readings: Float32Array) -> Float32Array:
        """See `vla_rl.core.protocols.Gate.reset`. A latched stop stays latched: see `rearm`.

        Raises:
            UserError: see `robot_io.limits.agreed_posture`; what is returned is held, and repeated at every fault.
        """
        one_tick = self._max_step * self.commands_per_tick
        told = np.atleast_2d(np.array(readings, np.float32))
        told = nearer_signs(told, told[-1], self.config.quaternions)
        posture = agreed_posture(told, self.config, one_tick)
        self._begin_at(posture)
        return posture

    def _begin_at(self, posture: Float32Array) -> None:
        self._previous = self.rest = posture
        self._target = np.minimum(np.maximum(self._previous, self._low), self._high)
        self._fault_since_ns: int | None = None
        self._active = 0
        self._condition: Condition | None = None
        self._gave_way = 0  # for which reasons
        self._admitted_ns = _LONG_AGO  # times before it are no pause
        self._paused_ns: int | None = None  # when a pause began of which it is not known where the robot is after it
        self._joint_monitor.reset(posture)
        if self._limiter is not None:
            self._limiter.reset(self._previous[self._smooth_dims])

    def rearm(self) -> None:
        """Release a latched stop. For a person to call, after looking."""
        self.latched = False
        self._fault_since_ns = None
        self._interlocks = self._gave_way = 0
        self.why = ""

    def inspect(self, condition: Condition) -> None:
        """See `vla_rl.core.protocols.Gate.inspect`."""
        if self.config.quaternions:
            position, command = (nearer_signs(told, self._previous, self.config.quaternions) for told in condition[:2])
            condition = condition._replace(position=position, command=command)
        self._condition = condition
        found = self._joint_monitor.look(condition)
        if not found and not condition.interlocks:
            return
        if not self._interlocks:
            self.why = self._joint_monitor.why if found else condition.why
            _log.warning("the gate stops the robot: %s", self.why)
        self._interlocks |= condition.interlocks
        for kind in found:
            self._interlocks |= _OF_BODY[kind]

    @property
    def at_rest(self) -> bool:
        """See `vla_rl.core.protocols.Gate.at_rest`."""
        if self._paused_ns is not None:  # it has stopped by itself, nobody knows where
            return True
        smooth_at_rest = self._limiter is None or self._limiter.at_rest
        return smooth_at_rest and not self._previous[self._delta_dims].any()

    def brake(self, commands_left: int | None = None) -> Float32Array:
        """See `vla_rl.core.protocols.Gate.brake`."""
        commands = self._rest(commands_left or self.commands_per_tick)
        self._previous = commands[-1]
        return commands

    def admit(
        self, action: Float32Array, now_ns: int, observed_ns: int, planned_ns: int, commands_left: int | None = None
    ) -> Verdict:
        """See `vla_rl.core.protocols.Gate.admit`. The commands are a new array."""
        count = commands_left or self.commands_per_tick
        reasons = self._interlocks
        if action.dtype != np.float32:
            with np.errstate(over="ignore"):  # too large for float32 is not finite
                action = action.astype(np.float32)
        if action.shape != self._low.shape:
            reasons |= _WRONG_SHAPE
        elif not np.isfinite(action).all():
            reasons |= _NOT_FINITE
        elif no_rotations(action, self.config.quaternions):
            reasons |= _NO_ROTATION
        if now_ns - observed_ns > self._max_observation_age_ns:
            reasons |= _OBSERVATION_OLD
        if now_ns - planned_ns > self._max_action_age_ns:
            reasons |= _ACTION_OLD
        if now_ns - self._admitted_ns > self._max_gap_ns:
            self._paused_ns = self._admitted_ns
            paused_ms = (now_ns - self._admitted_ns) * 1e-6
            self.why = self.why or f"no command was sent for {paused_ms:.0f} ms: it stood still"
        self._admitted_ns = now_ns
        if self._paused_ns is not None:
            reasons |= _GAP
            self._stand_still(now_ns, self._paused_ns)
        if fresh := reasons & _IN_THE_WAY & ~self._gave_way:
            self._gave_way |= fresh
            squeezing = self._yielding[self._joint_monitor.pushing[self._yielding]]
            self._give_way(np.union1d(self._may_yield, squeezing))
        if reasons or self.latched or self._fault_since_ns is not None:
            reasons = self._watch(reasons, now_ns)
        if self._paused_ns is not None:
            self._account(reasons)
            return Verdict(self._previous[None][:0], reasons, held=True, stopped=self._lasts(now_ns))
        held = reasons != 0
        if held:
            commands = self._rest(count)
        else:
            commands, reasons = self._limit(action, count)
        self._previous = commands[-1]
        if reasons or self._active:
            self._account(reasons)
        return Verdict(commands, reasons, held, stopped=self.latched and self.at_rest)

    def _limit(self, action: Float32Array, count: int) -> tuple[Float32Array, int]:
        """Bring a healthy action within position, workspace and motion limits."""
        reasons = 0
        action = nearer_signs(action, self._previous, self.config.quaternions)
        target = np.minimum(np.maximum(action, self._low), self._high)
        if (target != action).any():
            reasons = _JOINT_LIMIT
        if self._guards_places and (objections := self._objections(target)):
            reasons |= objections
            target = self._target
        if self._limiter is not None and (action == self._previous).all():
            return self._rest(count), reasons  # a hold: come to rest where the motion ends, do not turn back
        targets = target[None] if self.commands_per_tick == 1 else self._interpolate(target, count)
        self._target = target
        self._turned_back = 0
        # What the robot finds itself in already does not hold it: it may leave.
        guarded = ~self._objections(self._previous) if self._guards_places else 0
        commands = self._limit_steps(targets, guarded) if self._limiter is None else self._smooth(targets, guarded)
        reasons |= self._turned_back
        if (commands != targets).any():
            reasons |= _RATE if self._limiter is None else _SMOOTHED
        return commands, reasons

    def _interpolate(self, target: Float32Array, count: int) -> Float32Array:
        """float32 [count, A] from the last target, which is not sent again, to this one: the last ones of K."""
        targets = self._target + self._fractions[-count:, None] * (target - self._target)
        targets[:, self._discrete_dims] = target[self._discrete_dims]
        targets[-1] = target
        return targets

    def _smooth(self, targets: Float32Array, guarded: int) -> Float32Array:
        """float32 [count, A], within the velocity, acceleration and jerk limits, none for which a reason among
        ``guarded`` objects.
        """
        assert self._limiter is not None
        commands = targets.copy()
        for command in commands:
            command[self._smooth_dims] = self._limiter.follow(
                command[self._smooth_dims], functools.partial(self._may_rest_at, guarded) if guarded else None
            )
        return commands

    def _may_rest_at(self, guarded: int, position: Float32Array) -> bool:
        command = self._previous.copy()
        command[self._smooth_dims] = position
        return self._may_go_to(command, guarded)

    def _limit_steps(self, targets: Float32Array, guarded: int) -> Float32Array:
        """float32 [count, A], no two commands in a row further apart than the velocity limit allows, none for which a
        reason among ``guarded`` objects.
        """
        commands = np.empty_like(targets)
        previous, step = self._previous, self._max_step
        for target, command in zip(targets, commands, strict=True):
            np.maximum(target, previous - step, out=command)
            np.minimum(command, previous + step, out=command)
            if guarded and not self._may_go_to(command, guarded):
                command[:] = previous
            previous = command
        return commands

    def _rest(self, count: int) -> Float32Array:
        """float32 [count, A], on the way to rest, or at rest."""
        commands = np.tile(self._previous, (count, 1))
        commands[:, self._delta_dims] = 0
        if self._limiter is not None:
            for command in commands:
                command[self._smooth_dims] = self._limiter.brake()
        self._target = commands[-1]
        return commands

    def _stand_still(self, now_ns: int, paused_ns: int) -> None:
        """No commands came for so long that the robot has stopped at the last one: braking would move it again. Where
        somebody has moved it meanwhile, a reading of afterwards tells, and nothing is sent before.
        """
        condition, moved = self._condition, self._may_yield[:0]
        if condition is not None:
            if condition.captured_ns > paused_ns and now_ns - condition.captured_ns <= self._max_observation_age_ns:
                # Joints that sag a little under their load keep their command.
                moved = self._may_yield[
                    self._joint_monitor.is_away(condition.position, self._previous)[self._may_yield]
                ]
            else:
                return
        self._paused_ns = None
        self._give_way(moved)

    def _give_way(self, dims: NDArray[np.int_]) -> None:
        """From here on these dimensions hold where they are, neither pushing on nor pulled back; all are at rest."""
        if self._condition is not None:
            position = self._condition.position
            unknown = [first + part for first in no_rotations(position, self.config.quaternions) for part in range(4)]
            dims = np.setdiff1d(dims[np.isfinite(position[dims])], [*self._condition.rate_dims, *unknown])
            dims = dims.astype(np.int64)
            self._previous = self._previous.copy()
            self._previous[dims] = position[dims]
        if self._limiter is not None:
            self._limiter.reset(self._previous[self._smooth_dims])

    def _may_go_to(self, command: Float32Array, guarded: int) -> bool:
        objections = self._objections(command) & guarded
        self._turned_back |= objections
        return not objections

    def _objections(self, command: Float32Array) -> int:
        """Why the robot must not be at a command that its joints' limits allow: WORKSPACE, SELF_COLLISION."""
        reasons = 0
        if self._tool_position is not None:
            position, config = self._tool_position(command), self.config
            if not ((position >= config.workspace_low).all() and (position <= config.workspace_high).all()):
                reasons = _WORKSPACE
        if self._too_close is not None and self._too_close(command):
            reasons |= _SELF_COLLISION
        return reasons

    def _watch(self, faults: int, now_ns: int) -> int:
        """Keep the time of a fault and latch when it has lasted. Returns the reasons to hold."""
        if not faults:
            self._fault_since_ns = None
        elif self._fault_since_ns is None:
            self._fault_since_ns = now_ns
        if faults & _LATCHING or self._lasts(now_ns):
            self.latched = True
        return faults | _LATCHED if self.latched else faults

    def _lasts(self, now_ns: int) -> bool:
        """Whether there has been a fault for long enough to latch."""
        return self._fault_since_ns is not None and now_ns - self._fault_since_ns >= self._stop_after_ns

    def _account(self, reasons: int) -> None:
        for reason in Reason(reasons):
            self.counts[reason] += 1
        begun = Reason(reasons & ~self._active)
        if begun:
            serious = reasons & (_FAULTS | _LATCHED)
            _log.log(logging.WARNING if serious else logging.DEBUG, "the gate changed an action: %s", begun.name)
        self._active = reasons


def _make_limiter(config: GateConfig, dims: NDArray[np.intp], rate_hz: float) -> JerkLimiter | None:
    if not config.max_acceleration or not len(dims):
        return None
    limits = (config.low, config.high, config.max_velocity, config.max_acceleration, config.max_jerk)
    low, high, velocity, acceleration, jerk = (np.asarray(limit, np.float64)[dims] for limit in limits)
    return JerkLimiter(low, high, velocity, acceleration, jerk, rate_hz)
