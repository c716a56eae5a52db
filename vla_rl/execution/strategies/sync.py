"""sync: execute s actions, stand still, infer, go on. No seam jumps, but the robot waits: the cost the others save."""

from dataclasses import dataclass, replace
from typing import ClassVar, override

from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.core.types import Observation
from vla_rl.execution.schedule import Schedule, ScheduledChunk
from vla_rl.execution.strategies.base import ActionCorrector, ChunkStrategy, ExecutionConfig, PlannedAction

_PAUSES = ("hold", "freeze")


@dataclass(frozen=True)
class SyncConfig(ExecutionConfig):
    """Options of ``sync``.

    Attributes:
        sync_pause: Behavior of the world while ``sync`` infers. "hold" lets it continue and holds the robot. "freeze"
            stops a simulated world and counts the time (synchronous, in papers).
    """

    sync_pause: str = "hold"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sync_pause not in _PAUSES:
            raise ConfigError(
                f"unknown execution.sync_pause {self.sync_pause!r}.{did_you_mean(self.sync_pause, _PAUSES)}"
            )

    @override
    def check_delay(self, horizon: int, delay_ticks: float) -> None:
        if self.sync_pause == "hold" and delay_ticks >= self.hold_ticks:
            raise ConfigError(
                f"latency is {delay_ticks:g} ticks, and an attempt ends when nothing is planned for "
                f"execution.hold_ticks={self.hold_ticks}; set execution.hold_ticks above the latency"
            )


class Sync(ChunkStrategy):
    """While the robot stands still no tick of a chunk is consumed, so each chunk starts at index 0 on arrival."""

    config: SyncConfig
    config_class: ClassVar[type[ExecutionConfig]] = SyncConfig

    def __init__(self, config: SyncConfig, corrector: ActionCorrector | None = None) -> None:
        super().__init__(config, corrector)
        self.freezes_world = config.sync_pause == "freeze"

    @override
    def wants_plan(self, schedule: Schedule, tick: int, ticks_since_request: int, delay_ticks: int) -> bool:
        chunk = schedule.newest(tick)
        return chunk is None or tick - chunk.start_tick >= self.config.execute_ticks

    @override
    def place(self, chunk: ScheduledChunk, tick: int) -> ScheduledChunk:
        return replace(chunk, start_tick=max(chunk.start_tick, tick))

    @override
    def act(self, schedule: Schedule, tick: int, observation: Observation) -> PlannedAction | None:
        planned = super().act(schedule, tick, observation)
        if planned is None or tick - planned[1].start_tick >= self.config.execute_ticks:
            return None
        return planned
