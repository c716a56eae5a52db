"""Time for the control loop. The same executor and loop run on the machine's monotonic clock or on simulated time."""

import time
from typing import Protocol

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # only Linux has, and needs, the former


class Clock(Protocol):
    """Monotonic time in nanoseconds."""

    def now_ns(self) -> int:
        """Nanoseconds since an arbitrary, fixed start."""
        ...

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Return at or after the deadline; at once if it has passed."""
        ...


def machine_ns() -> int:
    """Return the machine's monotonic time. Unlike Linux' CLOCK_MONOTONIC it passes while the machine is suspended: a
    robot beside a closed laptop has stood at its last command for as long.
    """
    return time.clock_gettime_ns(_CLOCK)


class MonotonicClock:
    """The machine's own clock."""

    def now_ns(self) -> int:
        return machine_ns()

    def sleep_until_ns(self, deadline_ns: int) -> None:
        remaining_ns = deadline_ns - machine_ns()
        if remaining_ns > 0:
            time.sleep(remaining_ns * 1e-9)


class VirtualClock:
    """Simulated time: sleeping costs nothing, so an episode runs as fast as it can, and the same on every run."""

    def __init__(self, start_ns: int = 0) -> None:
        self._start_ns = self._now_ns = start_ns

    def restart(self) -> None:
        """Begin anew, for every part that shares this clock."""
        self._now_ns = self._start_ns

    def now_ns(self) -> int:
        return self._now_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        self._now_ns = max(self._now_ns, deadline_ns)
