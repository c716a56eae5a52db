"""A policy that thinks twice: it draws several chunks, and a critic of outcomes says which one is executed.

The critic Q(s, a_1:C) judges the part of a chunk that is executed before the next one. It sees the state through the
policy's own frozen features, and the chunk as its deviation from the policy's usual one (drawn from zero noise): what
success has in common with the state is a matter of the state, and few episodes are enough to learn what the deviation
adds. Candidates are the policy's draws, moved by an edit if there is one (`editing`), and by one constant offset each.
A draw that the critic likes already, moved once more by an edit, is where nobody has been: candidates may be edited by
a rising share of the edit, and may lose something for being new.
The idea of best-of-N with a critic over chunks: Q-chunking, arXiv 2507.07969. An edit may also act without a critic:
then the policy draws once, and there is nothing to choose; only then may it be one of the noise.

Critic and edit lie in the folder of the policy that they were trained on (`vla_rl.policies.checkpoint`).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.core.flow_sampling import LEAST_VARIED, edit_shares
from vla_rl.policies.base import example_row, flat_features
from vla_rl.policies.editing import Edit
from vla_rl.policies.layers import EnsembleHead, Normalizer, scaled

if TYPE_CHECKING:
    from vla_rl.policies.base import BasePolicy, Inputs


@dataclass(frozen=True)
class ChoiceConfig:
    """How a critic's policy acts.

    Attributes:
        draws: N candidates; 1 is the policy as it is.
        offset: standard deviation of the candidates' constant offsets, in normalised action units; the first one has
            none.
        graded_edit: of N candidates the i-th (from 0) is moved by i / (N - 1) of the edit, so that the critic says how
            far to go and the first one is the policy's own; a single one by all of it. False: every one by all of it.
        novelty_cost: what the logit of a candidate loses for each variance by which its deviation differs from those
            that the critic has learnt from (mean of the squared standard scores of mean and slope, over dimensions).
    """

    draws: int = 8
    offset: float = 0.15
    graded_edit: bool = False
    novelty_cost: float = 0.0

    def __post_init__(self) -> None:
        if self.draws < 1 or not all(number >= 0 for number in (self.offset, self.novelty_cost)):
            raise ConfigError(
                "choice: expected draws >= 1, offset and novelty_cost >= 0, found "
                f"{self.draws}, {self.offset} and {self.novelty_cost}"
            )


@dataclass(frozen=True)
class ChunkCriticConfig:
    """Architecture.

    Attributes:
        chunk_ticks: C, how many actions of a chunk are judged: those that are executed before the next chunk, as many
            as ``execution.execute_ticks``. Practice warns where the two differ; offline nobody knows what will act.
        members: M.
        hidden: widths of the hidden layers, each with a LayerNorm.
    """

    chunk_ticks: int = 6
    members: int = 5
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        if self.chunk_ticks < 2 or self.members < 1 or not self.hidden:
            raise ConfigError(
                "critic: expected chunk_ticks of at least 2, at least one member and one hidden layer, found "
                f"{self.chunk_ticks}, {self.members} and {self.hidden}"
            )


class ChunkCritic(nn.Module):
    """M members Q_i(s, a_1:C): the logit of the chance that the episode succeeds.

    Args:
        model: the policy whose features and statistics it reads; its weights are no part of the critic.
        config: see `ChunkCriticConfig`.

    Attributes:
        mean, scale: of the input rows, [I]; set by whoever trains it.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, model: "BasePolicy", config: ChunkCriticConfig) -> None:
        super().__init__()
        if config.chunk_ticks > model.horizon:
            raise ConfigError(
                f"critic.chunk_ticks is {config.chunk_ticks}, the policy's chunks have {model.horizon} actions; set "
                f"learning.critic.chunk_ticks to {model.horizon} or less"
            )
        self.config = config
        self.action_normalizer = Normalizer(model.statistics.action, model.statistics.discrete_dims)
        inputs = len(example_row(model)) + 1 + 2 * model.spec.action_dim
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        self.head = EnsembleHead(config.members, inputs, config.hidden, 1, normalised=True)

    def rows(self, features: Tensor, tick: Tensor, chunk: Tensor, usual: Tensor) -> Tensor:
        """The input rows [..., I] of chunks, raw.

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

    def forward(self, rows: Tensor) -> Tensor:
        """Logits [M, B] of rows [B, I]."""
        return self.head(scaled(rows, self.mean, self.scale))[..., 0]

    def novelty(self, rows: Tensor) -> Tensor:
        """How far the deviations of rows [..., I] are from those that it has learnt from: the mean of their squared
        standard scores, [...].
        """
        own = slice(-2 * self.action_normalizer.scale.numel(), None)
        return ((rows[..., own] - self.mean[own]) / self.scale[own].clamp(min=LEAST_VARIED)).square().mean(-1)


class Chooser:
    """Draws candidates and returns the one that the critic thinks most of.

    Args:
        critic: of the policy that is asked; None: the edit alone acts, on a single draw.
        config: see `ChoiceConfig`.
        edit: moves every candidate before it is judged; None: nothing does.
        ticks: C, the actions of a chunk that are executed before the next one; with a critic, those that it judges.

    Raises:
        ConfigError: without a critic, for several draws or offsets, no edit, or no ticks.
    """

    def __init__(
        self, critic: ChunkCritic | None, config: ChoiceConfig, edit: Edit | None = None, ticks: int = 0
    ) -> None:
        if critic is None and (edit is None or ticks < 1 or config.draws != 1 or config.offset):
            raise ConfigError("without a critic there is nothing to choose: expected an edit, its ticks and one draw")
        self.critic, self.config = None if critic is None else critic.eval(), config
        self.edit = None if edit is None else edit.eval()
        self.ticks = ticks if critic is None else critic.config.chunk_ticks

    def noise_rows(self, horizon: int) -> int:
        """Rows of noise of one choice: of every candidate those of a draw, then one for its offset."""
        return self.config.draws * (horizon + 1)

    @torch.no_grad()
    def draw(
        self, model: "BasePolicy", inputs: "Inputs", tick: Tensor, noise: Tensor, committed: Tensor | None
    ) -> Tensor:
        """The chosen chunks, [B, H, A], raw units. Arguments as of `weighed`."""
        return best(*self.weighed(model, inputs, tick, noise, committed))

    @torch.no_grad()
    def weighed(
        self, model: "BasePolicy", inputs: "Inputs", tick: Tensor, noise: Tensor, committed: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """All candidates and what is thought of each, see `judged`.

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
        critic nobody asks for the usual one: [B, 1, H, A].

        Args:
            noise: as of `weighed`.
        """
        draws = noise.unflatten(1, (self.config.draws, -1))[:, :, :-1]
        return draws if self.critic is None else torch.cat([torch.zeros_like(draws[:, :1]), draws], 1)

    @torch.no_grad()
    def judged(
        self,
        model: "BasePolicy",
        features: Tensor,
        tick: Tensor,
        noise: Tensor,
        drawn: Tensor,
        free: Tensor,
        done: int | Tensor,
    ) -> tuple[Tensor, Tensor]:
        """The candidates as they would be executed, [B, N, H, A], raw units, and what the critic thinks of each,
        [B, N], less what novelty takes: 0 of all without a critic, or where fewer actions are left than are
        judged.

        Args:
            model, tick, noise: as of `weighed`.
            features: [B, F], of `flat_features`.
            drawn: of `starts`.
            free: [H], from 0 to 1, how far an offset may move each action.
            done: how many actions will have been executed before the chunk is used; those after them are judged.
        """
        count, horizon = self.config.draws, drawn.shape[2]
        candidates = drawn[:, -count:]
        features = features[:, None].expand(-1, count, -1)
        ticks = tick[:, None].expand(-1, count)
        judged = (torch.arange(self.ticks, device=drawn.device) + done).clamp(max=horizon - 1)
        if self.edit is not None:
            rows = self.edit.rows(features, ticks, candidates.index_select(2, judged))
            share = torch.from_numpy(edit_shares(count, self.config.graded_edit)).to(drawn)[:, None]
            candidates = candidates + (share * self.edit.raw(self.edit(rows)))[:, :, None] * free[:, None]
        if self.critic is None:
            return candidates, candidates.new_zeros(candidates.shape[:2])
        offset = noise.unflatten(1, (self.config.draws, -1))[:, :, -1:]
        candidates = candidates + self._offsets(self.critic, model, offset) * free[:, None]
        chunk, usual = candidates.index_select(2, judged), drawn[:, :1].index_select(2, judged)
        rows = self.critic.rows(features, ticks, chunk, usual)
        logits = self.critic(rows.flatten(0, 1)).unflatten(1, (-1, count))
        value = logits.mean(0) - self.config.novelty_cost * self.critic.novelty(rows)
        enough = torch.as_tensor(done, device=value.device) <= horizon - self.ticks  # actions are left to judge
        return candidates, value.where(enough, 0.0)

    def _offsets(self, critic: ChunkCritic, model: "BasePolicy", noise: Tensor) -> Tensor:
        """One constant offset of each candidate, [B, N, 1, A], raw units, of noise of that shape: none for the first,
        nor in discrete dimensions.
        """
        moved = torch.ones(noise.shape[1], 1, noise.shape[3], device=noise.device)
        moved[0], moved[..., list(model.statistics.discrete_dims)] = 0, 0
        return self.config.offset * critic.action_normalizer.scale * moved * noise


def best(candidates: Tensor, value: Tensor) -> Tensor:
    """The candidate that is thought most of, [B, H, A], see `choice`. Arguments are what `Chooser.judged` returns."""
    return candidates[torch.arange(len(value), device=value.device), choice(candidates, value)]


def choice(candidates: Tensor, value: Tensor) -> Tensor:
    """Which candidate is thought most of, [B]; the first of those that are alike. One that is not finite is never
    chosen while another is, nor one whose value is not.
    """
    known = value.where(value.isfinite(), torch.finfo(value.dtype).min)
    return known.where(candidates.isfinite().flatten(2).all(-1), -torch.inf).argmax(1)
