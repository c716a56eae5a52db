"""Practice without a person and without a world model: a residual trained off policy by temporal differences.

As ResFiT (arXiv 2509.19301), with a decision per chunk. One round has two steps, and then pi + mu acts:

    1. distill   pi imitates demonstrations and its own successes             `ChunkCriticLearner.distill`
    2. improve   Q learns what follows a chunk, and mu moves to where Q rises `ResidualTD.improve`

Step 2 learns from every chunk in the store, of the policy and of people. z are the features of the policy at one
observation, and t is the tick. a_1:C are the C actions of a chunk. After them the policy draws a' at (z', t'):

    y = gamma^C min over two members of Q'(z', t', a' + mu(z', t', a')),   at the end of an episode its outcome
    min over Q of E[cross-entropy(sigmoid(Q(z, t, a_1:C)), y)]
    max over mu of E[mean_m sigmoid(Q_m(z, t, a + mu))] - c E[(mu / sigma)^2],   c = size_cost

So value travels backward from chunk to chunk, and a chunk is worth what it makes possible, not only how its own episode
ended. Q' is a slow copy. sigma is how far the chunks in the data were moved in each dimension of an action. Q knows
nothing about larger offsets, and overrates some. So a residual stays near what practice has tried. The chunk critic
is trained as well. It selects where ``best_of_n.num_samples`` is above 1.
"""

import copy
import logging
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vla_rl.algorithms.actor import polyak_update
from vla_rl.algorithms.chunk_windows import followers
from vla_rl.algorithms.residual_learner import ResidualLearner, ResidualLearning
from vla_rl.algorithms.sampling import derived_seed, torch_generator
from vla_rl.core.errors import ConfigError
from vla_rl.core.progress import track
from vla_rl.core.validation import check_ranges
from vla_rl.policies.base import draw_from_flat, example_row
from vla_rl.policies.best_of_n import BestOfNConfig, ChunkCritic

logger = logging.getLogger(__name__)
_LEARNING_RATE = 3e-4  # of Adam, for Q and mu
_TARGET_RATE = 0.01  # Polyak rate of Q'
_TARGET_STD = 0.1  # of the noise on mu in the target, cut at two of them, as in TD3 (arXiv 1802.09477)
_STEPS_PER_ACTOR_STEP = 2
_CRITIC_FIRST = 0.125  # share of the updates before the first one of mu
_LEAST_VARIED = 0.1  # least scale of a deviation among the inputs of Q, in normalized action units


@dataclass(frozen=True)
class ResidualTDConfig:
    """How a residual is trained.

    Attributes:
        updates: Gradient steps of Q in a round. The residual takes one for every two.
        batch_size: Chunks per gradient step. Half of them are people's, where there are any (RLPD, arXiv 2302.02948).
        size_cost: c, what an offset of one standard deviation of those in the data costs in probability of success.
    """

    updates: int = 4000
    batch_size: int = 256
    size_cost: float = 0.05

    def __post_init__(self) -> None:
        check_ranges(self, "td", updates=">= 1", batch_size=">= 2", size_cost=">= 0")


