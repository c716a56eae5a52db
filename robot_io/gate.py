"""The safety gate: it stands between every source of actions and the robot, and is on by default.

Each action passes the watchdogs (shape, finite numbers, ages of observation and plan) first. Then come joint limits and
workspace, then the rate limit, or velocity, acceleration and jerk limits. A fault brakes the robot to rest and holds
it. A fault may pass; one that lasts latches the stop, and only a person re-arms it. What the joint monitor or an
interlock reports, and a pause of this process, latch it at once. A robot that pushes against something, or was moved in
a pause, then holds at its measured place. Its last command would push on, or pull it back. One reading that is far from
both the one before and the last command may be wrong. The gate sends nothing until the next one agrees. Every change
has a reason, which is returned with the command, counted, and logged when it begins. Called from the control thread
only.

Order of a stop: hold while braking -> at rest, latched -> the loop calls the robot's `stop`, which damps -> until
`SafetyGate.rearm`. A policy can skip none of it: the gate sees actions and times, never their origin.

Limits hold from command to command. The loop makes them hold per second. It never sends the commands of a tick closer
together than their equal parts of it. It passes the number of commands for which there is still time.
"""

import logging
from collections.abc import Callable, Sequence

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
from robot_io.motion_limits import MotionLimits
from robot_io.reasons import Reason
from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Condition, Verdict
from vla_rl.core.types import Float32Array

__all__ = ["GateConfig", "Reason", "SafetyGate"]

_log = logging.getLogger(__name__)

_NOT_FINITE, _WRONG_SHAPE = int(Reason.NOT_FINITE), int(Reason.WRONG_SHAPE)
_INVALID_QUATERNION, _LATCHED = int(Reason.INVALID_QUATERNION), int(Reason.LATCHED)
_OBSERVATION_STALE, _ACTION_STALE = int(Reason.OBSERVATION_STALE), int(Reason.ACTION_STALE)
_LOOP_PAUSED, _BLOCKED = int(Reason.LOOP_PAUSED), int(Reason.FOLLOWING_ERROR | Reason.EFFORT)
_LATCHING = int(  # what never passes by itself
    Reason.LOOP_PAUSED
    | Reason.FOLLOWING_ERROR
    | Reason.FROZEN
    | Reason.EFFORT
    | Reason.OUT_OF_RANGE
    | Reason.OTHER_PUBLISHER
    | Reason.E_STOP
    | Reason.DEAD_MAN
    | Reason.CONTROLLERS
)
_FAULTS = _NOT_FINITE | _INVALID_QUATERNION | _WRONG_SHAPE | _OBSERVATION_STALE | _ACTION_STALE | _LATCHING
_LONG_AGO = 1 << 62


