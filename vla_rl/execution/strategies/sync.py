"""sync: execute s actions, stand still, infer, go on. Smooth in index, and it waits for the policy: the cost that the others save."""

from dataclasses import replace

from vla_rl.core.types import Float32Array, Observation
from vla_rl.execution.schedule import Schedule, ScheduledChunk
from vla_rl.execution.strategies.base import ChunkStrategy, ExecutionConfig


class Sync(ChunkStrategy):
    """The robot stands still while the policy thinks, so no tick of a chunk is consumed before it is here: it starts at index 0 on arrival."""

    def __init__(self, config: ExecutionConfig) -> None:
        super().__init__(config)
        self.freezes_world = config.sync_pause == "freeze"

    def wants_plan(self, schedule: Schedule, tick: int, ticks_since_request: int, delay_ticks: int) -> bool:  # noqa: ARG002
        chunk = schedule.newest(tick)
        return chunk is None or tick - chunk.start_tick >= self.config.execute_ticks

    def place(self, chunk: ScheduledChunk, tick: int) -> ScheduledChunk:
        return replace(chunk, start_tick=max(chunk.start_tick, tick))

    def act(
        self, schedule: Schedule, tick: int, observation: Observation
    ) -> tuple[Float32Array, ScheduledChunk] | None:
        planned = super().act(schedule, tick, observation)
        if planned is None or tick - planned[1].start_tick >= self.config.execute_ticks:
            return None
        return planned
