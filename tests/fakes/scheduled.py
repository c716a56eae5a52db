"""Takeover in intervals laid down in advance."""

from collections.abc import Callable, Sequence
from typing import override

from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Float32Array


class ScheduledTakeover(TakeoverSource):
    """Takes over in given intervals of ticks.

    Args:
        intervals: (first tick, tick after the last) of every takeover.
        act: the command, float32 [A], from the tick and the policy's proposal.
    """

    def __init__(self, intervals: Sequence[tuple[int, int]], act: Callable[[int, Float32Array], Float32Array]) -> None:
        self._intervals = intervals
        self._act = act

    @override
    def reset(self, seed: int) -> None:
        """The intervals are the same in every attempt."""

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """See `vla_rl.core.protocols.TakeoverSource.command`."""
        if any(first <= tick < after for first, after in self._intervals):
            return self._act(tick, proposed)
        return None
