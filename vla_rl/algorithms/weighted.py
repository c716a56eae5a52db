"""Weighted cloning: critics, then weights, then the actor."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from vla_rl.algorithms.cloning import Cloning
from vla_rl.algorithms.critic_steps import CriticSteps
from vla_rl.algorithms.hierarchical import HierarchicalLearner, WeightedLearning
from vla_rl.algorithms.round_data import Frames
from vla_rl.algorithms.seeds import derived_seed
from vla_rl.critics.backbones import Backbone, make_backbone
from vla_rl.data.cache import FrameCache


class WeightedCloning(Cloning):
    """Subclasses say what a sample weighs.

    The warm-up of the weights counts updates since the critics were made: it happens once, not in every round.
    """

    config_class: ClassVar[type] = WeightedLearning
    config: WeightedLearning
    learns: ClassVar[frozenset[str]] = frozenset({"viability"})

    @classmethod
    def required(cls, learning: WeightedLearning) -> frozenset[str]:
        return cls.requires | ({"features"} if learning.critic.backbone == "policy" else set())

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        backbone = backbone or make_backbone(self.config.critic.backbone, self.model)
        seed = derived_seed(self.seed, "critic")
        self.critics = HierarchicalLearner(
            backbone, self.config, self.read(cache), seed, self.discount, "efficiency" in self.learns
        )
        self.critic_steps = CriticSteps(self.config.critic_training)
        self.updates = 0

    def begin_round(self, cache: FrameCache, number: int) -> None:
        super().begin_round(cache, number)
        self.critics.begin_round(self.data)

    def update(self, step: int) -> dict[str, float]:
        """Critics on their subsets, then weights, then the actor."""
        for _ in range(self.critic_steps.take(self.begins_round())):
            self.critics.update()
        frames = self.actor_frames(step)
        weight, weight_logs = self.weigh(frames)
        actor_logs = self.update_actor(frames, weight, step)
        self.updates += 1
        return actor_logs | weight_logs | self.critics.logs

    def weigh(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """Weights [B] of the actor's samples, detached, and what to log of them."""
        return torch.ones(len(frames), device=self.data.device), {}

    def state_dict(self) -> dict[str, Any]:
        own = {"critics": self.critics.state_dict(), "critic_steps": self.critic_steps.state_dict()}
        return super().state_dict() | own | {"updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.critics.load_state_dict(state["critics"])
        self.critic_steps.load_state_dict(state["critic_steps"])
        self.updates = int(state["updates"])
