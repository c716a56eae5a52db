"""Supervised fine-tuning: imitate the demonstrations, and nothing of what was practised."""

import numpy as np

from vla_rl.algorithms.base import Algorithm
from vla_rl.credit import ActorKind
from vla_rl.data.sampler import MixtureSampler


class SupervisedFineTuning(Algorithm):
    """Where every other algorithm starts, and the baseline that gets the same gradient steps and no practice."""

    name = "sft"
    uses_interventions = False
    uses_rollouts = "none"

    def make_sampler(self) -> MixtureSampler | None:
        frames = np.flatnonzero(self.data.of_kind(ActorKind.DEMONSTRATION))
        if not len(frames):
            return None
        return MixtureSampler({"demonstrations": frames}, {"demonstrations": 1.0}, self.sampler_seed)
