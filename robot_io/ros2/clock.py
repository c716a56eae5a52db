"""ROS time for the control loop: a monotonic clock on which the stamps of messages are capture times.

Without sim time the loop uses the machine's monotonic clock. Stamps are moved onto it by their age at arrival. With sim
time the loop uses ``/clock``. A jump never moves the loop's time backwards: the clock reports it, and the robot stops.
Callbacks of the ROS thread write, the control thread reads; one condition guards it.
"""

import threading
import time
from collections.abc import Callable

from vla_rl.core.clock import Clock, machine_ns
from vla_rl.core.errors import UserError


class ClockStoppedError(UserError):
    """/clock has been silent for too long."""


class RosTime(Clock):
    """The loop's clock on ROS time, with or without sim time (a `vla_rl.core.clock.Clock`).

    Args:
        system_ns: ROS time without sim time, ns; `time.time_ns` is what the machine's ROS clock gives.
        simulated: live on /clock; its messages go to `on_clock`.
        max_jump_ms: a larger jump is a fault.
        max_future_ms: a stamp further in the future is not believed.
        timeout_s: wall time without /clock after which waiting for it ends.

    Attributes:
        jump_s: the size of the jump since `begin` or `forget_jump`; None if there was none.
    """

    def __init__(
        self,
        simulated: bool,
        max_jump_ms: float = 500.0,
        max_future_ms: float = 50.0,
        timeout_s: float = 5.0,
        system_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._simulated = simulated
        self._system_ns = system_ns
        self._max_jump_ns = round(max_jump_ms * 1e6)
        self._max_future_ns = round(max_future_ms * 1e6)
        self._timeout_s = timeout_s
        self._changed = threading.Condition()
        self._sim_ns: int | None = None  # the newest /clock
        self._offset_ns = 0 if simulated else system_ns() - machine_ns()  # ROS time - loop time
        self._received_s = time.monotonic()
        self._interrupted = False
        self.jump_s: float | None = None

    def begin(self) -> None:
        """Start an attempt: jumps that have been dealt with are forgotten, and sleeping is possible again."""
        with self._changed:
            self._watch_system()
            self.jump_s = None
            self._interrupted = False

    def forget_jump(self) -> None:
        """Accept a requested jump, such as the reset of a simulated world."""
        with self._changed:
            self.jump_s = None

    def interrupt(self) -> None:
        """Wake all threads that wait for /clock, which may be silent; until `begin` none waits. On the machine's clock
        sleeping goes on: it ends by itself, and the robot is braked at the loop's pace.
        """
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()

    def on_clock(self, sim_ns: int) -> None:
        """Take the time of a /clock message."""
        with self._changed:
            self._received_s = time.monotonic()
            if self._sim_ns is not None:
                step_ns = sim_ns - self._sim_ns
                if step_ns < 0 or step_ns > self._max_jump_ns:
                    self._note_jump(step_ns)
                    self._offset_ns += step_ns  # the loop's time stands still over the jump
            self._sim_ns = sim_ns
            self._changed.notify_all()

    def now_ns(self) -> int:
        if not self._simulated:
            return machine_ns()
        with self._changed:
            return 0 if self._sim_ns is None else self._sim_ns - self._offset_ns

    def sleep_until_ns(self, deadline_ns: int) -> None:
        """Sleep until a time of the loop, ns; ClockStoppedError if /clock falls silent."""
        with self._changed:
            while not (self._interrupted and self._simulated):
                if self._simulated:
                    left_s = self._received_s + self._timeout_s - time.monotonic()
                    if self._sim_ns is not None and self._sim_ns - self._offset_ns >= deadline_ns:
                        return
                    if left_s <= 0:
                        raise ClockStoppedError(f"/clock has been silent for {self._timeout_s:g} s")
                else:
                    left_s = (deadline_ns - machine_ns()) * 1e-9
                    if left_s <= 0:
                        return
                self._changed.wait(left_s)

    def loop_ns(self, stamp_ns: int) -> int | None:
        """Return a stamp in the loop's time; None for one that is not to be believed, because it lies in the future."""
        with self._changed:
            self._watch_system()
            now_ns = (self._sim_ns or 0) - self._offset_ns if self._simulated else machine_ns()
            loop_ns = stamp_ns - self._offset_ns
            unknown = self._simulated and self._sim_ns is None
        # On a simulation the picture of a moment may overtake the clock, by no more than /clock may step.
        allowed_ns = self._max_jump_ns if self._simulated else self._max_future_ns
        return None if loop_ns - now_ns > allowed_ns and not unknown else loop_ns

    def watch(self) -> None:
        """Look whether the machine's clock has jumped."""
        with self._changed:
            self._watch_system()

    def _watch_system(self) -> None:
        if self._simulated:
            return
        offset_ns = self._system_ns() - machine_ns()
        moved_ns = offset_ns - self._offset_ns
        self._offset_ns = offset_ns  # a slow correction is followed
        if abs(moved_ns) > self._max_jump_ns:
            self._note_jump(moved_ns)

    def _note_jump(self, jump_ns: int) -> None:
        if self.jump_s is None:
            self.jump_s = jump_ns * 1e-9
