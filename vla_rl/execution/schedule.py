"""Which action belongs to which tick. The one place where chunks meet the clock."""

from dataclasses import dataclass

import numpy as np

from vla_rl.core.types import Float32Array


@dataclass(frozen=True, slots=True)
class ScheduledChunk:
    """A chunk with its place on the tick clock: ``actions[i]``, of float32 [H, A], is for tick ``start_tick + i``.

    Attributes:
        chunk_id: The request that it answers.
        observed_tick: Tick of the observation that it was planned from; decides which of two chunks is newer.
        planned_ns: Capture time of that observation.
    """

    chunk_id: int
    actions: Float32Array
    start_tick: int
    observed_tick: int
    planned_ns: int
    policy_version: int

    @property
    def end_tick(self) -> int:
        return self.start_tick + len(self.actions)


class Schedule:
    """The chunks that still have something to say, ordered by the observation that they were planned from."""

    def __init__(self, action_size: int) -> None:
        self._nothing = np.empty((0, action_size), np.float32)
        self._chunks: list[ScheduledChunk] = []

    def clear(self) -> None:
        self._chunks.clear()

    def add(self, chunk: ScheduledChunk, tick: int) -> None:
        """Take a chunk in and forget the ones that ended before ``tick``. Arrival order does not matter."""
        chunks = [known for known in self._chunks if known.end_tick > tick]
        if chunk.end_tick > tick and all(known.chunk_id != chunk.chunk_id for known in chunks):
            chunks.append(chunk)
            chunks.sort(key=lambda known: (known.observed_tick, known.chunk_id))
        self._chunks = chunks

    def newest(self, tick: int) -> ScheduledChunk | None:
        """Return the chunk from the newest observation that covers the tick."""
        for chunk in reversed(self._chunks):
            if chunk.start_tick <= tick < chunk.start_tick + len(chunk.actions):
                return chunk
        return None

    def covering(self, tick: int) -> list[ScheduledChunk]:
        """Return all chunks that cover the tick, the oldest first."""
        return [chunk for chunk in self._chunks if chunk.start_tick <= tick < chunk.end_tick]

    def upcoming(self, tick: int) -> Float32Array:
        """float32 [K, A], the rest of the newest chunk from ``tick`` on; K = 0 if nothing is scheduled."""
        chunk = self.newest(tick)
        return self._nothing if chunk is None else chunk.actions[tick - chunk.start_tick :]
