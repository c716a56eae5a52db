"""RECAP, arXiv 2511.14759 (pi*0.6): a policy conditioned on whether an action was better than usual.

A distributional critic learns Monte-Carlo returns. A step of the policy counts as good if its N-step advantage is above
the task's quantile that lets a fixed fraction pass. Steps of people always count as good. The actor imitates
everything, with that indicator as an input, and acts with the indicator set to good. As in the paper, the critic learns
from every step of an episode whose outcome is known, by any actor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vla_rl.algorithms.actor import gradient_step, load_optimizer, make_optimizer
from vla_rl.algorithms.cloning import Cloning, CloningLearning
from vla_rl.algorithms.hierarchical import (
    CRITIC_GRADIENT_NORM,
    CRITIC_LEARNING_RATE,
    CRITIC_WEIGHT_DECAY,
    CriticSteps,
    CriticTrainingConfig,
)
from vla_rl.algorithms.round_data import Frames
from vla_rl.algorithms.sampling import MixtureSampler, derived_seed, torch_generator
from vla_rl.core.validation import check_ranges
from vla_rl.credit import ActorKind
from vla_rl.critics.backbones import make_backbone
from vla_rl.data.cache import FrameCache
from vla_rl.policies.base import Indicator
from vla_rl_baselines.distributional import (
    DistributionalConfig,
    DistributionalCritic,
    distributional_loss,
    normalized_return,
)

_EVALUATION_BATCH = 512


@dataclass(frozen=True)
class RecapConfig:
    """The indicator. Its dropout and guidance belong to the policy (`FlowVLAConfig`).

    Attributes:
        critic: the distributional value function.
        lookahead: N of the N-step advantage.
        positive_fraction: of the policy's steps of each task that are called good.
        threshold_every: updates between two estimates of the quantiles that these are.
        threshold_frames: steps of each task behind an estimate.
        warmup_steps: updates before the first estimate; the policy's own steps carry no indicator until then.
    """

    critic: DistributionalConfig = field(default_factory=DistributionalConfig)
    lookahead: int = 50
    positive_fraction: float = 0.4
    threshold_every: int = 250
    threshold_frames: int = 512
    warmup_steps: int = 500

    def __post_init__(self) -> None:
        check_ranges(self, "recap", positive_fraction="(0, 1)", warmup_steps=">= 0", lookahead=">= 1")
        check_ranges(self, "recap", threshold_every=">= 1", threshold_frames=">= 1")


@dataclass(frozen=True)
class RecapLearning(CloningLearning):
    """Options of RECAP."""

    critic_training: CriticTrainingConfig = field(default_factory=CriticTrainingConfig)
    recap: RecapConfig = field(default_factory=RecapConfig)


def n_step_advantage(
    value: Tensor, later: Tensor, elapsed: Tensor, ended: Tensor, success: Tensor, task_steps: Tensor
) -> Tensor:
    """sum of rewards + V(s') - V(s), [B], in units of the task's length.

    Args:
        value, later: V(s) and V(s') in [-1, 0].
        elapsed: n, steps from s to s'.
        ended: bool, the episode ended within the N steps; its end is worth 0 after a success and -1 after a failure.
        success: bool, the outcome.
        task_steps: the length of the task's longest episode.
    """
    passed = elapsed / task_steps
    end = torch.where(success, -passed, -1.0)
    return torch.where(ended, end, later - passed) - value


def improvement_indicator(advantage: Tensor, threshold: Tensor, forced: Tensor) -> Tensor:
    """I = A > threshold, or positive where forced; int64 [B], values of `Indicator`."""
    return torch.where((advantage > threshold) | forced, int(Indicator.POSITIVE), int(Indicator.NEGATIVE))


class Recap(Cloning):
    """Learner of RECAP. The policy needs ``indicator=True``.

    Thresholds are estimated every so many updates from the present critic, and kept with the state.
    """

    name = "recap"
    config_class: ClassVar[type] = RecapLearning
    config: RecapLearning
    requires: ClassVar[frozenset[str]] = frozenset({"indicator"})
    uses_rollouts = "all"

    @classmethod
    def required(cls, learning: RecapLearning) -> frozenset[str]:
        return cls.requires | ({"features"} if learning.recap.critic.backbone == "policy" else set())

    def build_critics(self, cache: FrameCache) -> None:
        del cache
        config, training = self.config.recap.critic, self.config.critic_training
        backbone = make_backbone(config.backbone, self.model)
        self.critic = DistributionalCritic(backbone, config).to(next(self.model.parameters()).device)
        self._optimizer = make_optimizer(self.critic, CRITIC_LEARNING_RATE, CRITIC_WEIGHT_DECAY)
        self.critic_steps = CriticSteps(training)
        self.thresholds: dict[str, float] = {}
        self.updates = self._critic_updates = 0
        self._critic_logs = {"critic_loss": 0.0, "critic_gradient_norm": 0.0}

    def begin_round(self, cache: FrameCache, number: int) -> None:
        super().begin_round(cache, number)
        known = np.flatnonzero(self.data.credit.known)
        self._critic_sampler = None
        if len(known):
            self._critic_sampler = MixtureSampler(
                {"known": known}, {"known": 1.0}, derived_seed(self.seed, "critic batch")
            )
        longest = dict.fromkeys(cache.tasks, 1)
        for episode in cache.episodes:
            longest[episode.task] = max(longest[episode.task], episode.length)
        self._task_steps = np.array([longest[task] for task in cache.tasks], dtype=np.float32)

    def update(self, step: int) -> dict[str, float]:
        """Value function on returns, then indicators, then the actor."""
        for _ in range(self.critic_steps.take(self.begins_round())):
            self._update_critic()
        config = self.config.recap
        if self.updates >= config.warmup_steps and (self.updates - config.warmup_steps) % config.threshold_every == 0:
            self._estimate_thresholds(step)
        frames = self.actor_frames(step)
        indicator, indicator_logs = self.indicate(frames)
        weight = torch.ones(len(frames), device=self.data.device)
        actor_logs = self.update_actor(frames, weight, step, indicator)
        self.updates += 1
        return actor_logs | indicator_logs | self._critic_logs

    @torch.no_grad()
    def indicate(self, frames: Frames) -> tuple[Tensor, dict[str, float]]:
        """The indicator of each frame, int64 [B]; the policy's own steps have none while there is no threshold."""
        kind = self.data.credit.actor_kind[frames]
        forced = self.data.tensor(np.isin(kind, (ActorKind.INTERVENTION, ActorKind.DEMONSTRATION)))
        indicator = torch.where(forced, int(Indicator.POSITIVE), int(Indicator.NONE))
        thresholds = np.array([self.thresholds.get(task, np.nan) for task in self.data.cache.tasks], dtype=np.float32)
        threshold = thresholds[self.data.task_index(frames)]
        played = np.flatnonzero((kind == ActorKind.ROLLOUT) & np.isfinite(threshold))
        if len(played):
            judged = improvement_indicator(
                self.advantage(frames[played]),
                self.data.tensor(threshold[played]),
                torch.zeros(len(played), dtype=torch.bool, device=forced.device),
            )
            indicator[self.data.tensor(played)] = judged
        positive = ((indicator == int(Indicator.POSITIVE)) & ~forced).sum()
        return indicator, {"positive_fraction": float(positive) / max(len(played), 1)}

    @torch.no_grad()
    def advantage(self, frames: Frames) -> Tensor:
        """The N-step advantage of each frame, [B]."""
        later, elapsed, ended = self.data.transition(frames, self.config.recap.lookahead)
        success = self.data.tensor(self.data.credit.actor_outcome[frames])
        task_steps = self.data.tensor(self._task_steps[self.data.task_index(frames)])
        return n_step_advantage(self.evaluate(frames), self.evaluate(later), elapsed, ended, success, task_steps)

    @torch.no_grad()
    def evaluate(self, frames: Frames) -> Tensor:
        """V(s) of each frame, [B], in (-1, 0)."""
        parts = np.split(frames, range(_EVALUATION_BATCH, len(frames), _EVALUATION_BATCH))
        return torch.cat([self.critic.value(self.critic(*self.data.inputs(part))) for part in parts])

    @torch.no_grad()
    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Value, advantage and indicator of frames of the present round, [B] each."""
        del cache
        indicator = self.indicate(frames)[0].cpu().numpy()
        columns = {"value": self.evaluate(frames), "advantage": self.advantage(frames)}
        return {name: column.cpu().numpy() for name, column in columns.items()} | {"indicator": indicator}

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {
            "critic": self.critic.state_dict(),
            "critic_optimizer": self._optimizer.state_dict(),
            "critic_updates": self._critic_updates,
            "critic_steps": self.critic_steps.state_dict(),
            "thresholds": self.thresholds,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.critic.load_state_dict(state["critic"])
        load_optimizer(self._optimizer, state["critic_optimizer"])
        self._critic_updates = int(state["critic_updates"])
        self.critic_steps.load_state_dict(state["critic_steps"])
        self.thresholds = dict(state["thresholds"])
        self.updates = int(state["updates"])

    def _update_critic(self) -> None:
        if self._critic_sampler is None:
            return
        training = self.config.critic_training
        frames = self._critic_sampler.sample(self._critic_updates, training.batch_size)
        generator = torch_generator(self.seed, "critic noise", self._critic_updates)
        logits = self.critic(*self.data.inputs(frames, generator))
        returns = self._returns(frames)
        loss = distributional_loss(logits, returns, torch.ones_like(returns, dtype=torch.bool))
        norm = gradient_step(self._optimizer, loss, self.critic, CRITIC_GRADIENT_NORM, CRITIC_LEARNING_RATE)
        self._critic_updates += 1
        self._critic_logs = {"critic_loss": float(loss.detach()), "critic_gradient_norm": norm}

    def _returns(self, frames: Frames) -> Tensor:
        steps_left = self.data.tensor(self.data.steps_left(frames).astype(np.float32))
        success = self.data.tensor(self.data.credit.actor_outcome[frames])
        return normalized_return(steps_left, success, self.data.tensor(self._task_steps[self.data.task_index(frames)]))

    def _estimate_thresholds(self, step: int) -> None:
        """For each task the quantile above which the asked fraction of the policy's steps lies."""
        config = self.config.recap
        frames = np.flatnonzero(self.data.of_kind(ActorKind.ROLLOUT))
        task = self.data.task_index(frames)
        random = np.random.default_rng(derived_seed(self.seed, "thresholds", step))
        for index in np.unique(task):
            members = frames[task == index]
            chosen = random.choice(members, min(len(members), config.threshold_frames), replace=False)
            quantile = np.quantile(self.advantage(chosen).cpu().numpy(), 1.0 - config.positive_fraction)
            self.thresholds[self.data.cache.tasks[index]] = float(quantile)
