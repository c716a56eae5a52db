"""The person beside the robot, by the services and the takeover topic.

The ROS thread writes, the control thread reads; one lock guards all of it.
"""

import threading
from collections.abc import Callable
from typing import override

import numpy as np

from robot_io.takeover import Clutch
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Float32Array


class OperatorRequests:
    """Labels, starts and re-arming: what was asked for and not yet done.

    Attributes:
        outcome: The label of the present attempt; None while there is none.
        discarded: The present attempt is not to be kept.
        closed: The node is not active.
        in_attempt: There is an attempt to label: it runs, or waits to be stored.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.in_attempt = False
        self._waiting = False
        self.outcome: bool | None = None
        self.discarded = False
        self._start = False
        self.closed = True

    def begin(self) -> None:
        """Begin an attempt without a label."""
        with self._changed:
            self.outcome = None
            self.discarded = False
            self.in_attempt = True

    def settle(self) -> tuple[bool | None, bool]:
        """Return the final label of the attempt, and whether it was discarded. Neither can change afterwards."""
        with self._changed:
            self.in_attempt = False
            return self.outcome, self.discarded

    def label(self, success: bool) -> None:
        """Set the outcome, which ends a running attempt; UserError if there is no attempt, as by `discard`."""
        with self._changed:
            self._check_attempt()
            self.outcome = success
            self._changed.notify_all()

    def discard(self) -> None:
        """End the attempt and keep nothing of it."""
        with self._changed:
            self._check_attempt()
            self.discarded = True
            self._changed.notify_all()

    def start(self) -> bool:
        """Ask for the next attempt. False if the node does not wait for it. A start is never kept for later, when the
        person may have turned away.
        """
        with self._changed:
            self._start = self._waiting
            self._changed.notify_all()
            return self._start

    def open(self) -> None:
        """Activate: requests from before do not count."""
        with self._changed:
            self.closed = self._start = False

    def close(self) -> None:
        """Deactivate: all waiting threads continue."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait_for_start(self) -> bool:
        """Wait until a person asks for an attempt; False if the node was deactivated instead."""
        with self._changed:
            self._waiting = True
            self._changed.wait_for(lambda: self._start or self.closed)
            self._start = self._waiting = False
            return not self.closed

    def wait_for_label(self, timeout_s: float) -> None:
        """Wait until the attempt is labeled or discarded, the node is deactivated, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self.outcome is not None or self.discarded or self.closed, timeout_s)

    def _check_attempt(self) -> None:
        if not self.in_attempt:
            raise UserError("there is no attempt that could be labeled or discarded; begin one with ~/start")


class TopicTakeover(TakeoverSource):
    """A person who takes over by a service and moves the robot by a topic.

    Relative commands move the robot from its place when they began, so no posture of the device makes it jump. Grippers
    follow the device itself. A person whose commands stay away holds the robot still.

    Args:
        last_command: the command that was sent last, float32 [A].
        now_ns: the time in which commands age.
        relative: see above; otherwise commands are targets.
        clutch: of the robot.
        timeout_ms: an older command is not followed.
    """

    def __init__(
        self,
        last_command: Callable[[], Float32Array],
        now_ns: Callable[[], int],
        relative: bool,
        clutch: Clutch,
        timeout_ms: float,
    ) -> None:
        self._last_command = last_command
        self._now_ns = now_ns
        self._relative = relative
        self._clutch = clutch
        self._timeout_ns = timeout_ms * 1e6
        self._lock = threading.Lock()
        self._position: Float32Array | None = None
        self._moved_ns = 0
        self._next_tick = 0
        self.engaged = False

    def engage(self, engaged: bool) -> int:
        """Take the commands, or give them back. Return the first tick at which that counts."""
        with self._lock:
            self.engaged = engaged
            return self._next_tick

    def move(self, position: Float32Array) -> None:
        """Take a takeover command, float32 [A]."""
        with self._lock:
            self._position, self._moved_ns = position, self._now_ns()

    @override
    def reset(self, seed: int) -> None:
        """Let a person who holds the robot hold it in the next attempt too."""
        with self._lock:
            self._clutch.release()
            self._next_tick = 0

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """Return the person's command of this tick, or None for one that is not finite or of another size."""
        with self._lock:
            self._next_tick = tick + 1
            if not self.engaged:
                self._clutch.release()
                return None
            position, last = self._position, self._last_command()
            stale = self._now_ns() - self._moved_ns > self._timeout_ns
            if position is None or stale or position.shape != last.shape or not np.isfinite(position).all():
                return self._clutch.hold(last)
            return self._clutch.command(position, last) if self._relative else position
