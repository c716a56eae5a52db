"""What all algorithms share: a round is begun with the cache, an update is one gradient step of everything.

Law: an update is a function of (state, seed, step) and of the cache as `begin_round` found it. On a CPU a resumed run
ends in the same weights, bit by bit, as an uninterrupted one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from vla_rl.algorithms.actor import ActorLearner
from vla_rl.algorithms.config import Learning
from vla_rl.algorithms.round_data import Frames, RoundData
from vla_rl.algorithms.seeds import derived_seed, torch_generator
from vla_rl.core.capabilities import OF_RUNS, alternatives, require
from vla_rl.core.errors import ConfigError
from vla_rl.core.registry import find
from vla_rl.credit import CreditConfig
from vla_rl.data.sampler import MixtureSampler
from vla_rl.policies.checkpoint import check_spec
from vla_rl.policies.trainable import TrainablePolicy

if TYPE_CHECKING:
    from vla_rl.critics.backbones import Backbone
    from vla_rl.data.cache import FrameCache


class Algorithm:
    """Imitation of every frame, all at weight 1. Subclasses choose the frames (`cloning.Cloning`: those that credit
    allows, in a mixture), and add critics and weights (`weighted.WeightedCloning`).

    An algorithm of one's own names its dataclass of options in ``config_class``, composed of the sections in
    `vla_rl.algorithms.config` and of sections of its own; see `vla_rl.core.registry` for how it gets a name.

    Args:
        config: of the algorithm's ``config_class``.
        model: the policy to improve, trained in place.
        cache: the episodes of the first round.
        seed: of everything random.
        backbone: of the critics; default: as ``config.critic.backbone`` says. See `vla_rl.critics.backbones`.
    """

    name: ClassVar[str]
    config_class: ClassVar[type] = Learning
    requires: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that the policy must provide, and in practice the run, see `vla_rl.core.capabilities`."""
    provides: ClassVar[frozenset[str]] = frozenset()
    """Capabilities for tools that look into a run."""
    learns: ClassVar[frozenset[str]] = frozenset()
    """What its critics learn: ``viability``, ``efficiency``, ``outcome``."""

    def __init__(
        self,
        config: Learning,
        model: TrainablePolicy,
        cache: "FrameCache",
        seed: int,
        backbone: "Backbone | None" = None,
    ) -> None:
        self.config, self.model, self.seed = config, model, seed
        self.actor = ActorLearner(model, config.actor, seed)
        self._round = self._begun = -1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(seed, "critic weights"))
            self.build_critics(cache, backbone)

    @classmethod
    def required(cls, learning: Any) -> frozenset[str]:  # noqa: ARG003
        """Return `requires`, and what options of the algorithm add to it."""
        return cls.requires

    @classmethod
    def check_fit(cls, learning: Any, policy: Callable[[], TrainablePolicy]) -> None:
        """Refuse options that do not fit the policy.

        Args:
            learning: the algorithm's own options.
            policy: makes it, laid out or whole (see `TrainablePolicy.laid_out`): only its shapes may be looked at.

        Raises:
            UserError: in that case.
        """

    @property
    def discount(self) -> float:
        """Discount per tick of the values in `trace`; 1: they are chances of success."""
        return 1.0

    def build_critics(self, cache: "FrameCache", backbone: "Backbone | None") -> None:
        """Make what the algorithm needs beside the actor; nothing here."""

    def begin_round(self, cache: "FrameCache", number: int) -> None:
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

    def read(self, cache: "FrameCache") -> RoundData:
        """The cache as this algorithm sees it."""
        return RoundData(cache, self.credit, self.model)

    @property
    def credit(self) -> CreditConfig:
        """The rule of who may teach what; the default for an algorithm that has no such section."""
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
        return self._sampler.sample(step, self.config.actor.batch_size)[0]

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
        """Return what to log once, of all that was learnt, before the policy is saved."""
        return {}

    def trace(self, cache: "FrameCache", frames: Frames) -> dict[str, np.ndarray]:
        """Values and weights of frames of the present round, for the report. Empty for an algorithm without critics."""
        del cache, frames
        return {}

    def policy(self) -> TrainablePolicy:
        """The model that should act."""
        return self.actor.policy()

    def save_policy(self, folder: Path, version: int) -> None:
        """Write the policy that should act from now on; a critic or an edit of its own lies in the folder before."""
        self.policy().save(folder, {"policy_version": version, "algorithm": self.name})

    def adopt_policy(self, folder: Path) -> None:
        """Go on from the weights of another policy of the same kind; critics and optimisers stay."""
        found, _ = type(self.model).load(folder)
        check_spec(folder, found.spec, self.model.spec)
        self.actor.adopt(found)

    def state_dict(self) -> dict[str, Any]:
        """All that updates depend on beside seed, step and cache."""
        return {"actor": self.actor.state_dict(), "round": self._round, "begun": self._begun}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state_dict`."""
        self.actor.load_state_dict(state["actor"])
        self._round, self._begun = int(state["round"]), int(state["begun"])


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of an algorithm.

    Raises:
        ConfigError: for an unknown name, or a class that does not say what it is called.
    """
    found: type[Algorithm] = find("algorithms", name)
    if not getattr(found, "name", ""):
        raise ConfigError(
            f"the algorithm {name!r} has no class attribute 'name'; give it one, for reports and policies"
        )
    return found


def require_of_policy(name: str, learning: Any, provides: frozenset[str]) -> None:
    """Refuse a policy that does not provide what the algorithm requires of it, wherever its data come from.

    Raises:
        ConfigError: In that case.
    """
    requires = find_algorithm(name).required(learning) - OF_RUNS
    require(f"algorithm={name}", requires, provides | OF_RUNS, alternatives("algorithms", "algorithm"))


def make_algorithm(
    name: str,
    config: Learning,
    model: TrainablePolicy,
    cache: "FrameCache",
    seed: int,
    backbone: "Backbone | None" = None,
) -> Algorithm:
    """An algorithm by name; arguments as of `Algorithm`. Call `begin_round` before the first `update`.

    Raises:
        ConfigError: for an unknown name, another algorithm's config, or a policy that lacks what the algorithm needs.
    """
    algorithm = find_algorithm(name)
    if not isinstance(config, algorithm.config_class):
        raise ConfigError(
            f"the algorithm {name!r} takes a {algorithm.config_class.__name__}, found a {type(config).__name__}"
        )
    require_of_policy(name, config, model.capabilities)
    algorithm.check_fit(config, lambda: model)
    return algorithm(config, model, cache, seed, backbone)
