"""Behaviour cloning: imitate every step of every episode, whoever acted and however it went. The floor of all."""

import numpy as np

from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.seeds import derived_seed
from vla_rl.data.cache import FrameCache
from vla_rl.data.sampler import MixtureSampler


class BehaviourCloning(Algorithm):
    """Uniform over steps: no outcome, no credit and no mixture decide what is imitated."""

    name = "bc"
    uses_rollouts = "all"

    def begin_round(self, cache: FrameCache, number: int) -> None:
        super().begin_round(cache, number)
        if cache.total_frames:
            everything = {"steps": np.arange(cache.total_frames)}
            self._sampler = MixtureSampler(everything, {"steps": 1.0}, derived_seed(self.seed, "actor batch"))
