"""HABC: behavior cloning weighted by hierarchical advantages, with intervention-aware credit. arXiv 2606.17043."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_rl.advantage import (
    AdvantageConfig,
    advantage_gate,
    advantages,
    gated,
    pre_weights,
    viability,
    weights,
)
from vla_rl.algorithms.hierarchical import WeightedCloning, WeightedLearning
from vla_rl.algorithms.round_data import Frames
from vla_rl.critics.hierarchical import CriticConfig
from vla_rl.data.cache import FrameCache


@dataclass(frozen=True)
class HabcLearning(WeightedLearning):
    """Options of HABC."""

    critic: CriticConfig = field(default_factory=CriticConfig)
    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)


class Habc(WeightedCloning):
    """The learner of HABC, with the critics of `HierarchicalLearner` and the weights of `vla_rl.advantage`."""

    name = "habc"
    config_class: ClassVar[type] = HabcLearning
    config: HabcLearning
    learns: ClassVar[frozenset[str]] = frozenset({"viability", "efficiency"})

    @property
    def advantage_config(self) -> AdvantageConfig:
        return self.config.advantage

    @torch.no_grad()
    def weigh(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """Gated weights [B] of the actor's samples, and diagnostics of the gate."""
        config = self.advantage_config
        later, samples = self.samples(frames, config.advantage_horizon)
        # Values that no weight depends on are not computed.
        wanted = gated(samples, config).cpu().numpy() & (self.updates >= config.warmup_steps)
        return weights(self.critics.values(frames, later, wanted), samples, config, self.updates)

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Return values, advantages, gate and raw weight of frames of the present round, float [B] each."""
        del cache
        config = self.advantage_config
        later, samples = self.samples(frames, config.advantage_horizon)
        values = self.critics.values(frames, later, np.ones(len(frames), dtype=bool))
        a_v, a_e = advantages(values, samples)
        gates = advantage_gate(values.viability_logit, a_v, a_e, config)
        columns = {
            "viability": viability(values.viability_logit),
            "efficiency": values.efficiency,
            "viability_advantage": a_v,
            "efficiency_advantage": a_e,
            "advantage_gate": gates,
            "weight": pre_weights(gates, samples, config),
        }
        return {name: column.cpu().numpy() for name, column in columns.items()}
