"""Cloning weighted by a hierarchical critic: critics, then weights, then the actor. Credit says from which steps the
critic learns.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.advantage import Samples, Values, WeightingConfig
from vla_rl.algorithms.actor import gradient_step, load_optimizer, make_optimizer, polyak_update
from vla_rl.algorithms.cloning import Cloning, CloningLearning
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.sampling import MixtureSampler, derived_seed, torch_generator
from vla_rl.core.validation import check_ranges
from vla_rl.credit import ActorKind
from vla_rl.critics.backbones import Backbone, make_backbone
from vla_rl.critics.hierarchical import (
    CriticConfig,
    HierarchicalCritic,
    ViabilityConfig,
    efficiency_loss,
    efficiency_target,
    masked_mean,
    viability_loss,
)
from vla_rl.data.cache import FrameCache

CRITIC_LEARNING_RATE, CRITIC_WEIGHT_DECAY = 5e-4, 1e-2  # of AdamW; unstated in the paper
CRITIC_GRADIENT_NORM = 10.0  # longer gradients are shortened to it
_EVALUATION_BATCH = 512
# Share of a batch that is drawn from steps without a viability label (demonstrations, interventions): they train V_e.
_EFFICIENCY_ONLY = 0.25


@dataclass(frozen=True)
class CriticTrainingConfig:
    """The critics' optimization. Unstated in the paper.

    Attributes:
        batch_size: samples per gradient step.
        steps_per_actor_step: gradient steps for each one of the actor; below 1 the critics pause in between.
        steps_before_round: Gradient steps of the critics before the actor's first one in each round. They let the
            critics learn the round's episodes before they weigh any step.
    """

    batch_size: int = 64
    steps_per_actor_step: float = 1.0
    steps_before_round: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, "critic_training", batch_size=">= 1", steps_per_actor_step="> 0")
        check_ranges(self, "critic_training", steps_before_round=">= 0")


@dataclass(frozen=True)
class WeightedLearning(CloningLearning):
    """Options of algorithms whose critics weigh what they imitate."""

    critic: ViabilityConfig = field(default_factory=ViabilityConfig)
    critic_training: CriticTrainingConfig = field(default_factory=CriticTrainingConfig)
    advantage: WeightingConfig = field(default_factory=WeightingConfig)


class HierarchicalLearner:
    """Trains viability and efficiency of one critic.

    Args:
        backbone: Of the critic.
        config: Of the algorithm.
        data: Of the first round, whose longest episode sets T_max.
        seed: Of batches and augmentation.
        discount: Below 1 the viability head learns discount^(steps to success) instead of the outcome.
        learns_efficiency: False leaves the efficiency head alone.
    """

    def __init__(
        self,
        backbone: Backbone,
        config: WeightedLearning,
        data: RoundData,
        seed: int,
        discount: float = 1.0,
        learns_efficiency: bool = True,
    ) -> None:
        self.config, self._seed = config.critic_training, seed
        self._discount, self._learns_efficiency = discount, learns_efficiency
        self.critic = HierarchicalCritic(backbone, config.critic, data.longest).to(data.device)
        self.target = self.critic
        if config.critic.target_tau is not None:
            self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self._updates = 0  # keys the randomness: there may be several updates, or none, in a step of the actor
        self._optimizer = make_optimizer(self.critic, CRITIC_LEARNING_RATE, CRITIC_WEIGHT_DECAY)
        self.logs = dict.fromkeys(
            ("viability_loss", "viability_accuracy", "efficiency_loss", "critic_gradient_norm"), 0.0
        )

    def begin_round(self, data: RoundData) -> None:
        """Take the round's labeled steps as the batches of the coming updates."""
        self.data = data
        self._labeled = data.credit.viability_mask
        self._timed = data.credit.efficiency_mask & self._learns_efficiency
        succeeded = self._labeled & (data.credit.viability_label > 0.5)
        groups = {
            "succeeded": np.flatnonzero(succeeded),
            "failed": np.flatnonzero(self._labeled & ~succeeded),
            "efficiency_only": np.flatnonzero(self._timed & ~self._labeled),
        }
        judged = sum(len(frames) for name, frames in groups.items() if name != "efficiency_only")
        weights = {name: (1 - _EFFICIENCY_ONLY) * len(frames) / max(judged, 1) for name, frames in groups.items()}
        weights["efficiency_only"] = _EFFICIENCY_ONLY
        self._sampler = None
        if any(len(frames) and weights[name] for name, frames in groups.items()):
            self._sampler = MixtureSampler(groups, weights, derived_seed(self._seed, "critic batch"))

    def update(self) -> None:
        """One gradient step of both heads, if there is anything to learn from. Sets ``logs``."""
        if self._sampler is None:
            return
        frames = self._sampler.sample(self._updates, self.config.batch_size)
        generator = torch_generator(self._seed, "critic noise", self._updates)
        output = self.critic(*self.data.newest(frames, generator))

        outcome = self.data.credit.viability_label[frames] * self.data.discounted_return(frames, self._discount)
        label, labeled = self.data.tensor(outcome), self.data.tensor(self._labeled[frames])
        loss_v = viability_loss(output.viability_logit, label, labeled)
        timed = self._timed[frames]
        target = self._efficiency_target(frames, timed, generator)
        loss_e = efficiency_loss(output.efficiency, target, self.data.tensor(timed), self.critic.efficiency_unit_steps)

        norm = gradient_step(self._optimizer, loss_v + loss_e, self.critic, CRITIC_GRADIENT_NORM, CRITIC_LEARNING_RATE)
        if self.target is not self.critic:
            polyak_update(self.target, self.critic, self.critic.config.target_tau or 0.0)
        self._updates += 1
        correct = ((output.viability_logit.detach() > 0) == (label > 0.5)).float()
        self.logs = {
            "viability_loss": float(loss_v.detach()),
            "viability_accuracy": float(masked_mean(correct, labeled)),
            "efficiency_loss": float(loss_e.detach()),
            "critic_gradient_norm": norm,
        }

    def values(self, frames: Frames, later: Frames, wanted: NDArray[np.bool_]) -> Values:
        """Values at frames and at later ones, [B]; zeros where they are not wanted, which saves the time they take."""
        empty = torch.zeros(len(frames), device=self.data.device)
        if not wanted.any():
            return Values(empty, empty, empty, empty)
        rows = self.data.tensor(np.flatnonzero(wanted))
        logit, efficiency = self.evaluate(frames[wanted])
        logit_later, efficiency_later = self.evaluate(later[wanted])
        columns = (logit, logit_later, efficiency, efficiency_later)
        return Values(*(empty.index_copy(0, rows, column) for column in columns))

    @torch.no_grad()
    def evaluate(self, frames: Frames) -> tuple[Tensor, Tensor]:
        """z_v [B] and V_e [B] of frames, detached, without augmentation."""
        parts = [
            self.critic.values(self.critic(*self.data.newest(part)))
            for part in np.split(frames, range(_EVALUATION_BATCH, len(frames), _EVALUATION_BATCH))
        ]
        logits, efficiencies = zip(*parts, strict=True)
        return torch.cat(logits), torch.cat(efficiencies)

    def state_dict(self) -> dict[str, Any]:
        state = {
            "critic": self.critic.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "updates": self._updates,
        }
        if self.target is not self.critic:
            state["target"] = self.target.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.critic.load_state_dict(state["critic"])
        load_optimizer(self._optimizer, state["optimizer"])
        self._updates = int(state["updates"])
        if self.target is not self.critic:
            self.target.load_state_dict(state["target"])

    @torch.no_grad()
    def _efficiency_target(self, frames: Frames, timed: NDArray[np.bool_], generator: torch.Generator) -> Tensor:
        """y_e [B]; only the rows that need it are bootstrapped."""
        config = self.critic.config
        steps = config.efficiency_return_steps if isinstance(config, CriticConfig) else 1
        later, elapsed, ended = self.data.transition(frames, steps)
        terminal = ended & self.data.tensor(self.data.credit.actor_outcome[frames])
        bootstrapped = np.flatnonzero(timed & ~terminal.cpu().numpy())
        value = torch.zeros(len(frames), device=self.data.device)
        if len(bootstrapped):
            inputs = self.data.newest(later[bootstrapped], generator)
            _, efficiency = self.target.values(self.target(*inputs))
            value[torch.from_numpy(bootstrapped).to(value.device)] = efficiency
        return efficiency_target(value, elapsed, terminal, self.critic.max_steps)


