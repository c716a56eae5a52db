"""Execution strategies of one's own: a new chunk fades in over a few ticks, where `naive` jumps to it in one.

pip install examples/own_strategy
vla-rl rollout runs/demo --robot sim --strategy fade_in execution.fade_ticks=3 latency.typical=4
"""

from dataclasses import dataclass

import numpy as np

from vla_rl.core.errors import ConfigError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.plan import PlanRequest
from vla_rl.execution.schedule import Schedule, ScheduledChunk
from vla_rl.execution.strategies import ChunkStrategy, ExecutionConfig, GuidedPolicy


@dataclass(frozen=True)
class FadeInConfig(ExecutionConfig):
    """The options of every strategy, and one more: ``execution.fade_ticks``, ticks until only the new chunk counts."""

    fade_ticks: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fade_ticks < 1:
            raise ConfigError(f"execution.fade_ticks is {self.fade_ticks}; it must be at least 1")


class FadeIn(ChunkStrategy):
    """Planning and the use of the policy stay unchanged. `place` receives arrivals, `act` decides each tick."""

    config: FadeInConfig
    config_class = FadeInConfig
    provides = frozenset()  # it changes the chunks that the policy draws

    def place(self, chunk: ScheduledChunk, tick: int) -> ScheduledChunk:
        self._arrived = tick
        return chunk

    def act(
        self, schedule: Schedule, tick: int, observation: Observation
    ) -> tuple[Float32Array, ScheduledChunk] | None:
        chunks = schedule.covering(tick)
        share = (tick - self._arrived + 1) / self.config.fade_ticks if chunks else 1.0
        if len(chunks) < 2 or share >= 1:
            return super().act(schedule, tick, observation)
        old, new = (chunk.actions[tick - chunk.start_tick] for chunk in chunks[-2:])
        action = ((1 - share) * old + share * new).astype(np.float32)
        action[list(self.config.discrete_dims)] = new[list(self.config.discrete_dims)]  # half a grasp is no grasp
        return action, chunks[-1]


class GuidedFadeIn(FadeIn):
    """The new chunk is also planned towards what is scheduled. Policies that cannot be guided are refused; with those
    that can, it acts in real time unless another strategy is named.
    """

    requires = frozenset({"guidance"})
    preference = 50

    def infer(self, policy: GuidedPolicy, request: PlanRequest) -> ActionChunk:
        if len(request.scheduled) == 0:
            return policy.infer(request.observation)
        return policy.infer_guided(request.observation, request.scheduled, request.delay_ticks, exact_gradient=False)
