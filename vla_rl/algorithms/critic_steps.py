"""How critics are trained beside the actor, and how many of their steps are due with one of its steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vla_rl.core.validation import check_ranges


@dataclass(frozen=True)
class CriticTrainingConfig:
    """The critics' optimisation. Unstated in the paper.

    Attributes:
        batch_size: samples per gradient step.
        steps_per_actor_step: gradient steps for each one of the actor; below 1 the critics pause in between.
        steps_before_round: Gradient steps of the critics before the actor's first one in each round. They let the
            critics learn the round's episodes before they weigh any step.
    """

    batch_size: int = 64
    steps_per_actor_step: float = 1.0
    steps_before_round: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, "critic_training", batch_size=">= 1", steps_per_actor_step="> 0")
        check_ranges(self, "critic_training", steps_before_round=">= 0")


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
