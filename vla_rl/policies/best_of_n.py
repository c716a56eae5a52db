"""Best-of-N selection: the policy draws N chunks, and a critic of outcomes says which one is executed.

    score_i = mean_m logit Q_m(z, t, a_1:C^i) - c novelty(a_1:C^i),   c = ood_penalty

The critic Q scores the part of a chunk that is executed before the next one (Q-chunking, arXiv 2507.07969). It reads
the policy's own frozen features z, and the chunk as its deviation from the policy's chunk of zero noise. So what
success owes to the state stays with the state, and few episodes suffice to learn what the deviation adds.

Candidates are the policy's draws, moved by a residual if there is one (`vla_rl.policies.residual`), and by one constant
offset each. A good draw that the residual moves once more is where no data are. So the candidates may be moved by a
rising share of the residual, and pay a penalty for being out of distribution. A residual may also act without a critic,
on a single draw. Critic and residual lie in the policy's folder (`vla_rl.policies.checkpoint`).
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.errors import ConfigError
from vla_rl.core.validation import check_ranges
from vla_rl.policies.base import BasePolicy, Inputs, example_row, flat_features
from vla_rl.policies.layers import EnsembleHead, Normalizer, ScaledInputs, scaled
from vla_rl.policies.residual import Residual

# Least scale of a deviation in the out-of-distribution penalty, in normalized action units. A gripper that has always
# moved as usual may move otherwise, at a price.
LEAST_VARIED = 0.05


@dataclass(frozen=True)
class BestOfNConfig:
    """How the candidates are made and scored.

    Attributes:
        num_samples: N candidates; 1 is the policy without selection.
        offset_std: Standard deviation of the constant offset of each candidate but the first, in normalized action
            units.
        graded_residual: Move candidate i of N (from 0) by i / (N - 1) of the residual, a single one by all of it. The
            critic then decides how far to go, and the first one is the policy's own sample. False: all of it for each.
        ood_penalty: Loss of a candidate's logit per squared standard score of its deviation, under the critic's
            training data. Mean over the dimensions of mean and slope.
    """

    num_samples: int = 8
    offset_std: float = 0.15
    graded_residual: bool = False
    ood_penalty: float = 0.0

    def __post_init__(self) -> None:
        check_ranges(self, "best_of_n", num_samples=">= 1", offset_std=">= 0", ood_penalty=">= 0")


@dataclass(frozen=True)
class ChunkCriticConfig:
    """Architecture.

    Attributes:
        chunk_ticks: C, scored actions of a chunk: those that are executed before the next one, so as many as
            ``execution.execute_ticks``. Practice warns where the two differ. Offline it is not known what will act.
        members: M.
        hidden: widths of the hidden layers, each with a LayerNorm.
    """

    chunk_ticks: int = 6
    members: int = 5
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        check_ranges(self, "critic", chunk_ticks=">= 2", members=">= 1", hidden=">= 1")


class ChunkCritic(ScaledInputs):
    """M members Q_m(z, t, a_1:C): the logit of the (discounted) probability that the episode succeeds.

    Args:
        model: the policy whose features and statistics it reads; its weights are no part of the critic.
        config: see `ChunkCriticConfig`.
    """

    def __init__(self, model: BasePolicy, config: ChunkCriticConfig) -> None:
        if config.chunk_ticks > model.horizon:
            raise ConfigError(
                f"critic.chunk_ticks is {config.chunk_ticks}, the policy's chunks have {model.horizon} actions; set "
                f"learning.critic.chunk_ticks to {model.horizon} or less"
            )
        inputs = len(example_row(model)) + 1 + 2 * model.spec.action_dim
        super().__init__(inputs)
        self.config = config
        self.action_normalizer = Normalizer(model.statistics.action, model.statistics.discrete_dims)
        self.head = EnsembleHead(config.members, inputs, config.hidden, 1, normalized=True)

    def rows(self, features: Tensor, tick: Tensor, chunk: Tensor, usual: Tensor) -> Tensor:
        """Return the input rows [..., I] of chunks, raw.

        Args:
            features: [..., F], of `flat_features`.
            tick: [...], ticks since the episode began.
            chunk: [..., C, A], the actions that are executed, raw units.
            usual: [..., C, A], those of the policy's chunk from zero noise.
        """
        deviation = self.action_normalizer.normalize(chunk) - self.action_normalizer.normalize(usual)
        half = self.config.chunk_ticks // 2
        slope = deviation[..., half:, :].mean(-2) - deviation[..., :half, :].mean(-2)
        return torch.cat([features, tick[..., None], deviation.mean(-2), slope], -1)

    def forward(self, rows: Tensor, members: Tensor | None = None) -> Tensor:
        """Logits [K, B] of rows [B, I], by the K members int64 [K]; None: by all."""
        inputs = scaled(rows, self.mean, self.scale)
        return (self.head(inputs) if members is None else self.head(inputs, members))[..., 0]

    def novelty(self, rows: Tensor) -> Tensor:
        """Return how far out of distribution the deviations of rows [..., I] are: the mean of their squared standard
        scores under the training data, [...].
        """
        own = slice(-2 * self.action_normalizer.scale.numel(), None)
        return ((rows[..., own] - self.mean[own]) / self.scale[own].clamp(min=LEAST_VARIED)).square().mean(-1)


class BestOfN:
    """Draws candidates and returns the one with the highest score.

    Args:
        critic: Of the policy; None: the residual acts alone, on a single draw.
        config: see `BestOfNConfig`.
        residual: Moves every candidate before it is scored; None: there is none.
        ticks: C, the executed actions of a chunk; with a critic, those that it scores.

    Raises:
        ConfigError: without a critic, for several draws or offsets, no residual, or no ticks.
    """

    def __init__(
        self, critic: ChunkCritic | None, config: BestOfNConfig, residual: Residual | None = None, ticks: int = 0
    ) -> None:
        if critic is None and (residual is None or ticks < 1 or config.num_samples != 1 or config.offset_std):
            raise ConfigError(
                "without a critic there is nothing to choose; expected a residual, its ticks and one draw"
            )
        self.critic, self.config = None if critic is None else critic.eval(), config
        self.residual = None if residual is None else residual.eval()
        self.ticks = ticks if critic is None else critic.config.chunk_ticks

    @property
    def refines(self) -> bool:
        """Whether the residual may move a chunk later than it was planned. So it may if it moves a single one, and was
        learned off policy, with a critic beside it. On-policy learning knows what was tried from the plan alone.
        """
        has_both = self.residual is not None and self.critic is not None
        return has_both and self.config.num_samples == 1 and self.config.offset_std == 0

    @torch.no_grad()
    def refined(self, features: Tensor, tick: Tensor, chunk: Tensor, done: int) -> Tensor:
        """Move single chunks [B, H, A] by the residual, raw units; they are executed from action ``done`` on.

        Features [B, F] and tick [B] are those of the newest observation.
        """
        assert self.residual is not None
        executed = (torch.arange(self.ticks, device=chunk.device) + done).clamp(max=chunk.shape[1] - 1)
        rows = self.residual.rows(features, tick, chunk.index_select(1, executed))
        return chunk + self.residual.raw(self.residual(rows))[:, None]

    def noise_rows(self, horizon: int) -> int:
        """Rows of noise of one selection: for each candidate those of a draw, then one for its offset."""
        return self.config.num_samples * (horizon + 1)

    @torch.no_grad()
    def draw(self, model: BasePolicy, inputs: Inputs, tick: Tensor, noise: Tensor, committed: Tensor | None) -> Tensor:
        """Return the chosen chunks, [B, H, A], raw units. Arguments as of `weighed`."""
        return best_candidate(*self.weighed(model, inputs, tick, noise, committed))

    @torch.no_grad()
    def weighed(
        self, model: BasePolicy, inputs: Inputs, tick: Tensor, noise: Tensor, committed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return all candidates and their scores, see `judged`.

        Args:
            model: the policy.
            inputs: of B observations.
            tick: float [B].
            noise: [B, `noise_rows`, A].
            committed: [B, d, A] or None: what every candidate begins with.
        """
        done = 0 if committed is None else committed.shape[1]
        free = (torch.arange(model.horizon, device=noise.device) >= done).float()
        seen = model.features(*inputs)
        features = flat_features(*seen)
        every = model.draw_several(*inputs, self.starts(noise), committed, seen)
        return self.judged(model, features, tick, noise, every, free, done)

    @torch.no_grad()
    def starts(self, noise: Tensor) -> Tensor:
        """What chunks are drawn from, [B, 1 + N, H, A]: zero for the usual one, then the candidates' noise. Without a
        critic the usual one is not needed: [B, 1, H, A].

        Args:
            noise: as of `weighed`.
        """
        draws = noise.unflatten(1, (self.config.num_samples, -1))[:, :, :-1]
        return draws if self.critic is None else torch.cat([torch.zeros_like(draws[:, :1]), draws], 1)

    @torch.no_grad()
    def judged(
        self,
        model: BasePolicy,
        features: Tensor,
        tick: Tensor,
        noise: Tensor,
        drawn: Tensor,
        free: Tensor,
        done: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Return the executable candidates [B, N, H, A], raw units, and their scores [B, N]. Scores are 0 without a
        critic, or where fewer actions are left than it scores.

        Args:
            model, tick, noise: as of `weighed`.
            features: [B, F], of `flat_features`.
            drawn: of `starts`.
            free: [H], from 0 to 1, how far an offset may move each action.
            done: how many actions will have been executed before the chunk is used; those after them are scored.
        """
        count, horizon = self.config.num_samples, drawn.shape[2]
        candidates = drawn[:, -count:]
        features = features[:, None].expand(-1, count, -1)
        ticks = tick[:, None].expand(-1, count)
        judged = (torch.arange(self.ticks, device=drawn.device) + done).clamp(max=horizon - 1)
        if self.residual is not None:
            rows = self.residual.rows(features, ticks, candidates.index_select(2, judged))
            share = torch.from_numpy(self._shares()).to(drawn)[:, None]
            candidates = candidates + (share * self.residual.raw(self.residual(rows)))[:, :, None] * free[:, None]
        if self.critic is None:
            return candidates, candidates.new_zeros(candidates.shape[:2])
        offset = noise.unflatten(1, (self.config.num_samples, -1))[:, :, -1:]
        candidates = candidates + self._offsets(self.critic, model, offset) * free[:, None]
        chunk, usual = candidates.index_select(2, judged), drawn[:, :1].index_select(2, judged)
        rows = self.critic.rows(features, ticks, chunk, usual)
        logits = self.critic(rows.flatten(0, 1)).unflatten(1, (-1, count))
        value = logits.mean(0) - self.config.ood_penalty * self.critic.novelty(rows)
        enough = torch.as_tensor(done, device=value.device) <= horizon - self.ticks  # actions are left to judge
        return candidates, value.where(enough, 0.0)

    def _shares(self) -> NDArray[np.float32]:
        """Return how much of the residual moves each of the N candidates, from 0 to 1."""
        count = self.config.num_samples
        if self.config.graded_residual and count > 1:
            return np.linspace(0, 1, count, dtype=np.float32)
        return np.ones(count, np.float32)

    def _offsets(self, critic: ChunkCritic, model: BasePolicy, noise: Tensor) -> Tensor:
        """Return one constant offset of each candidate, [B, N, 1, A], raw units, from noise of that shape. It is 0 for
        the first, and in discrete dimensions.
        """
        moved = torch.ones(noise.shape[1], 1, noise.shape[3], device=noise.device)
        moved[0], moved[..., list(model.statistics.discrete_dims)] = 0, 0
        return self.config.offset_std * critic.action_normalizer.scale * moved * noise


def best_candidate(candidates: Tensor, scores: Tensor) -> Tensor:
    """Return the candidate with the highest score, [B, H, A]. Arguments are what `BestOfN.judged` returns."""
    return candidates[torch.arange(len(scores), device=scores.device), best_index(candidates, scores)]


def best_index(candidates: Tensor, scores: Tensor) -> Tensor:
    """Index of the highest score, [B]; the first one of equals. A candidate or score that is not finite loses to every
    finite one.
    """
    known = scores.where(scores.isfinite(), torch.finfo(scores.dtype).min)
    return known.where(candidates.isfinite().flatten(2).all(-1), -torch.inf).argmax(1)
