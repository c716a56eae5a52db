"""The joint monitor compares the joints' readings with their commands.

It detects a joint that does not follow its command, and a reading that stands still while the command moves. It also
detects an effort beyond its limit, and a reading outside the joint's range. Each is reported when it has lasted for its
declared time. A joint that is elsewhere after a silence is reported at once. A driver that restarted with another zero
would drive the arm to its command before any declared time has passed. The safety gate asks, and latches its stop.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robot_io.reasons import Reason
from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Condition
from vla_rl.core.types import Float32Array

_log = logging.getLogger(__name__)

FOLLOWING_SHARE, TRAVEL_SHARE = 0.1, 0.02  # defaults, of the range between the limits
_MOVED = "is at {0:.4g} after a silence, its command is {1:.4g}: did its driver begin anew with another zero?"
_NEVER = np.iinfo(np.int64).max
_FOLLOWING, _FROZEN, _EFFORT, _RANGE = range(4)  # rows of the arrays below
_REASONS = np.array([Reason.FOLLOWING_ERROR, Reason.FROZEN, Reason.EFFORT, Reason.OUT_OF_RANGE], np.int64)
_TIMES = ("following_after_ms", "frozen_after_ms", "effort_after_ms", "beyond_after_ms")


@dataclass(frozen=True)
class JointMonitorConfig:
    """Tolerances and times of the joint monitor. One number per action dimension, in the units of the action.

    Attributes:
        following_tolerance: Largest distance of a joint from its command; empty: a tenth of the range of its limits.
        following_after_ms: Time for which a larger distance is tolerated, ms.
        frozen_travel: Travel of the command at which a reading that stands still is suspicious; larger than what
            friction and the encoder's resolution hide. Empty: a fiftieth of the range.
        frozen_after_ms: Time after that travel in which the reading must move, ms.
        max_effort: Largest effort (torque, force, current: what the robot measures), of either sign; empty: no limit.
        effort_after_ms: Time for which a larger effort is tolerated, ms.
        beyond_after_ms: Time for which readings outside the limits and their ``rest_tolerance`` are tolerated, ms.
            Readings inside must last as long to end it.
        yielding_dims: Dimensions that may stand still against their command, beside the discrete ones: grippers that
            hold something.
    """

    following_tolerance: tuple[float, ...] = ()
    following_after_ms: float = 500.0
    frozen_travel: tuple[float, ...] = ()
    frozen_after_ms: float = 500.0
    max_effort: tuple[float, ...] = ()
    effort_after_ms: float = 200.0
    beyond_after_ms: float = 100.0
    yielding_dims: tuple[int, ...] = ()

    def check(self, size: int) -> None:
        """Raise ConfigError for a value with which nothing would be noticed, for ``size`` action dimensions."""
        for name in ("following_tolerance", "frozen_travel", "max_effort"):
            values = getattr(self, name)
            if values and len(values) != size:
                raise ConfigError(f"the gate's joint_monitor.{name} has {len(values)} numbers for {size} dimensions")
            if not all(np.isfinite(value) and value > 0 for value in values):
                raise ConfigError(f"the gate's joint_monitor.{name} {values} must be finite and positive")
        for name in _TIMES:
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ConfigError(f"the gate's joint_monitor.{name} is {getattr(self, name):g}; expected a time in ms")
        if not all(0 <= dim < size for dim in self.yielding_dims):
            raise ConfigError(
                f"the gate's joint_monitor.yielding_dims {self.yielding_dims} are not among {size} dimensions"
            )


def measures_effort(condition: Condition) -> bool:
    """Return whether a robot measures the effort of at least one joint."""
    return condition.effort is not None and not np.isnan(condition.effort).all()


class JointMonitor:
    """Checks every new reading, and says ``why`` it objected last. Called from the control thread only.

    Args:
        config: Tolerances and times.
        low, high: Limits of the readings with their tolerance, float32 [A].
        step: Largest change of a command in one tick, float32 [A]; infinite where it may jump.
        silent_ns: Largest time between two readings that is no silence.
        yielding: Dimensions that need not follow.
        names: Names of the dimensions, for messages; empty: numbers.
    """

    def __init__(
        self,
        config: JointMonitorConfig,
        low: Float32Array,
        high: Float32Array,
        step: Float32Array,
        silent_ns: float,
        yielding: Sequence[int],
        names: Sequence[str] = (),
    ) -> None:
        config.check(len(low))
        self._low, self._high, self._names = low, high, names
        self._has_place = np.isfinite(low) & np.isfinite(high)  # not that of a step
        free = np.zeros(len(low), bool)
        free[[*yielding, *config.yielding_dims]] = True
        self._step, self._silent_ns = np.where(free, np.inf, step), silent_ns
        width = high - low
        self._tolerance = np.where(free, np.inf, config.following_tolerance or FOLLOWING_SHARE * width)
        self._travel = np.where(free, np.inf, config.frozen_travel or TRAVEL_SHARE * width)
        self._max_effort = np.asarray(config.max_effort, np.float32)
        self._after_ns = np.array([[getattr(config, name) * 1e6] for name in _TIMES])  # [4, 1]
        # A right reading ends a fault only after this time: an encoder may flicker between right and impossible.
        self._forgotten_ns = np.where(np.arange(4)[:, None] == _RANGE, self._after_ns, 0)  # [4, 1]
        self._bad = np.zeros((4, len(low)), bool)
        self._bad_ns = np.zeros((4, len(low)), np.int64)
        self._since_ns = np.full((4, len(low)), _NEVER)
        self.reset(np.zeros(len(low), np.float32))

    def reset(self, posture: Float32Array) -> None:
        """Begin an attempt at a posture, float32 [A]."""
        self._bad[:] = False
        self._since_ns[:] = _NEVER
        self._position = posture
        self._first_command = posture.copy()  # of each joint, since its reading moved last
        self._updated_ns: int | None = None
        self.why = ""

    def update(self, condition: Condition) -> int:
        """Check a reading that is newer than the last; return the flags of `Reason` that have lasted too long."""
        position, command, now_ns = condition.position, condition.command, condition.captured_ns
        if self._updated_ns is None:
            rest = self._position
            moved = np.abs(position - rest) > self._step
            if moved.any():
                self._report(moved, position, rest, "was moved before the first command: it is at {0:.4g}, not {1:.4g}")
                return int(Reason.FOLLOWING_ERROR)
            if len(self._max_effort) and not measures_effort(condition):
                _log.warning("max_effort is set, but the robot measures no effort: it is not monitored")
        elif now_ns <= self._updated_ns:
            return 0
        elif now_ns - self._updated_ns > self._silent_ns and (away := self.is_away(position, command)).any():
            self._position, self._updated_ns = position, now_ns
            self._report(away, position, command, _MOVED)
            return int(Reason.FOLLOWING_ERROR)
        self._updated_ns = now_ns
        bad = self._bad
        np.greater(np.abs(position - command), self._tolerance, out=bad[_FOLLOWING])
        lively = position != self._position
        np.copyto(self._first_command, command, where=lively)
        bad[_FROZEN] = ~lively & (bad[_FROZEN] | (np.abs(command - self._first_command) > self._travel))
        if len(self._max_effort) and condition.effort is not None:
            np.greater(np.abs(condition.effort), self._max_effort, out=bad[_EFFORT])
        inside = (position >= self._low) & (position <= self._high)  # False for NaN
        bad[_RANGE] = ~inside & self._has_place
        self._position = position
        self._bad_ns[bad] = now_ns
        self._since_ns[now_ns - self._bad_ns > self._forgotten_ns] = _NEVER
        return self._lasting(condition) if bad.any() else 0

    @property
    def pushing(self) -> NDArray[np.bool_]:
        """Dimensions whose effort is beyond its limit, bool [A]."""
        return self._bad[_EFFORT]

    def is_away(self, position: Float32Array, command: Float32Array) -> NDArray[np.bool_]:
        """Return joints that are further from a command than the following tolerance, bool [A]."""
        away: NDArray[np.bool_] = np.abs(position - command) > self._tolerance
        return away

    def _lasting(self, condition: Condition) -> int:
        since_ns, now_ns = self._since_ns, condition.captured_ns
        np.copyto(since_ns, np.minimum(since_ns, now_ns), where=self._bad)
        late = (now_ns - since_ns >= self._after_ns) & self._bad
        if not late.any():
            return 0
        position, command = condition.position, condition.command
        effort = position if condition.effort is None else condition.effort
        bound = np.where(position < self._low, self._low, self._high)
        sentences = (
            ("is at {0:.4g}, its command is {1:.4g}: is something in its way?", position, command),
            ("stands still while its command moves: it reads {0:.4g}, commanded is {1:.4g}", position, command),
            ("pushes with {0:.4g}, more than {1:.4g}", effort, self._max_effort),
            ("reads {0:.4g}, outside its limits (with their tolerance {1:.4g})", position, bound),
        )
        rows = np.flatnonzero(late.any(axis=1))
        sentence, measured, wanted = sentences[rows[0]]
        self._report(late[rows[0]], measured, wanted, sentence)
        return int(_REASONS[rows].sum())

    def _report(self, dims: NDArray[np.bool_], measured: Float32Array, wanted: Float32Array, sentence: str) -> None:
        dim = int(np.argmax(dims))
        name = self._names[dim] if self._names else f"dimension {dim}"
        self.why = f"{name} {sentence.format(measured[dim], wanted[dim])}"
