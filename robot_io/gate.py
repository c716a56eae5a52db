"""The safety gate: between every source of actions and the robot, independent of the policy, on by default.

finite and shape -> joint and workspace clamp -> watchdogs -> rate limit against the previous command. A fault (a number that is not finite, an
observation or a plan that is too old) holds the last command; a fault that lasts latches a stop, which only a person re-arms. Every change has a
reason: returned with the command, counted, and logged when it begins. Called from the control thread only.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntFlag

import numpy as np

from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Verdict
from vla_rl.core.types import Float32Array

_log = logging.getLogger(__name__)


class Reason(IntFlag):
    """Why the gate changed an action."""

    NOT_FINITE = 1
    WRONG_SHAPE = 2
    JOINT_LIMIT = 4
    WORKSPACE = 8
    OBSERVATION_OLD = 16
    ACTION_OLD = 32
    RATE = 64
    LATCHED = 128


_FAULTS = int(Reason.NOT_FINITE | Reason.WRONG_SHAPE | Reason.OBSERVATION_OLD | Reason.ACTION_OLD)


@dataclass(frozen=True)
class GateConfig:
    """Limits of a robot, in its action's own units. Lists have one number per action dimension.

    Attributes:
        low: smallest command.
        high: largest command.
        max_velocity: fastest change of the command, per second; ``inf`` for dimensions that may jump (binary grippers).
        max_observation_age_ms: an older observation is a fault.
        max_action_age_ms: an action planned from an older observation is a fault. At least the length of a chunk.
        stop_after_ms: a fault that lasts this long latches the stop; shorter ones hold.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    max_velocity: tuple[float, ...]
    max_observation_age_ms: float = 200.0
    max_action_age_ms: float = 2000.0
    stop_after_ms: float = 300.0


class SafetyGate:
    """See the module. Implements `vla_rl.core.protocols.Gate`.

    Args:
        config: the robot's limits.
        rate_hz: how often `admit` is called.

    Raises:
        ConfigError: for lists of different lengths, bounds that cross, or limits that are not positive.
    """

    def __init__(self, config: GateConfig, rate_hz: float) -> None:
        sizes = {name: len(getattr(config, name)) for name in ("low", "high", "max_velocity")}
        if len(set(sizes.values())) != 1:
            raise ConfigError(
                f"the gate's limits have different lengths: {sizes}; give one number per action dimension"
            )
        self.config = config
        self._low = np.asarray(config.low, np.float32)
        self._high = np.asarray(config.high, np.float32)
        self._max_step = (np.asarray(config.max_velocity) / rate_hz).astype(np.float32)
        if not (self._low < self._high).all():
            raise ConfigError(f"the gate's low {config.low} must be below its high {config.high}")
        if not (self._max_step > 0).all():
            raise ConfigError(f"the gate's max_velocity {config.max_velocity} must be positive")
        self._max_observation_age_ns = config.max_observation_age_ms * 1e6
        self._max_action_age_ns = config.max_action_age_ms * 1e6
        self._stop_after_ns = config.stop_after_ms * 1e6
        self.counts: dict[Reason, int] = dict.fromkeys(Reason, 0)
        self.latched = False
        self.reset(np.clip(np.zeros_like(self._low), self._low, self._high))

    def reset(self, command: Float32Array) -> None:
        """Start an attempt at rest at ``command``, float32 [A]. A latched stop stays latched: see `rearm`."""
        self._previous = np.asarray(command, np.float32)
        self._fault_since_ns: int | None = None
        self._active = 0

    def rearm(self) -> None:
        """Release a latched stop. For a person to call, after looking."""
        self.latched = False

    def admit(self, action: Float32Array, now_ns: int, observed_ns: int, planned_ns: int) -> Verdict:
        """See `vla_rl.core.protocols.Gate.admit`. The command is a new array."""
        reasons = 0
        if action.shape != self._low.shape:
            reasons = 2
        elif not np.isfinite(action).all():
            reasons = 1
        if now_ns - observed_ns > self._max_observation_age_ns:
            reasons |= 16
        if now_ns - planned_ns > self._max_action_age_ns:
            reasons |= 32
        if reasons or self._fault_since_ns is not None or self.latched:
            reasons |= self._watch(reasons, now_ns)
        if reasons & (_FAULTS | Reason.LATCHED):
            command = self._previous.copy()
        else:
            clamped = np.minimum(np.maximum(action, self._low), self._high)
            command = np.minimum(np.maximum(clamped, self._previous - self._max_step), self._previous + self._max_step)
            if (clamped != action).any():
                reasons |= 4
            if (command != clamped).any():
                reasons |= 64
            self._previous = command
        if reasons or self._active:
            self._account(reasons)
        return Verdict(command, int(reasons), self.latched)

    def _watch(self, faults: int, now_ns: int) -> int:
        """Keep the time of a fault; latch when it has lasted."""
        if not faults:
            self._fault_since_ns = None
        elif self._fault_since_ns is None:
            self._fault_since_ns = now_ns
        if self._fault_since_ns is not None and now_ns - self._fault_since_ns >= self._stop_after_ns:
            self.latched = True
        return Reason.LATCHED if self.latched else 0

    def _account(self, reasons: int) -> None:
        for reason in Reason(int(reasons)):
            self.counts[reason] += 1
        begun = Reason(int(reasons) & ~self._active)
        if begun:
            level = logging.WARNING if begun & (_FAULTS | Reason.LATCHED) else logging.INFO
            _log.log(level, "gate: %s", begun.name)
        self._active = int(reasons)


def simulation_gate(
    low: Sequence[float], high: Sequence[float], rate_hz: float, discrete_dims: Sequence[int] = ()
) -> SafetyGate:
    """The light preset for physics tasks: finite, clamp and a generous rate (the whole range in a fifth of a second; no limit for grippers).

    Args:
        low: smallest command, [A].
        high: largest command, [A].
        rate_hz: the control rate.
        discrete_dims: dimensions that may jump.
    """
    max_velocity = 5.0 * (np.asarray(high, float) - np.asarray(low, float))
    max_velocity[list(discrete_dims)] = np.inf
    limits = (tuple(map(float, values)) for values in (low, high, max_velocity))
    return SafetyGate(GateConfig(*limits, max_action_age_ms=np.inf), rate_hz)