class CriticSteps:
    """Counts critic steps, in fractions, so that critics may also be slower than the actor."""

    def __init__(self, config: CriticTrainingConfig) -> None:
        self._per_actor_step, self._before_round = config.steps_per_actor_step, config.steps_before_round
        self._due = 0.0

    def take(self, begins_round: bool = False) -> int:
        """Critic steps that are due with the present actor step, the first one of its round or another."""
        self._due += self._per_actor_step
        whole = int(self._due)
        self._due -= whole
        return whole + (self._before_round if begins_round else 0)

    def state_dict(self) -> dict[str, Any]:
        return {"due": self._due}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._due = float(state["due"])


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

    def build_critics(self, cache: FrameCache) -> None:
        backbone = make_backbone(self.config.critic.backbone, self.model)
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

    def samples(self, frames: Frames, horizon: int) -> tuple[Frames, Samples]:
        """The frames ``horizon`` steps later, and what `vla_rl.advantage` needs to know of the frames."""
        later, elapsed, ended = self.data.transition(frames, horizon)
        kind, tensor = self.data.credit.actor_kind[frames], self.data.tensor
        return later, Samples(
            rollout=tensor(kind == ActorKind.ROLLOUT),
            intervention=tensor(kind == ActorKind.INTERVENTION),
            demonstration=tensor(kind == ActorKind.DEMONSTRATION),
            success=tensor(self.data.credit.actor_outcome[frames]),
            elapsed=elapsed,
            ended=ended,
        )
