"""What the algorithms share that train a residual between self-imitation and the chunk critic."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from vla_rl.algorithms.actor import ActorConfig
from vla_rl.algorithms.chunk_critic import ChunkCriticLearner, ChunkCriticLearning
from vla_rl.algorithms.sampling import derived_seed
from vla_rl.core.errors import ConfigError
from vla_rl.data.cache import FrameCache
from vla_rl.policies.base import BasePolicy, draw_from_flat, example_row
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig
from vla_rl.policies.residual import Residual


@dataclass(frozen=True)
class ResidualLearning(ChunkCriticLearning):
    """Options of these algorithms.

    Candidate i of N is moved by i / (N - 1) of the residual, and unfamiliar chunks lose score. Full residuals on all
    candidates explore more, and may do far worse where people take over (docs/people.md).
    """

    actor: ActorConfig = field(
        default_factory=lambda: ActorConfig(
            batch_size=128, warmup_steps=50, decay_steps=400, schedule_every_round=True, precision="auto"
        )
    )
    distill_steps: int = 400
    best_of_n: BestOfNConfig = field(
        default_factory=lambda: BestOfNConfig(offset_std=0.0, graded_residual=True, ood_penalty=1.0)
    )


class ResidualLearner(ChunkCriticLearner):
    """A `ChunkCriticLearner` with a residual, which a subclass trains in `prepare`."""

    config: ResidualLearning
    requires: ClassVar[frozenset[str]] = frozenset({"features", "several_draws", "acts_from_features"})
    residual: Residual

    @classmethod
    def check_fit(cls, learning: ChunkCriticLearning, policy: Callable[[], BasePolicy]) -> None:
        super().check_fit(learning, policy)
        model = policy()
        seen = example_row(model)[None]
        drawn = draw_from_flat(model, seen, seen.new_zeros(1, model.horizon, model.spec.action_dim))
        if drawn.shape[1] < learning.critic.chunk_ticks:
            raise ConfigError(
                f"learning.critic.chunk_ticks is {learning.critic.chunk_ticks}, the proxy plans {drawn.shape[1]} "
                "actions; set a larger policy.net.horizon"
            )

    def build_critics(self, cache: FrameCache) -> None:
        super().build_critics(cache)
        self.residual = self.new_residual()

    def new_residual(self) -> Residual:
        """Return a residual that is zero."""
        return Residual(self.model).to(self.critic.mean.device)

    def adopt(self, policy: BasePolicy, selector: BestOfN | None) -> None:
        """Go on from another policy and its residual, which stays where none is trained."""
        super().adopt(policy, selector)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "adopted edit"))
            self.residual = (selector and selector.residual) or self.new_residual()

    def state_dict(self) -> dict[str, Any]:
        return super().state_dict() | {"edit": self.residual.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self.residual.load_state_dict(state["edit"])