@dataclass(frozen=True)
class ResidualTDLearning(ResidualLearning):
    """Options of the algorithm."""

    best_of_n: BestOfNConfig = field(
        default_factory=lambda: BestOfNConfig(num_samples=1, offset_std=0.0, graded_residual=True, ood_penalty=1.0)
    )
    td: ResidualTDConfig = field(default_factory=ResidualTDConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.critic.members < 2:
            raise ConfigError("learning.critic.members is 1; a target takes the lower value of two members")


class Chunks(NamedTuple):
    """The N chunks in the data that one actor executed.

    Attributes:
        rows: [N, I], inputs of Q.
        drawn: [N, I], the same with a draw of the policy in the place of what was executed.
        seen: [N, R], inputs of the residual for that draw.
        later: int64 [N], the chunk that the same actor executed next; -1: none.
        outcome: [N], discounted.
        of_people: int64 [K], chunks of demonstrations and interventions.
    """

    rows: Tensor
    drawn: Tensor
    seen: Tensor
    later: Tensor
    outcome: Tensor
    of_people: Tensor


class ResidualTD(ResidualLearner):
    """The algorithm of this module. Step 1 is that of `ChunkCriticLearner.update`."""

    name = "residual_td"
    config_class: ClassVar[type] = ResidualTDLearning
    config: ResidualTDLearning

    def prepare(self) -> dict[str, float]:
        """Run step 2 after the policy was distilled and before the critic learns, if outcomes differ."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(derived_seed(self.seed, "residual td", self._round))
            self.residual = self.new_residual()
            generator = torch_generator(self.seed, "residual td batches", self._round)
            logs = self.improve(self.chunks(generator), generator) if self.outcomes_differ else {}
        if logs:
            logger.info("residual: %s", ", ".join(f"{name} {number:.3f}" for name, number in logs.items()))
        return {f"residual_{name}": number for name, number in logs.items()}

    @torch.no_grad()
    def chunks(self, generator: torch.Generator) -> Chunks:
        """Return every chunk in the data, with one draw of the policy at each."""
        rows, model, ticks = self._inputs, self.model.eval(), self.config.critic.chunk_ticks
        size = len(example_row(model))
        features, tick = rows[:, :size], rows[:, size]
        noise = torch.randn(len(rows), model.horizon, model.spec.action_dim, generator=generator).to(rows)
        usual, drawn = (draw_from_flat(model, features, each)[:, :ticks] for each in (torch.zeros_like(noise), noise))
        return Chunks(
            rows,
            self.critic.rows(features, tick, drawn, usual),
            self.residual.rows(features, tick, drawn),
            self.data.tensor(followers(self.data, self._frames, ticks)),
            self._label,
            torch.from_numpy(np.flatnonzero(self.data.by_people[self._frames])),
        )

    def improve(self, chunks: Chunks, generator: torch.Generator) -> dict[str, float]:
        """Train the residual in place.

        Args:
            chunks: At least one.
            generator: CPU generator of all randomness but the initial weights.

        Returns:
            ``value``: mean of Q in the last batch. ``size``: root mean square of mu there. ``gain``: mean rise of Q by
            the residual.
        """
        residual, config = self.residual, self.config.td
        residual.fit_inputs(chunks.seen)
        critic = self._new_q(chunks.rows)
        slow = copy.deepcopy(critic)
        width = self.model.spec.action_dim
        spread = critic.scale[-2 * width : -width]  # sigma
        optimizers = [torch.optim.Adam(part.parameters(), _LEARNING_RATE, fused=True) for part in (critic, residual)]
        for step in track(range(config.updates), "residual", "update"):
            chosen = self._batch(chunks, generator)
            target = self._targets(slow, chunks, chosen, generator)
            logits = critic(chunks.rows[chosen])
            _step(optimizers[0], F.binary_cross_entropy_with_logits(logits, target.expand_as(logits)))
            polyak_update(slow, critic, _TARGET_RATE)
            if step >= _CRITIC_FIRST * config.updates and step % _STEPS_PER_ACTOR_STEP == 0:
                offset = residual(chunks.seen[chosen])
                value = critic(self._moved(chunks.drawn[chosen], offset)).sigmoid().mean()
                _step(optimizers[1], config.size_cost * (offset / spread).square().mean() - value)
        with torch.no_grad():
            offset, drawn = residual(chunks.seen[chosen]), chunks.drawn[chosen]
            value = critic(self._moved(drawn, offset)).sigmoid().mean()
            gain = value - critic(drawn).sigmoid().mean()
        return {"value": float(value), "size": float(offset.square().mean().sqrt()), "gain": float(gain)}

    def _new_q(self, rows: Tensor) -> ChunkCritic:
        critic = ChunkCritic(self.model, self.config.critic).to(rows.device)
        critic.fit_inputs(rows)
        critic.scale[-2 * self.model.spec.action_dim :].clamp_(min=_LEAST_VARIED)
        return critic

    def _batch(self, chunks: Chunks, generator: torch.Generator) -> Tensor:
        """Draw the chunks of a gradient step, int64 [B]."""
        size, people = self.config.td.batch_size, chunks.of_people
        half = size // 2 if len(people) else 0
        every = torch.randint(len(chunks.rows), (size - half,), generator=generator)
        return torch.cat([people[torch.randint(max(len(people), 1), (half,), generator=generator)], every])

    @torch.no_grad()
    def _targets(self, slow: ChunkCritic, chunks: Chunks, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Return y of chunks [B]."""
        later = chunks.later[chosen]
        mean = self.residual(chunks.seen[later])
        noise = (_TARGET_STD * torch.randn(mean.shape, generator=generator)).clamp(-2 * _TARGET_STD, 2 * _TARGET_STD)
        bound = self.residual.config.bound
        offset = (mean + noise.to(mean) * self.residual.moved).clamp(-bound, bound)
        two = torch.randperm(self.config.critic.members, generator=generator)[:2]
        value = slow(self._moved(chunks.drawn[later], offset), two).sigmoid().amin(0)
        gain = self.config.discount**self.config.critic.chunk_ticks
        return torch.where(later >= 0, gain * value, chunks.outcome[chosen])

    @staticmethod
    def _moved(rows: Tensor, offset: Tensor) -> Tensor:
        """Return inputs of Q whose chunk is moved by offsets [B, A], in normalized action units."""
        rest = rows.shape[1] - 2 * offset.shape[1]
        features, mean, slope = rows.split([rest, offset.shape[1], offset.shape[1]], 1)
        return torch.cat([features, mean + offset, slope], 1)


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    """Descend along the optimizer's own weights; other weights behind the loss cost no gradient."""
    weights = optimizer.param_groups[0]["params"]
    for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
        weight.grad = gradient
    optimizer.step()
