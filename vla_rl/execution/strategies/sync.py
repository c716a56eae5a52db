"""sync: execute s actions, stand still, infer, go on. No seam jumps, but the robot waits: the cost the others save."""

from dataclasses import replace
from typing import override

from vla_rl.core.types import Float32Array, Observation
from vla_rl.execution.schedule import Schedule, ScheduledChunk
from vla_rl.execution.strategies.base import ChunkStrategy, ExecutionConfig


class Sync(ChunkStrategy):
    """While the robot stands still no tick of a chunk is consumed, so each chunk starts at index 0 on arrival."""

    def __init__(self, config: ExecutionConfig) -> None:
        super().__init__(config)
        self.freezes_world = config.sync_pause == "freeze"

    @override
    def wants_plan(self, schedule: Schedule, tick: int, ticks_since_request: int, delay_ticks: int) -> bool:
        chunk = schedule.newest(tick)
        return chunk is None or tick - chunk.start_tick >= self.config.execute_ticks

    @override
    def place(self, chunk: ScheduledChunk, tick: int) -> ScheduledChunk:
        return replace(chunk, start_tick=max(chunk.start_tick, tick))

    @override
    def act(
        self, schedule: Schedule, tick: int, observation: Observation
    ) -> tuple[Float32Array, ScheduledChunk] | None:
        planned = super().act(schedule, tick, observation)
        if planned is None or tick - planned[1].start_tick >= self.config.execute_ticks:
            return None
        return planned
