"""Imitation of a mixture: demonstrations, interventions and the policy's own steps."""

from collections.abc import Mapping
from typing import ClassVar

from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.config import CloningLearning
from vla_rl.algorithms.round_data import Frames, RolloutUse, RoundData
from vla_rl.credit import ActorKind
from vla_rl.data.sampler import MixtureSampler


class Cloning(Algorithm):
    """The frames that credit allows and the mixture weighs, all at weight 1. Subclasses add critics and weights.

    Attributes:
        uses_interventions: whether what people did when taking over is imitated.
        uses_rollouts: which of the policy's own steps are.
    """

    config_class: ClassVar[type] = CloningLearning
    config: CloningLearning
    uses_interventions: ClassVar[bool] = True
    uses_rollouts: ClassVar[RolloutUse] = "successes"

    def actor_groups(self) -> dict[str, Frames]:
        return self.data.actor_groups(self.uses_interventions, self.uses_rollouts)

    def make_sampler(self) -> MixtureSampler | None:
        mixture = self.config.mixture
        groups = self.actor_groups()
        weights = {name: getattr(mixture, name) for name in groups}
        if self.uses_rollouts == "successes":
            weights = weights_without_failures(weights, groups, self.data)
        if mixture.largest_oversampling:
            sizes = {name: len(frames) for name, frames in groups.items()}
            weights = bounded_weights(weights, sizes, mixture.largest_oversampling)
        if not any(len(frames) and weights[name] > 0 for name, frames in groups.items()):
            return None
        return MixtureSampler(groups, weights, self.sampler_seed)


def weights_without_failures(
    weights: Mapping[str, float], groups: Mapping[str, Frames], data: RoundData
) -> dict[str, float]:
    """The mixture's weights for groups that failed rollouts were left out of: they must weigh 0, and would cost encoder
    time and give no gradient.

    The weight of rollouts is multiplied by their fraction of successful steps. The weights of rollouts and of
    interventions are then scaled back to their common share. The expected gradient equals that of a batch of all steps,
    with weights normalized to unit mean over these two groups.
    """
    shared, left = {}, {}
    if played := int(data.of_kind(ActorKind.ROLLOUT).sum()):
        shared["rollouts"] = weights["rollouts"]
        left["rollouts"] = weights["rollouts"] * len(groups["rollouts"]) / played
    if len(groups["interventions"]):
        left["interventions"] = shared["interventions"] = weights["interventions"]
    if not sum(left.values()) > 0:
        return {**weights, **left}
    scale = sum(shared.values()) / sum(left.values())
    return {**weights, **{name: weight * scale for name, weight in left.items()}}


def bounded_weights(weights: Mapping[str, float], sizes: Mapping[str, int], largest: float) -> dict[str, float]:
    """Weights of groups, of sum 1, such that no frame is drawn more than ``largest`` times as often as under uniform
    draws. What that takes from a small group goes to the others in proportion.
    """
    left = {name: weight for name, weight in weights.items() if weight > 0 and sizes[name]}
    total = sum(sizes[name] for name in left)  # of the steps that may be drawn
    found = dict.fromkeys(weights, 0.0)
    rest = 1.0
    while left:
        scale = rest / sum(left.values())
        bound = {name: largest * sizes[name] / total for name in left}
        full = [name for name in left if left[name] * scale > bound[name]]
        if not full:
            return found | {name: weight * scale for name, weight in left.items()}
        for name in full:
            found[name] = bound[name]
            rest -= bound[name]
            del left[name]
    return found
