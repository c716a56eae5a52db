"""The newest readings of every stream, matched in time. Filled by the ROS thread, read by the control thread."""

import operator
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vla_rl.core.types import Float32Array

_KEPT_NS = 1_000_000_000  # by time, not by number: joints at 1 kHz have to reach back as far as a slow camera's picture
_captured_ns = operator.itemgetter(0)


class Streams:
    """The last second of each stream, in the order of its capture times.

    Args:
        names: of the streams.
        synchronise: `take` matches capture times; otherwise it takes the newest of each.
    """

    def __init__(self, names: Sequence[str], synchronise: bool = True) -> None:
        self._synchronise = synchronise
        self._lock = threading.Lock()
        self._histories: dict[str, deque[tuple[int, Any]]] = {name: deque() for name in names}

    def add(self, name: str, captured_ns: int, value: Any) -> None:
        """The next reading of a stream, with its capture time in the loop's time.

        The last word counts: a reading that says it is no newer than others takes their place, so that a stream whose
        time stands still neither grows nor looks fresh.
        """
        with self._lock:
            history = self._histories[name]
            while history and history[-1][0] >= captured_ns:
                history.pop()
            history.append((captured_ns, value))
            while history[0][0] < captured_ns - _KEPT_NS:
                history.popleft()

    def newest_ns(self) -> Mapping[str, int]:
        """Stream -> capture time of its newest reading; streams without one are left out."""
        with self._lock:
            return {name: history[-1][0] for name, history in self._histories.items() if history}

    def newest(self, name: str) -> Any:
        """The newest value of a stream that has told something, whatever the others say."""
        with self._lock:
            return self._histories[name][-1][1]

    def since(self, name: str, since_ns: int) -> list[Any]:
        """The values of a stream that were captured at that time or later, the newest last."""
        with self._lock:
            return [value for captured_ns, value in self._histories[name] if captured_ns >= since_ns]

    def take(self) -> Mapping[str, tuple[int, Any]]:
        """Stream -> (capture time, value). Synchronised: of each the reading that lies nearest to the newest moment
        that all streams have reached. Empty unless every stream has one.
        """
        with self._lock:
            if not all(self._histories.values()):
                return {}
            if not self._synchronise:
                return {name: history[-1] for name, history in self._histories.items()}
            moment_ns = min(history[-1][0] for history in self._histories.values())
            return {name: _nearest(history, moment_ns) for name, history in self._histories.items()}


def _nearest(history: deque[tuple[int, Any]], moment_ns: int) -> tuple[int, Any]:
    """The reading nearest to a moment that the history has reached; of two at the same distance, the newer."""
    index = bisect_left(history, moment_ns, key=_captured_ns)
    before, after = history[max(index - 1, 0)], history[index]
    return before if moment_ns - before[0] < after[0] - moment_ns else after


class FrozenJoints:
    """Notices joints whose readings do not move at all while the commands do.

    A robot at rest may read the same numbers for hours; a robot that is driven never does.

    Args:
        after_ms: how long commands have to move without any effect; 0 switches it off.
        travel: how far a command has to move before it counts, in the units of the joints: further than friction and
            the resolution of the encoders hide.
    """

    def __init__(self, after_ms: float, travel: float) -> None:
        self._after_ns = after_ms * 1e6
        self._travel = travel
        self._lock = threading.Lock()
        self._position: Float32Array | None = None
        self._command: Float32Array | None = None  # the first one since the joints moved
        self._driven_since_ns: int | None = None

    def command(self, command: Float32Array, now_ns: int) -> None:
        """Told of each command, float32 [A]."""
        with self._lock:
            if self._command is None:
                self._command = command
            if self._driven_since_ns is None and np.abs(command - self._command).max() > self._travel:
                self._driven_since_ns = now_ns

    def captured_ns(self, position: Float32Array, captured_ns: int) -> int:
        """The capture time that a reading deserves: of frozen joints, the time since which they have been driven."""
        with self._lock:
            if self._position is None or not np.array_equal(position, self._position):
                self._position = position
                self._command = self._driven_since_ns = None
                return captured_ns
            since_ns = self._driven_since_ns
        if not self._after_ns or since_ns is None or captured_ns - since_ns <= self._after_ns:
            return captured_ns
        return since_ns
