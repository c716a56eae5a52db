"""HABC: behaviour cloning weighted by hierarchical advantages, with intervention-aware credit. arXiv 2606.17043."""

import numpy as np
import torch
from torch import Tensor

from vla_rl.advantage import AdvantageConfig, Samples, Values, advantages, gate, pre_weights, viability, weights
from vla_rl.algorithms.round_data import Frames
from vla_rl.algorithms.weighted import WeightedCloning
from vla_rl.critics.backbones import Backbone
from vla_rl.data.cache import FrameCache


class Habc(WeightedCloning):
    """See the module: critics as in `HierarchicalLearner`, weights as in `vla_rl.advantage`, credit as in
    `vla_rl.credit`.
    """

    name = "habc"
    learns_efficiency = True

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        self.uses_rollouts = "successes" if self.config.mixture.skip_failures else "all"
        super().build_critics(cache, backbone)

    @property
    def advantage_config(self) -> AdvantageConfig:
        return self.config.advantage

    @torch.no_grad()
    def weigh(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """Gated weights [B] of the actor's samples, and diagnostics of the gate."""
        config = self.advantage_config
        later, samples = self.data.samples(frames, config.advantage_horizon)
        gated = samples.rollout & samples.success
        if config.intervention_reweight:
            gated = gated | samples.intervention
        # Values that no weight depends on are not computed.
        wanted = gated.cpu().numpy() & (self.updates >= config.warmup_steps)
        return weights(self.critics.values(frames, later, wanted), samples, config, self.updates)

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Values, advantages, gate and weight before normalisation of frames of the present round, float [B] each."""
        del cache
        config = self.advantage_config
        later, samples = self.data.samples(frames, config.advantage_horizon)
        values = self.critics.values(frames, later, np.ones(len(frames), dtype=bool))
        return {name: column.cpu().numpy() for name, column in _columns(values, samples, config).items()}


def _columns(values: Values, samples: Samples, config: AdvantageConfig) -> dict[str, Tensor]:
    a_v, a_e = advantages(values, samples, config)
    gates = gate(values.viability_logit, a_v, a_e, config)
    return {
        "viability": viability(values.viability_logit),
        "efficiency": values.efficiency,
        "viability_advantage": a_v,
        "efficiency_advantage": a_e,
        "gate": gates,
        "weight": pre_weights(gates, samples, config),
    }
