"""HABC: behaviour cloning weighted by hierarchical advantages, with intervention-aware credit. arXiv 2606.17043."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_rl.advantage import (
    AdvantageConfig,
    Samples,
    Values,
    advantage_gate,
    advantages,
    compared,
    gated,
    pre_weights,
    viability,
    weights,
)
from vla_rl.algorithms.config import WeightedLearning
from vla_rl.algorithms.round_data import Frames
from vla_rl.algorithms.weighted import WeightedCloning
from vla_rl.critics.hierarchical import CriticConfig
from vla_rl.data.cache import FrameCache


@dataclass(frozen=True)
class GatedLearning(WeightedLearning):
    """What an algorithm may be told that weighs by the gate."""

    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)


@dataclass(frozen=True)
class HabcLearning(GatedLearning):
    """What HABC may be told."""

    critic: CriticConfig = field(default_factory=CriticConfig)


class Habc(WeightedCloning):
    """See the module: critics as in `HierarchicalLearner`, weights as in `vla_rl.advantage`, credit as in
    `vla_rl.credit`.
    """

    name = "habc"
    config_class: ClassVar[type] = HabcLearning
    config: GatedLearning
    learns_efficiency = True

    @property
    def advantage_config(self) -> AdvantageConfig:
        return self.config.advantage

    @torch.no_grad()
    def weigh(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """Gated weights [B] of the actor's samples, and diagnostics of the gate."""
        config = self.advantage_config
        later, samples = self.data.samples(frames, config.advantage_horizon)
        # Values that no weight depends on are not computed.
        wanted = gated(samples, config).cpu().numpy() & (self.updates >= config.warmup_steps)
        return weights(self.critics.values(frames, later, wanted), samples, config, self.updates)

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Values, advantages, advantage gate and weight before normalisation of frames of the present round, float [B]
        each. Bins of the value are those of the newest batch.
        """
        del cache
        config = self.advantage_config
        batch = self.actor_frames(self.updates) if config.value_bins else frames[:0]
        every = np.concatenate([batch, frames])
        later, samples = self.data.samples(every, config.advantage_horizon)
        values = self.critics.values(every, later, np.ones(len(every), dtype=bool))
        columns = _columns(values, samples, config, len(batch))
        return {name: column[len(batch) :].cpu().numpy() for name, column in columns.items()}


def _columns(values: Values, samples: Samples, config: AdvantageConfig, batch: int) -> dict[str, Tensor]:
    """Of a batch, which comes first, and of what is compared with it."""
    a_v, a_e = advantages(values, samples, config)
    counted = gated(samples, config)
    counted[batch:] = False
    gates = advantage_gate(values.viability_logit, *compared(a_v, a_e, values, counted, config), config)
    return {
        "viability": viability(values.viability_logit),
        "efficiency": values.efficiency,
        "viability_advantage": a_v,
        "efficiency_advantage": a_e,
        "advantage_gate": gates,
        "weight": pre_weights(gates, samples, config),
    }
