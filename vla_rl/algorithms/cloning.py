"""Imitation: which frames the actor clones, and how often each kind of them is drawn. The variants differ in nothing
else.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from vla_rl.algorithms.base import Algorithm, Learning
from vla_rl.algorithms.round_data import Frames, RolloutUse, RoundData
from vla_rl.algorithms.sampling import MixtureSampler
from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges
from vla_rl.credit import ActorKind, CreditConfig


@dataclass(frozen=True)
class MixtureConfig:
    """What the actor's batches are made of. The paper does not state its mixing ratio.

    The weights are of any scale; the share of a group without frames goes to the others.

    Attributes:
        demonstrations: weight of demonstration steps.
        interventions: weight of intervention steps.
        rollouts: weight of the policy's own steps.
        largest_oversampling: Largest factor by which a step may be drawn more often than under uniform sampling. The
            rest of a small group's share (a single rescue) goes to the other groups. 0: no bound.
    """

    demonstrations: float = 0.4
    interventions: float = 0.2
    rollouts: float = 0.4
    largest_oversampling: float = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, "mixture", demonstrations=">= 0", interventions=">= 0", rollouts=">= 0")
        if not self.demonstrations + self.interventions + self.rollouts > 0:
            raise ConfigError("mixture: every weight is 0; the actor would have nothing to learn from")
        if self.largest_oversampling and not self.largest_oversampling >= 1:
            raise ConfigError(
                f"mixture.largest_oversampling is {self.largest_oversampling}; it must be 0 (no bound) or at least 1"
            )


@dataclass(frozen=True)
class CloningLearning(Learning):
    """Options of algorithms that imitate a mixture."""

    mixture: MixtureConfig = field(default_factory=MixtureConfig)
    credit: CreditConfig = field(default_factory=CreditConfig)


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
        groups = self.actor_groups()
        weights = self.mixture_weights(groups)
        if self.config.mixture.largest_oversampling:
            sizes = {name: len(frames) for name, frames in groups.items()}
            weights = bounded_weights(weights, sizes, self.config.mixture.largest_oversampling)
        if not any(len(frames) and weights[name] > 0 for name, frames in groups.items()):
            return None
        return MixtureSampler(groups, weights, self.sampler_seed)

    def mixture_weights(self, groups: Mapping[str, Frames]) -> dict[str, float]:
        """Return the weight of each group, on any scale."""
        weights = {name: getattr(self.config.mixture, name) for name in groups}
        if self.uses_rollouts == "successes":
            return weights_without_failures(weights, groups, self.data)
        return weights


@dataclass(frozen=True)
class BehaviorCloningLearning(Learning):
    """Options of behavior cloning. Credit decides where chunks end, and which dimensions a person commanded."""

    credit: CreditConfig = field(default_factory=CreditConfig)


class BehaviorCloning(Algorithm):
    """Imitate every step of every episode, of any actor and with any outcome."""

    name = "bc"
    config_class: ClassVar[type] = BehaviorCloningLearning


class SupervisedFineTuning(Algorithm):
    """Imitate the demonstrations alone: the start of all other algorithms, and the baseline with the same gradient
    steps and no practice.
    """

    name = "sft"
    keeps_base = True

    def actor_groups(self) -> dict[str, Frames]:
        return self.data.actor_groups(interventions=False, rollouts="none")

    def make_sampler(self) -> MixtureSampler | None:
        frames = self.actor_groups()["demonstrations"]
        if not len(frames):
            return None
        return MixtureSampler({"demonstrations": frames}, {"demonstrations": 1.0}, self.sampler_seed)


class HgDagger(Cloning):
    """HG-DAgger (arXiv 1810.02890): imitate demonstrations and interventions, and no step of the policy's own."""

    name = "hg_dagger"
    uses_rollouts = "none"


class FilteredBehaviorCloning(Cloning):
    """Imitate demonstrations, interventions and successful rollouts, all at weight 1: HABC with a gate of 1."""

    name = "filtered_bc"


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
