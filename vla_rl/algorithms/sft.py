"""Supervised fine-tuning: imitate the demonstrations, and nothing of what was practised."""

from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.round_data import Frames
from vla_rl.data.sampler import MixtureSampler


class SupervisedFineTuning(Algorithm):
    """Where every other algorithm starts, and the baseline that gets the same gradient steps and no practice."""

    name = "sft"

    def actor_groups(self) -> dict[str, Frames]:
        return self.data.actor_groups(interventions=False, rollouts="none")

    def make_sampler(self) -> MixtureSampler | None:
        frames = self.actor_groups()["demonstrations"]
        if not len(frames):
            return None
        return MixtureSampler({"demonstrations": frames}, {"demonstrations": 1.0}, self.sampler_seed)