class SafetyGate:
    """Checks, limits and latches. A `vla_rl.core.protocols.Gate`; see the module.

    Args:
        config: Limits of the robot, none of low, high and max_velocity empty.
        rate_hz: Rate of `admit`, the control rate.
        commands_per_tick: Commands in the time of one action, see `robot_io.motion_limits.MotionLimits`.
        tool_position: The tool's x, y, z in meters, [3], at a command [A]; needed for workspace limits. Called up to
            twice a command.
        names: Names of the action dimensions, for messages.
        too_close: Whether parts of the robot are too close to each other at a command [A]; needed for
            ``self_distance``. Called as often.

    Attributes:
        counts: Number of actions that were changed for each reason, since the gate was made.
        rest: float32 [A], where the attempt began.
        latched: The stop has latched.
        why: What the joint monitor or an interlock reported, as a sentence; empty if nothing.
        braking_s: Longest time that coming to rest takes.

    Raises:
        ConfigError: See `robot_io.limits.check_limits`; or the limits have another number of dimensions than names.
        UserError: There are acceleration limits, and the package ruckig is missing.
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
        self._motion = MotionLimits(config, rate_hz * commands_per_tick, commands_per_tick, tool_position, too_close)
        self.braking_s = self._motion.braking_s
        self._max_observation_age_ns = config.max_observation_age_ms * 1e6
        self._max_action_age_ns = config.max_action_age_ms * 1e6
        self._stop_after_ns = config.stop_after_ms * 1e6
        self._max_gap_ns = config.max_gap_ms * 1e6
        self._one_tick = self._motion.max_step * commands_per_tick
        self._joint_monitor = self._make_joint_monitor(names)
        # A gripper keeps what it holds, unless it squeezes too hard.
        self._yielding = np.intersect1d(self._motion.smooth_dims, config.joint_monitor.yielding_dims).astype(np.int64)
        self._may_yield = np.setdiff1d(self._motion.smooth_dims, self._yielding)
        self._interlocks = 0
        self.why = ""
        self.counts: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.latched = False
        self._begin_at(self._motion.previous)

    def _make_joint_monitor(self, names: Sequence[str]) -> JointMonitor:
        config, motion, tolerance = self.config, self._motion, rest_tolerance(self.config)
        tolerance[list(config.delta_dims)] = np.inf  # limits of steps say nothing of where the joint may be
        low, high, silent_ns = motion.low - tolerance, motion.high + tolerance, self._max_observation_age_ns
        yielding = [*config.discrete_dims, *config.delta_dims]
        return JointMonitor(config.joint_monitor, low, high, self._one_tick, silent_ns, yielding, names)

    def reset(self, readings: Float32Array) -> Float32Array:
        """Begin an attempt at the robot's posture (`vla_rl.core.protocols.Gate.reset`). A latched stop stays latched
        until `rearm`.

        Raises:
            UserError: See `robot_io.limits.agreed_posture`. The gate holds what it returns, also at every fault.
        """
        postures = np.atleast_2d(np.array(readings, np.float32))
        postures = nearer_signs(postures, postures[-1], self.config.quaternions)
        posture = agreed_posture(postures, self.config, self._one_tick)
        self._motion.reset(posture)
        self._begin_at(posture)
        return posture

    def _begin_at(self, posture: Float32Array) -> None:
        self.rest = posture.copy()  # the posture belongs to the caller
        self._fault_since_ns: int | None = None
        self._active = 0
        self._condition: Condition | None = None
        self._read_before = posture  # by the reading before the newest one
        self._gave_way = 0  # for which reasons
        self._admitted_ns = _LONG_AGO  # times before it are no pause
        self._unknown_since_ns: int | None = None  # The robot's place is unknown until a plausible reading
        self._unknown_why = 0
        self._place_before = posture  # the last reading before its place became unknown
        self._joint_monitor.reset(posture)

    def rearm(self) -> None:
        """Release a latched stop. For a person to call, after looking."""
        self.latched = False
        self._fault_since_ns = None
        self._interlocks = self._gave_way = 0
        self.why = ""

    def inspect(self, condition: Condition) -> None:
        if self.config.quaternions:
            near, quaternions = self._motion.previous, self.config.quaternions
            position, command = (nearer_signs(values, near, quaternions) for values in condition[:2])
            condition = condition._replace(position=position, command=command)
        if self._condition is not None and condition.captured_ns > self._condition.captured_ns:
            self._read_before = self._condition.position
        self._condition = condition
        reasons = self._joint_monitor.update(condition)
        if reasons & _BLOCKED & ~self._interlocks and not self._is_plausible(condition):
            self._lose_place(condition.captured_ns, reasons & _BLOCKED)
        if not reasons and not condition.interlocks:
            return
        if not self._interlocks:
            self.why = self._joint_monitor.why if reasons else condition.why
            _log.warning("the gate stops the robot: %s", self.why)
        self._interlocks |= condition.interlocks | reasons

    @property
    def at_rest(self) -> bool:
        """Whether the robot is at rest. In a pause it has stopped by itself, at an unknown place."""
        return self._unknown_since_ns is not None or self._motion.at_rest

    def brake(self, commands_left: int | None = None) -> Float32Array:
        return self._motion.brake(commands_left or self.commands_per_tick)

    def admit(
        self, action: Float32Array, now_ns: int, observed_ns: int, planned_ns: int, commands_left: int | None = None
    ) -> Verdict:
        """Check and limit an action (`vla_rl.core.protocols.Gate.admit`). The commands are a new array."""
        if action.dtype != np.float32:
            with np.errstate(over="ignore"):  # too large for float32 is not finite
                action = action.astype(np.float32)
        reasons = self._interlocks | self._check(action, now_ns, observed_ns, planned_ns)
        if self._unknown_since_ns is not None:
            reasons |= self._unknown_why
            self._find_place(now_ns, self._unknown_since_ns)
        fresh = reasons & _BLOCKED & ~self._gave_way
        if fresh and self._unknown_since_ns is None:
            self._gave_way |= fresh
            squeezing = self._yielding[self._joint_monitor.pushing[self._yielding]]
            self._give_way(np.union1d(self._may_yield, squeezing))
        if reasons or self.latched or self._fault_since_ns is not None:
            reasons = self._latch(reasons, now_ns)
        if self._unknown_since_ns is not None:
            self._account(reasons)
            return Verdict(self._motion.previous[None][:0], reasons, held=True, stopped=self._lasts(now_ns))
        count, held = commands_left or self.commands_per_tick, reasons != 0
        if held:
            commands = self._motion.brake(count)
        else:
            commands, reasons = self._motion.follow(action, count)
        if reasons or self._active:
            self._account(reasons)
        return Verdict(commands, reasons, held, stopped=self.latched and self.at_rest)

    def outdated(self, age_ns: int, sent: Float32Array) -> Float32Array | None:
        """Return where the robot rests if commands are too old to be sent (`vla_rl.core.protocols.Gate.outdated`)."""
        if age_ns <= self._max_gap_ns:
            return None
        rest = self.still(sent)
        self._motion.reset(rest)
        return rest

    def still(self, command: Float32Array) -> Float32Array:
        """Return a command without its steps (`vla_rl.core.protocols.Gate.still`)."""
        command = command.copy()
        command[list(self.config.delta_dims)] = 0.0
        return command

    def _check(self, action: Float32Array, now_ns: int, observed_ns: int, planned_ns: int) -> int:
        """Return why the watchdogs refuse an action. Detects a pause of the loop."""
        reasons = 0
        if action.shape != self._motion.low.shape:
            reasons |= _WRONG_SHAPE
        elif not np.isfinite(action).all():
            reasons |= _NOT_FINITE
        elif no_rotations(action, self.config.quaternions):
            reasons |= _INVALID_QUATERNION
        if now_ns - observed_ns > self._max_observation_age_ns:
            reasons |= _OBSERVATION_STALE
        if now_ns - planned_ns > self._max_action_age_ns:
            reasons |= _ACTION_STALE
        if self._admitted_ns == _LONG_AGO:
            condition = self._condition
            if condition is not None and now_ns - condition.captured_ns > self._max_observation_age_ns:
                self._lose_place(condition.captured_ns, _OBSERVATION_STALE)
        elif now_ns - self._admitted_ns > self._max_gap_ns:
            self._lose_place(self._admitted_ns, _LOOP_PAUSED)
            paused_ms = (now_ns - self._admitted_ns) * 1e-6
            self.why = self.why or f"no command was sent for {paused_ms:.0f} ms: it stood still"
        self._admitted_ns = now_ns
        return reasons

    def _lose_place(self, since_ns: int, why: int) -> None:
        """From here on the robot's place is unknown, for these reasons. Only readings after ``since_ns`` say it."""
        if self._unknown_since_ns is None:  # else it is lost since before
            seen, self._place_before = self._condition, self._read_before
            if why == _LOOP_PAUSED and seen is not None and seen.captured_ns <= since_ns:
                self._place_before = seen.position
        self._unknown_since_ns, self._unknown_why = since_ns, why

    def _find_place(self, now_ns: int, since_ns: int) -> None:
        """Hold where the robot is. It has stopped at the last command: braking would move it again. A person may have
        moved it, so only later readings show where it is. One reading alone may be wrong: the command would jump there.
        """
        condition, moved = self._condition, self._may_yield[:0]
        if condition is not None:
            if condition.captured_ns <= since_ns or now_ns - condition.captured_ns > self._max_observation_age_ns:
                return
            if not self._is_plausible(condition):
                return
            # Joints that sag a little under their load, as they did before, keep their command.
            near = self._motion.previous
            away = self._joint_monitor.is_away(condition.position, near)
            apart = np.abs([condition.position - self._place_before, condition.position - near])
            away |= ~(apart <= self._one_tick).any(axis=0)  # a place that was no number says nothing
            moved = self._may_yield[away[self._may_yield]]
        self._unknown_since_ns = None
        self._give_way(moved)

    def _is_plausible(self, condition: Condition) -> bool:
        """Return whether a reading is at most one tick of motion from the one before it or from the last command."""
        dims = np.setdiff1d(self._may_yield, condition.rate_dims)
        expected = np.stack([self._read_before, self._motion.previous])[:, dims]
        apart = np.abs(condition.position[dims] - expected).min(axis=0)
        return not (np.isfinite(apart) & (apart > self._one_tick[dims])).any()

    def _give_way(self, dims: NDArray[np.int_]) -> None:
        """From here on these dimensions hold where they are, neither pushing on nor pulled back; all are at rest."""
        position = self._motion.previous
        if self._condition is not None:
            position = self._condition.position
            unknown = [first + part for first in no_rotations(position, self.config.quaternions) for part in range(4)]
            dims = np.setdiff1d(dims[np.isfinite(position[dims])], [*self._condition.rate_dims, *unknown])
        self._motion.hold_at(dims.astype(np.int64), position)

    def _latch(self, faults: int, now_ns: int) -> int:
        """Keep the time of a fault and latch when it has lasted. Returns the reasons to hold."""
        if not faults:
            self._fault_since_ns = None
        elif self._fault_since_ns is None:
            self._fault_since_ns = now_ns
        if faults & _LATCHING or self._lasts(now_ns):
            self.latched = True
        return faults | _LATCHED if self.latched else faults

    def _lasts(self, now_ns: int) -> bool:
        """Return whether there has been a fault for long enough to latch."""
        return self._fault_since_ns is not None and now_ns - self._fault_since_ns >= self._stop_after_ns

    def _account(self, reasons: int) -> None:
        for reason in Reason(reasons):
            self.counts[reason] += 1
        begun = Reason(reasons & ~self._active)
        if begun:
            serious = reasons & (_FAULTS | _LATCHED)
            _log.log(logging.WARNING if serious else logging.DEBUG, "the gate changed an action: %s", begun.name)
        self._active = reasons
