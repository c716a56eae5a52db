"""How many critic steps are due with a step of the actor."""

from collections.abc import Mapping
from typing import Any

from vla_rl.algorithms.config import CriticTrainingConfig


class CriticSteps:
    """Counts critic steps, in fractions, so that critics may also be slower than the actor."""

    def __init__(self, config: CriticTrainingConfig) -> None:
        self._per_actor_step, self._before_round = config.steps_per_actor_step, config.steps_before_round
        self._due = 0.0

    def take(self, begins_round: bool = False) -> int:
        """Critic steps that are due with the present actor step, the first one of its round or another."""
        self._due += self._per_actor_step
        whole = int(self._due)
        self._due -= whole
        return whole + (self._before_round if begins_round else 0)

    def state_dict(self) -> dict[str, Any]:
        return {"due": self._due}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._due = float(state["due"])
