"""What all algorithms share: a round is begun with the cache, an update is one gradient step of everything.

Law: an update is a function of (state, seed, step) and of the cache as `begin_round` found it. On a CPU a resumed run
ends in the same weights, bit by bit, as an uninterrupted one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from vla_rl.algorithms.actor import ActorLearner
from vla_rl.algorithms.config import AlgorithmConfig
from vla_rl.algorithms.next_latent import NextLatentLoss
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.seeds import derived_seed, torch_generator
from vla_rl.core.types import Float32Array
from vla_rl.credit import ActorKind
from vla_rl.critics.backbones import Backbone
from vla_rl.data.cache import FrameCache
from vla_rl.data.sampler import MixtureSampler
from vla_rl.policies.folders import load_model
from vla_rl.policies.trainable import PolicyConfig, TrainablePolicy

RolloutUse = Literal["none", "successes", "all"]


class Algorithm:
    """Imitation of what an algorithm's groups hold, all at weight 1. Subclasses add critics and weights.

    Args:
        config: see `AlgorithmConfig`.
        model: the policy to improve, trained in place.
        cache: the episodes of the first round.
        seed: of everything random.
        backbone: of the critics; default: as ``config.critic.backbone`` says. See `vla_rl.critics.backbones`.
    """

    name: ClassVar[str]
    uses_interventions: ClassVar[bool] = True
    uses_rollouts: RolloutUse = "successes"

    def __init__(
        self,
        config: AlgorithmConfig,
        model: TrainablePolicy,
        cache: FrameCache,
        seed: int,
        backbone: Backbone | None = None,
    ) -> None:
        self.config, self.model, self.seed = config, model, seed
        self.actor = ActorLearner(model, config.actor, seed)
        self.next_latent = NextLatentLoss(config.next_latent, model, seed) if config.next_latent.weight else None
        self._round = self._begun = -1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "critic weights"))
            self.build_critics(cache, backbone)

    @classmethod
    def check(cls, policy: PolicyConfig) -> None:
        """Refuse a policy that lacks what the algorithm needs.

        Raises:
            ConfigError: in that case.
        """

    def build_critics(self, cache: FrameCache, backbone: Backbone | None) -> None:
        """Make what the algorithm needs beside the actor; nothing here."""

    def begin_round(self, cache: FrameCache, number: int) -> None:
        """Take the episodes in the cache as the training data of the coming updates, those of round ``number``."""
        self.data = self.read(cache)
        if number != self._round:  # after a resume the round is not new
            self._round = number
            self.actor.begin_round()
        groups = actor_groups(self.data, self.uses_interventions, self.uses_rollouts)
        weights = {name: getattr(self.config.mixture, name) for name in groups}
        if self.uses_rollouts == "successes":
            weights = weights_without_failures(weights, groups, self.data)
        if self.config.mixture.largest_oversampling:
            sizes = {name: len(frames) for name, frames in groups.items()}
            weights = bounded_weights(weights, sizes, self.config.mixture.largest_oversampling)
        self._sampler = None
        if any(len(frames) and weights[name] > 0 for name, frames in groups.items()):
            priorities = None
            if self.config.mixture.episodes_equal:
                share = 1.0 / np.array([episode.length for episode in cache.episodes])[cache.episode_index]
                priorities = {name: share[frames] for name, frames in groups.items()}
            self._sampler = MixtureSampler(groups, weights, derived_seed(self.seed, "actor batch"), priorities)

    def begins_round(self) -> bool:
        """Whether the update that asks is the first of its round; True once."""
        begins = self._begun != self._round
        self._begun = self._round
        return begins

    def foretell(self, latents: Float32Array | None) -> None:
        """Latents of every frame in the cache, which the policy's encoder learns to foretell in this round, see
        `NextLatentLoss.begin_round`.
        """
        if self.next_latent is not None:
            self.next_latent.begin_round(latents)

    def read(self, cache: FrameCache) -> RoundData:
        """The cache as this algorithm sees it."""
        return RoundData(cache, self.config.credit, self.config.mixture.max_staleness, self.model)

    def update(self, step: int) -> dict[str, float]:
        """One gradient step; ``step`` counts from the start of the run. Returns what to log."""
        frames = self.actor_frames(step)
        return self.update_actor(frames, torch.ones(len(frames), device=self.data.device), step)

    def actor_frames(self, step: int) -> Frames:
        """The frames of the actor's batch, int64 [B]; none if there is nothing that the actor may learn from."""
        if self._sampler is None:
            return np.empty(0, dtype=np.int64)
        return self._sampler.sample(step, self.config.actor.batch_size)[0]

    def update_actor(
        self, frames: Frames, weight: torch.Tensor, step: int, indicator: torch.Tensor | None = None
    ) -> dict[str, float]:
        """One gradient step of the actor on weighted frames; ``indicator`` int64 [B] as in `PolicyBatch`."""
        if len(frames) == 0:
            return {"actor_loss": 0.0}
        generator = torch_generator(self.seed, "actor shift", step)
        batch = self.data.policy_batch(frames, self.config.actor.random_shift, generator, indicator)
        if self.next_latent is None:
            return self.actor.update(batch, weight, step)
        beside = self.next_latent.loss(self.data, len(frames), self.config.actor.random_shift, step)
        logs = self.actor.update(batch, weight, step, beside)
        self.next_latent.step()
        return {**logs, "next_latent_loss": 0.0 if beside is None else float(beside.detach())}

    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Values and weights of frames of the present round, for the report. Empty for an algorithm without critics."""
        del cache, frames
        return {}

    def policy(self) -> TrainablePolicy:
        """The model that should act."""
        return self.actor.policy()

    def save_policy(self, folder: Path, version: int) -> None:
        """Write the policy that should act from now on."""
        self.policy().save(folder, {"policy_version": version, "algorithm": self.name})

    def adopt_policy(self, folder: Path) -> None:
        """Go on from the weights of another policy of the same kind; critics and optimisers stay."""
        self.actor.adopt(load_model(folder, expected=self.model.spec)[0])

    def state_dict(self) -> dict[str, Any]:
        """All that updates depend on beside seed, step and cache."""
        state = {"actor": self.actor.state_dict(), "round": self._round, "begun": self._begun}
        return state if self.next_latent is None else {**state, "next_latent": self.next_latent.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.actor.load_state_dict(state["actor"])
        self._round, self._begun = int(state["round"]), int(state["begun"])
        if self.next_latent is not None:
            self.next_latent.load_state_dict(state.get("next_latent", {}))


def actor_groups(data: RoundData, interventions: bool, rollouts: RolloutUse) -> dict[str, Frames]:
    """The frames that the actor may draw, by kind."""
    played = data.of_kind(ActorKind.ROLLOUT)
    if rollouts == "successes":
        played &= data.credit.actor_outcome
    played &= rollouts != "none"
    return {
        "demonstrations": np.flatnonzero(data.of_kind(ActorKind.DEMONSTRATION)),
        "interventions": np.flatnonzero(data.of_kind(ActorKind.INTERVENTION) & interventions),
        "rollouts": np.flatnonzero(played & ~data.imagined),
        "imagined": np.flatnonzero(played & data.imagined),
    }


def weights_without_failures(
    weights: Mapping[str, float], groups: Mapping[str, Frames], data: RoundData
) -> dict[str, float]:
    """The mixture's weights for groups that failed rollouts were left out of, see `MixtureConfig.skip_failures`."""
    played = data.of_kind(ActorKind.ROLLOUT)
    sizes = {"rollouts": int((played & ~data.imagined).sum()), "imagined": int((played & data.imagined).sum())}
    shared = {name: weights[name] for name, size in sizes.items() if size}
    left = {name: weight * len(groups[name]) / sizes[name] for name, weight in shared.items()}
    if len(groups["interventions"]):
        left["interventions"] = shared["interventions"] = weights["interventions"]
    if not sum(left.values()) > 0:
        return {**weights, **left}
    scale = sum(shared.values()) / sum(left.values())
    return {**weights, **{name: weight * scale for name, weight in left.items()}}


def bounded_weights(weights: Mapping[str, float], sizes: Mapping[str, int], largest: float) -> dict[str, float]:
    """Weights of groups, of sum 1, such that no frame is drawn more than ``largest`` times as often as under uniform
    draws. What that takes from a small group goes to the others in proportion.
    """
    left = {name: weight for name, weight in weights.items() if weight > 0 and sizes[name]}
    total = sum(sizes[name] for name in left)  # of the steps that may be drawn
    found = dict.fromkeys(weights, 0.0)
    rest = 1.0
    while left:
        scale = rest / sum(left.values())
        bound = {name: largest * sizes[name] / total for name in left}
        full = [name for name in left if left[name] * scale > bound[name]]
        if not full:
            return found | {name: weight * scale for name, weight in left.items()}
        for name in full:
            found[name] = bound[name]
            rest -= bound[name]
            del left[name]
    return found
