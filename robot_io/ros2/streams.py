"""The newest readings of every stream, matched in time. Filled by the ROS thread, read by the control thread."""

import operator
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

_KEPT_NS = 1_000_000_000  # by time, not by number: joints at 1 kHz have to reach back as far as a slow camera's picture
_captured_ns = operator.itemgetter(0)


class Streams:
    """The last second of each stream, in the order of its capture times.

    `take` matches capture times where they are synchronized; otherwise it takes the newest of each.
    """

    def __init__(self, names: Sequence[str], synchronize: bool = True) -> None:
        self._synchronize = synchronize
        self._lock = threading.Lock()
        self._histories: dict[str, deque[tuple[int, Any]]] = {name: deque() for name in names}

    def add(self, name: str, captured_ns: int, value: Any) -> None:
        """Add the next reading of a stream, with its capture time in the loop's time.

        The last reading counts. A reading that is no newer than others by its stamp replaces them. So a stream whose
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

    def newest(self, name: str) -> tuple[int, Any]:
        """Return capture time and value of the newest reading of a stream, independent of the others."""
        with self._lock:
            return self._histories[name][-1]

    def since(self, name: str, since_ns: int) -> list[Any]:
        """Return the values of a stream that were captured after that time, the newest last."""
        with self._lock:
            return [value for captured_ns, value in self._histories[name] if captured_ns > since_ns]

    def take(self) -> Mapping[str, tuple[int, Any]]:
        """Stream -> (capture time, value). Synchronized: of each the reading that lies nearest to the newest moment
        that all streams have reached. Empty unless every stream has one.
        """
        with self._lock:
            if not all(self._histories.values()):
                return {}
            if not self._synchronize:
                return {name: history[-1] for name, history in self._histories.items()}
            moment_ns = min(history[-1][0] for history in self._histories.values())
            return {name: _nearest(history, moment_ns) for name, history in self._histories.items()}


def _nearest(history: deque[tuple[int, Any]], moment_ns: int) -> tuple[int, Any]:
    """Return the reading nearest to a moment that the history has reached; of two at the same distance, the newer."""
    index = bisect_left(history, moment_ns, key=_captured_ns)
    before, after = history[max(index - 1, 0)], history[index]
    return before if moment_ns - before[0] < after[0] - moment_ns else after
