"""Advantage-weighted regression (arXiv 1910.00177), and reward-weighted regression without the baseline."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_rl.advantage import Array, effective_samples, normalize, viability
from vla_rl.algorithms.hierarchical import WeightedCloning, WeightedLearning
from vla_rl.algorithms.round_data import Frames
from vla_rl.core.errors import ConfigError
from vla_rl.data.cache import FrameCache


@dataclass(frozen=True)
class AwrConfig:
    """The exponential weight.

    Attributes:
        temperature: beta of exp(A / beta).
        max_weight: the exponential is clipped to it.
        discount: gamma of the return gamma^(steps to success) of a success; a failure returns 0.
        baseline: False gives reward-weighted regression, exp(R / beta).
    """

    temperature: float = 0.2
    max_weight: float = 20.0
    discount: float = 0.99
    baseline: bool = True

    def __post_init__(self) -> None:
        if not self.temperature > 0 or not self.max_weight > 0 or not 0 < self.discount <= 1:
            raise ConfigError("awr: expected temperature > 0, max_weight > 0 and 0 < discount <= 1")


@dataclass(frozen=True)
class AwrLearning(WeightedLearning):
    """Options of advantage-weighted regression."""

    awr: AwrConfig = field(default_factory=AwrConfig)


def exponential_weight(returns: Array, value: Array, config: AwrConfig) -> Array:
    """min(exp((R - V) / beta), w_max), [B]; without the baseline exp(R / beta). Returns and values in [0, 1]."""
    advantage = returns - value if config.baseline else returns
    # Clipped before the exponential, which could overflow.
    exponent = (advantage / config.temperature).clip(max=float(np.log(config.max_weight)))
    return torch.exp(exponent) if isinstance(exponent, Tensor) else np.exp(exponent)


class AdvantageWeightedRegression(WeightedCloning):
    """Every step of the policy is imitated, good ones exponentially more; while the value is young, those of successes
    alone. People's steps weigh 1.

    The value is the viability head's, learned from discounted returns under the same credit; weights are normalized as
    in HABC.
    """

    name = "awr"
    config_class: ClassVar[type] = AwrLearning
    config: AwrLearning
    uses_rollouts = "all"

    @property
    def discount(self) -> float:
        return self.config.awr.discount

    @torch.no_grad()
    def weigh(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """Exponential weights [B]."""
        later, samples = self.samples(frames, 1)
        wanted = samples.rollout.cpu().numpy() & (self.updates >= self.config.advantage.warmup_steps)
        value = viability(self.critics.values(frames, later, wanted).viability_logit)
        returns = self.data.tensor(self.data.discounted_return(frames, self.discount))
        exponential = exponential_weight(returns, value, self.config.awr)
        young = (~samples.rollout | samples.success).float()
        played = torch.where(self.data.tensor(wanted), exponential, young)
        weight = normalize(played, samples)
        clipped = (played >= self.config.awr.max_weight * (1 - 1e-6)) & samples.rollout
        return weight, {
            "weight_clipped": float(clipped.sum()) / max(int(samples.rollout.sum()), 1),
            "effective_samples": effective_samples(weight),
        }

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Value and weight before normalization of frames of the present round, float [B] each."""
        del cache
        value = viability(self.critics.evaluate(frames)[0])
        returns = self.data.tensor(self.data.discounted_return(frames, self.discount))
        _, samples = self.samples(frames, 1)
        weight = torch.where(samples.rollout, exponential_weight(returns, value, self.config.awr), 1.0)
        return {"discounted_value": value.cpu().numpy(), "weight": weight.cpu().numpy()}
