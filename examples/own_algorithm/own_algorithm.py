"""An algorithm of one's own: it imitates successes, and weighs a step by its distance from the end.

Install it by pip install examples/own_algorithm.

Example: vla-rl train --config tiny algorithm=hurry learning.half_life_steps=15
"""

from dataclasses import dataclass

import numpy as np

from vla_rl.algorithms.cloning import Cloning, CloningLearning
from vla_rl.core.errors import ConfigError


@dataclass(frozen=True)
class HurryLearning(CloningLearning):
    """The section ``learning`` of a run with this algorithm: that of every cloning, and how fast its weights fall."""

    half_life_steps: float = 20.0

    def __post_init__(self) -> None:
        if not self.half_life_steps > 0:
            raise ConfigError(f"learning.half_life_steps is {self.half_life_steps}; it must be positive")


class Hurry(Cloning):
    """Filtered cloning with weights. A step n steps from the end of its episode weighs 2^(-n / half life), scaled to a
    mean of 1 in each batch.
    """

    name = "hurry"
    config_class = HurryLearning
    config: HurryLearning

    def update(self, step: int) -> dict[str, float]:
        """One gradient step of the actor; returns what to log."""
        frames = self.actor_frames(step)
        weight = np.exp2(-self.data.steps_left(frames) / self.config.half_life_steps).astype(np.float32)
        return self.update_actor(frames, self.data.tensor(weight / weight.mean()), step)
