"""Adaptive replay ratio: how many critic steps an actor step is worth. arXiv 2310.07418."""

import math
from collections.abc import Mapping
from typing import Any

from vla_rl.algorithms.config import CriticTrainingConfig


class ReplayRatio:
    """Counts critic steps, and raises their rate once the fraction of active units has settled."""

    def __init__(self, config: CriticTrainingConfig) -> None:
        self.config = config.replay_ratio
        self.value = self.config.low if self.config.adaptive else config.steps_per_actor_step
        self._before_round = config.steps_before_round
        self._due = 0.0
        self._episodes = 0
        self._fraction = math.inf

    def wants_measurement(self, episodes: int) -> bool:
        """Whether to call `observe`, after so many practice episodes in all."""
        settled = self.value == self.config.high
        return self.config.adaptive and not settled and episodes - self._episodes >= self.config.check_every_episodes

    def observe(self, episodes: int, active_fraction: float) -> None:
        """Take a measurement of the fraction of active units after so many practice episodes."""
        if abs(active_fraction - self._fraction) <= self.config.tolerance:
            self.value = self.config.high
        self._episodes, self._fraction = episodes, active_fraction

    def steps(self, begins_round: bool = False) -> int:
        """Critic steps that are due with the present actor step, the first one of its round or another."""
        self._due += self.value
        whole = int(self._due)
        self._due -= whole
        return whole + (self._before_round if begins_round else 0)

    def state_dict(self) -> dict[str, Any]:
        fraction = None if math.isinf(self._fraction) else self._fraction
        return {"value": self.value, "due": self._due, "episodes": self._episodes, "fraction": fraction}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value, self._due, self._episodes = state["value"], state["due"], state["episodes"]
        self._fraction = math.inf if state["fraction"] is None else state["fraction"]
