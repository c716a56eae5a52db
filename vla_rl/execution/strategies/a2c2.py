"""a2c2: a small head corrects every action from the newest observation (A2C2, 2509.23224)."""

from typing import ClassVar, override

from vla_rl.core.types import Observation
from vla_rl.execution.schedule import Schedule
from vla_rl.execution.strategies.base import ChunkStrategy, PlannedAction


class A2C2(ChunkStrategy):
    """naive with a corrector. The corrector runs in the control loop at every tick, so it has to be small.

    Discrete dimensions are corrected to one of their two levels. The head has learned a mean. Near a grasp it would
    shut a gripper a little, see it a little shut, and shut it a little more. The gripper would be closed before the
    object is there.
    """

    requires: ClassVar[frozenset[str]] = frozenset({"corrector"})
    preference: ClassVar[int] = 40

    @override
    def act(self, schedule: Schedule, tick: int, observation: Observation) -> PlannedAction | None:
        planned = super().act(schedule, tick, observation)
        if planned is None or self._corrector is None:
            return planned
        action, chunk = planned
        age_ticks = tick - chunk.start_tick
        return self._corrector.correct(observation, action, age_ticks, self.config.discrete_dims), chunk
