"""The threshold filter: a step is imitated if its temporal-difference advantage reaches a threshold, else dropped."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_rl.advantage import Array, HorizonConfig, effective_samples, normalize, viability
from vla_rl.algorithms.hierarchical import WeightedCloning, WeightedLearning
from vla_rl.algorithms.round_data import Frames
from vla_rl.core.errors import ConfigError
from vla_rl.data.cache import FrameCache


@dataclass(frozen=True)
class ThresholdConfig:
    """Which steps are kept.

    Attributes:
        epsilon: the threshold, in units of the value, which lies in [0, 1].
        discount: gamma; the reward is 1 at success.
    """

    epsilon: float = 0.0
    discount: float = 0.99

    def __post_init__(self) -> None:
        if not 0 < self.discount <= 1:
            raise ConfigError(f"threshold.discount is {self.discount}; it must be in (0, 1]")


@dataclass(frozen=True)
class ThresholdLearning(WeightedLearning):
    """Options of the threshold filter."""

    advantage: HorizonConfig = field(default_factory=HorizonConfig)
    threshold: ThresholdConfig = field(default_factory=ThresholdConfig)


def keep(value: Array, later: Array, reward: Array, ended: Array, elapsed: Array, config: ThresholdConfig) -> Array:
    """gamma^n (r + (1 - d) V(s')) - V(s) >= eps, bool [B].

    The reward of a success is paid when its last step is over, and V of that step is 1. So n steps before it both are
    gamma^n.

    Args:
        value, later: V(s) and V(s') in [0, 1].
        reward: 1 where the episode succeeded within the n steps, else 0.
        ended: bool, d: the episode ended within the n steps.
        elapsed: n.
        config: threshold and discount.
    """
    return config.discount**elapsed * (reward + later * ~ended) - value >= config.epsilon


class ThresholdFilter(WeightedCloning):
    """Value and credit are those of the viability head, learned from discounted returns. People's steps weigh 1."""

    name = "threshold"
    config_class: ClassVar[type] = ThresholdLearning
    config: ThresholdLearning
    uses_rollouts = "all"

    @property
    def discount(self) -> float:
        return self.config.threshold.discount

    @torch.no_grad()
    def weigh(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """Weights [B], equal for the kept and 0 for the dropped."""
        _, samples = self.samples(frames, 1)
        kept = ~samples.rollout | samples.success  # while the value is young
        if self.updates >= self.config.advantage.warmup_steps and bool(samples.rollout.any()):
            kept = self._keep(frames, samples.rollout.cpu().numpy()) | ~samples.rollout
        weight = normalize(kept.float(), samples)
        kept_rollouts = float((kept & samples.rollout).sum()) / max(int(samples.rollout.sum()), 1)
        return weight, {"kept": kept_rollouts, "effective_samples": effective_samples(weight)}

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Value and weight of frames of the present round, float [B] each."""
        del cache
        _, samples = self.samples(frames, 1)
        kept = self._keep(frames, np.ones(len(frames), dtype=bool)) | ~samples.rollout
        value = viability(self.critics.evaluate(frames)[0])
        return {"discounted_value": value.cpu().numpy(), "weight": kept.float().cpu().numpy()}

    def _keep(self, frames: Frames, wanted: np.ndarray) -> Tensor:
        later, samples = self.samples(frames, self.config.advantage.advantage_horizon)
        values = self.critics.values(frames, later, wanted)
        # An episode ends with its last step, so that its s' is the end itself, not the last observation.
        reward = (samples.ended & samples.success).float()
        return keep(
            viability(values.viability_logit),
            viability(values.viability_logit_later),
            reward,
            samples.ended,
            samples.elapsed,
            self.config.threshold,
        )
