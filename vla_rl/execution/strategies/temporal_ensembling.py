"""temporal_ensembling: at every tick the weighted mean of all chunks that have an action for it (Zhao et al. 2023, ACT, algorithm 2)."""

import numpy as np

from vla_rl.core.types import Float32Array, Observation
from vla_rl.execution.schedule import Schedule, ScheduledChunk
from vla_rl.execution.strategies.base import ChunkStrategy


class TemporalEnsembling(ChunkStrategy):
    """Weights exp(-m i) with i = 0 the oldest chunk. Discrete dimensions are taken from the newest chunk: half a grasp is no grasp."""

    def act(
        self, schedule: Schedule, tick: int, observation: Observation
    ) -> tuple[Float32Array, ScheduledChunk] | None:  # noqa: ARG002
        chunks = schedule.covering(tick)
        if not chunks:
            return None
        newest = chunks[-1].actions[tick - chunks[-1].start_tick]
        if len(chunks) == 1:
            return newest, chunks[-1]
        actions = np.stack([chunk.actions[tick - chunk.start_tick] for chunk in chunks])  # [chunks, A]
        weights = np.exp(-self.config.ensembling_decay * np.arange(len(chunks), dtype=np.float32))
        mean = (weights @ actions / weights.sum()).astype(np.float32)
        discrete = list(self.config.discrete_dims)
        mean[discrete] = newest[discrete]
        return mean, chunks[-1]
