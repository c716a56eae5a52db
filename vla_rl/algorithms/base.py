"""What all algorithms share: a round is begun with the cache, an update is one gradient step of everything.

Law: an update is a function of (state, seed, step) and of the cache as `begin_round` found it. On a CPU a resumed run
ends in the same weights, bit by bit, as an uninterrupted one.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import torch

from vla_rl.algorithms.actor import ActorConfig, ActorLearner
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.sampling import MixtureSampler, derived_seed, torch_generator
from vla_rl.credit import CreditConfig
from vla_rl.data.cache import FrameCache
from vla_rl.policies.base import BasePolicy
from vla_rl.policies.best_of_n import BestOfN


@dataclass(frozen=True)
class Learning:
    """Options of every algorithm."""

    actor: ActorConfig = field(default_factory=ActorConfig)

    @property
    def trains_policy(self) -> bool:
        """Whether gradients reach the policy itself."""
        return True

    @property
    def chunk_ticks(self) -> int:
        """Actions of a chunk that are judged or corrected as one; 0: single steps."""
        return 0

    def check_steps(self, steps: int, option: str) -> None:
        """Refuse options that a round of so many gradient steps, by that option, is too short for."""


class Algorithm:
    """Imitation of every frame, all at weight 1. Subclasses choose the frames (`cloning.Cloning`: those that credit
    allows, in a mixture), and add critics and weights (`hierarchical.WeightedCloning`).

    An algorithm of one's own names its dataclass of options in ``config_class``, composed of sections of others and of
    its own. It gets its name by `vla_rl.core.registry`.

    Args:
        config: of the algorithm's ``config_class``.
        model: the policy to improve, trained in place.
        cache: the episodes of the first round.
        seed: of everything random.
    """

    name: ClassVar[str]
    config_class: ClassVar[type] = Learning
    requires: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that the policy must provide, and in practice the run, see `vla_rl.core.capabilities`."""
    provides: ClassVar[frozenset[str]] = frozenset()
    """Capabilities for tools that look into a run."""
    keeps_base: ClassVar[bool] = False
    """Whether it improves a frozen base policy, which has a proxy in its place."""
    learns: ClassVar[frozenset[str]] = frozenset()
    """What its critics learn: ``viability``, ``efficiency``, ``outcome``."""

    def __init__(self, config: Learning, model: BasePolicy, cache: FrameCache, seed: int) -> None:
        self.config, self.model, self.seed = config, model, seed
        self.actor = ActorLearner(model, config.actor, seed)
        self._round = self._begun = -1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "critic weights"))
            self.build_critics(cache)

    @classmethod
    def required(cls, learning: Any) -> frozenset[str]:  # noqa: ARG003
        """Return `requires`, and what options of the algorithm add to it."""
        return cls.requires

    @classmethod
    def check_fit(cls, learning: Any, policy: Callable[[], BasePolicy]) -> None:
        """Refuse options of the algorithm that do not fit the policy, by a UserError.

        ``policy`` makes it, perhaps on the meta device (`TrainablePolicy.on_meta_device`): only its shapes count.
        """

    @property
    def discount(self) -> float:
        """Discount per tick of the values in `trace`; 1: they are chances of success."""
        return 1.0

    def build_critics(self, cache: FrameCache) -> None:
        """Make what the algorithm needs beside the actor; nothing here."""

    def begin_round(self, cache: FrameCache, number: int) -> None:
        """Take the episodes in the cache as the training data of the coming updates, those of round ``number``."""
        self.data = self.read(cache)
        if number != self._round:  # after a resume the round is not new
            self._round = number
            self.actor.begin_round()
        self._sampler = self.make_sampler()

    def make_sampler(self) -> MixtureSampler | None:
        """Draws the frames of the actor's batches from those of the round; None if there is nothing to learn from."""
        if not self.data.cache.total_frames:
            return None
        return MixtureSampler({"steps": np.arange(self.data.cache.total_frames)}, {"steps": 1.0}, self.sampler_seed)

    def actor_groups(self) -> dict[str, Frames]:
        """The frames that the actor may draw, by who acted and where."""
        return self.data.actor_groups()

    @property
    def sampler_seed(self) -> int:
        """Of the draws of the actor's batches."""
        return derived_seed(self.seed, "actor batch")

    def begins_round(self) -> bool:
        """Whether the update that asks is the first of its round; True once."""
        begins = self._begun != self._round
        self._begun = self._round
        return begins

    def read(self, cache: FrameCache) -> RoundData:
        """The cache as this algorithm sees it."""
        return RoundData(cache, self.credit, self.model)

    @property
    def credit(self) -> CreditConfig:
        """The credit rule; the default for an algorithm without such a section."""
        found: CreditConfig = getattr(self.config, "credit", CreditConfig())
        return found

    def update(self, step: int) -> dict[str, float]:
        """One gradient step; ``step`` counts from the start of the run. Returns what to log."""
        frames = self.actor_frames(step)
        return self.update_actor(frames, torch.ones(len(frames), device=self.data.device), step)

    def actor_frames(self, step: int) -> Frames:
        """The frames of the actor's batch, int64 [B]; none if there is nothing that the actor may learn from."""
        if self._sampler is None:
            return np.empty(0, dtype=np.int64)
        return self._sampler.sample(step, self.config.actor.batch_size)

    def update_actor(
        self, frames: Frames, weight: torch.Tensor, step: int, indicator: torch.Tensor | None = None
    ) -> dict[str, float]:
        """One gradient step of the actor on weighted frames; ``indicator`` int64 [B] as in `PolicyBatch`."""
        if len(frames) == 0:
            return {"actor_loss": 0.0}
        generator = torch_generator(self.seed, "actor shift", step)
        batch = self.data.policy_batch(frames, generator, indicator)
        return self.actor.update(batch, weight, step)

    def assess(self) -> dict[str, float]:
        """Return what to log once, of all that was learned, before the policy is saved."""
        return {}

    def trace(self, cache: FrameCache, frames: Frames) -> dict[str, np.ndarray]:
        """Values and weights of frames of the present round, for the report. Empty for an algorithm without critics."""
        del cache, frames
        return {}

    def policy(self) -> BasePolicy:
        """The model that should act from now on."""
        return self.actor.policy()

    def selector(self) -> BestOfN | None:
        """What chooses among the draws of that model, or moves them; nothing here."""
        return None

    def adopt(self, policy: BasePolicy, selector: BestOfN | None) -> None:  # noqa: ARG002
        """Go on from the weights of another policy of the same kind; critics and optimizers stay."""
        self.actor.adopt(policy)

    def state_dict(self) -> dict[str, Any]:
        """All that updates depend on beside seed, step and cache."""
        return {"actor": self.actor.state_dict(), "round": self._round, "begun": self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.actor.load_state_dict(state["actor"])
        self._round, self._begun = int(state["round"]), int(state["begun"])
