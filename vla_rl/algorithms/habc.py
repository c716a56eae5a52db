"""HABC: behaviour cloning weighted by hierarchical advantages, with intervention-aware credit. arXiv 2606.17043."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vla_rl.advantage import (
    AdvantageConfig,
    Samples,
    Values,
    advantages,
    gate,
    pre_weights,
    viability,
    weights,
)
from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.hierarchical import HierarchicalLearner
from vla_rl.algorithms.round_data import Frames
from vla_rl.critics.backbones import Backbone, make_backbone
from vla_rl.data.cache import FrameCache


class Habc(Algorithm):
    """See the module. The warm-up counts updates since the critics were made: it happens once, not in every round."""

    name = "habc"

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        self.uses_rollouts = "successes" if self.config.mixture.skip_failures else "all"
        critic = self.config.critic
        backbone = backbone or make_backbone(critic.backbone, self.model, critic.vision, critic.token_width)
        self.critics = HierarchicalLearner(backbone, self.config, self.read(cache), self.seed)
        self._updates = 0

    @property
    def advantage_config(self) -> AdvantageConfig:
        return self.config.advantage

    def begin_round(self, cache: FrameCache) -> None:
        super().begin_round(cache)
        self.critics.begin_round(self.data)

    def update(self, step: int) -> dict[str, float]:
        """Critics on their subsets, then weights, then the actor."""
        if self._updates % self.config.critic_training.interval == 0:
            self.critics.update(step)
        frames = self.actor_frames(step)
        weight, weight_logs = self.weigh(frames)
        actor_logs = self.update_actor(frames, weight, step)
        self._updates += 1
        return actor_logs | weight_logs | self.critics.logs

    @torch.no_grad()
    def weigh(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """Weights [B] of the actor's samples, and diagnostics."""
        samples, values = self._values(frames, needed_only=True)
        return weights(values, samples, self.advantage_config, self._updates)

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Values, advantages, gate and weight before normalisation of every frame, float [B] each."""
        del cache  # the frames are those of the present round
        samples, values = self._values(frames, needed_only=False)
        a_v, a_e = advantages(values, samples, self.advantage_config)
        gates = gate(values.viability_logit, a_v, a_e, self.advantage_config)
        columns = {
            "viability": viability(values.viability_logit),
            "efficiency": values.efficiency,
            "viability_advantage": a_v,
            "efficiency_advantage": a_e,
            "gate": gates,
            "weight": pre_weights(gates, samples, self.advantage_config),
        }
        return {name: column.cpu().numpy() for name, column in columns.items()}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"critics": self.critics.state_dict(), "updates": self._updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.critics.load_state_dict(state["critics"])
        self._updates = int(state["updates"])

    def _values(self, frames: Frames, needed_only: bool) -> tuple[Samples, Values]:
        config = self.advantage_config
        later, samples = self.data.samples(frames, config.advantage_horizon)
        wanted = np.ones(len(frames), dtype=bool)
        if needed_only:
            gated = samples.rollout & samples.success
            if config.intervention_reweight:
                gated = gated | samples.intervention
            wanted = gated.cpu().numpy() & (self._updates >= config.warmup_steps)
        return samples, self.critics.values(frames, later, wanted)
