"""Weighted cloning: critics, then weights, then the actor. The frame of HABC, AWR and the threshold filter."""

import copy
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.cross_fitting import CrossFitted
from vla_rl.algorithms.hierarchical import HierarchicalLearner
from vla_rl.algorithms.replay_ratio import ReplayRatio
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.seeds import derived_seed
from vla_rl.critics.activity import active_units
from vla_rl.critics.backbones import Backbone, make_backbone
from vla_rl.data.cache import FrameCache

_FRAMES_FOR_ACTIVITY = 256


class WeightedCloning(Algorithm):
    """Subclasses say what a sample weighs.

    The warm-up of the weights counts updates since the critics were made: it happens once, not in every round.
    """

    learns_efficiency: ClassVar[bool] = False

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        data = self.read(cache)
        self.critics = CrossFitted(
            [self._learner(fold, data, backbone) for fold in range(self.config.critic_training.folds)]
        )
        self.replay_ratio = ReplayRatio(self.config.critic_training)
        self.updates = 0

    def _learner(self, fold: int, data: RoundData, backbone: Backbone | None) -> HierarchicalLearner:
        config = self.config.critic
        if backbone is None:
            own = make_backbone(config.backbone, self.model, config.vision, config.token_width)
        else:
            own = backbone if fold == 0 else copy.deepcopy(backbone)
        seed = derived_seed(self.seed, "critic", fold)
        return HierarchicalLearner(own, self.config, data, seed, self.discount, self.learns_efficiency)

    @property
    def discount(self) -> float:
        """Of the return that the viability head learns: 1 for the plain outcome."""
        return 1.0

    def begin_round(self, cache: FrameCache, number: int) -> None:
        super().begin_round(cache, number)
        self.critics.begin_round(self.data)
        practised = sum(episode.policy_version >= 0 for episode in cache.episodes)
        if self.replay_ratio.wants_measurement(practised):
            frames = np.linspace(0, cache.total_frames - 1, _FRAMES_FOR_ACTIVITY).astype(np.int64)
            networks = nn.ModuleList(learner.critic for learner in self.critics.learners)
            with active_units(networks) as meter:
                self.critics.evaluate(frames)
            self.replay_ratio.observe(practised, meter.fraction)

    def update(self, step: int) -> dict[str, float]:
        """Critics on their subsets, then weights, then the actor."""
        for _ in range(self.replay_ratio.steps(self.begins_round())):
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
        own = {"critics": self.critics.state_dict(), "replay_ratio": self.replay_ratio.state_dict()}
        return super().state_dict() | own | {"updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.critics.load_state_dict(state["critics"])
        self.replay_ratio.load_state_dict(state["replay_ratio"])
        self.updates = int(state["updates"])
