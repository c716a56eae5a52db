"""temporal_ensembling: at every tick the weighted mean of all chunks that cover it (Zhao et al. 2023, algorithm 2)."""

from dataclasses import dataclass
from typing import ClassVar, override

import numpy as np

from vla_rl.core.types import Observation
from vla_rl.execution.schedule import Schedule
from vla_rl.execution.strategies.base import ChunkStrategy, ExecutionConfig, PlannedAction


@dataclass(frozen=True)
class TemporalEnsemblingConfig(ExecutionConfig):
    """Options of ``temporal_ensembling``.

    Attributes:
        ensembling_decay: m of the weights exp(-m i), i = 0 the oldest chunk.
    """

    ensembling_decay: float = 0.01


class TemporalEnsembling(ChunkStrategy):
    """Weights exp(-m i), i = 0 the oldest chunk. Discrete dimensions come from the newest: half a grasp is no grasp."""

    config: TemporalEnsemblingConfig
    config_class: ClassVar[type[ExecutionConfig]] = TemporalEnsemblingConfig
    provides: ClassVar[frozenset[str]] = frozenset()

    @override
    def act(self, schedule: Schedule, tick: int, observation: Observation) -> PlannedAction | None:
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
