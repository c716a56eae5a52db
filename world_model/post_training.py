"""Reinforcement-learning post-training of the world model on its own rollouts (arXiv 2603.25685).

From a history that the model generated itself, K futures are sampled for each of several real episodes; each is scored
against what really happened, relative to its group, and the flow head learns from its good and bad draws alike (the
negative-aware fine-tuning objective, NFT):

    v+ = beta v_theta + (1 - beta) v_old          v- = (1 + beta) v_old - beta v_theta
    r = clip(A / (2 A_max) + 1/2, 0, 1)
    L = A_max / beta [ r |x(v+) - x0|^2 / w+ + (1 - r) |x(v-) - x0|^2 / w- ] + lambda |v_theta - v_ref|^2
    w+- = mean |x(v+-) - x0|, without gradient

Our flow head predicts the clean end x directly, which is affine in v, so v may be read as x everywhere. What the paper
leaves open is chosen here: a clip's score is the negative mean squared distance of its latents from the real ones, plus
that of its proprioception, averaged over the clip (LPIPS needs weights that are not at hand, and PSNR and SSIM of a
small picture say little); the length of the generated history, which a group shares, is uniform between 0 and
``history_max``, and generated as the model generates; every frame of a clip gets the clip's advantage, and one flow
time is drawn for each frame. Clips are sampled with noise even where the model acts by the flow's mode
(``dynamics.sampling_noise`` 0). Only the flow head and low-rank corrections of the transformer's linear layers learn
(``adapter_rank`` 0: flow head only).
"""

import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from world_model.dynamics import Dynamics, WorldBatch
from world_model.model import WorldModel
from world_model.training import keyed_generator
from world_model.windows import LatentEpisodes


@dataclass(frozen=True)
class PostTrainingConfig:
    """Options of the post-training.

    Attributes:
        groups: real windows of a step.
        samples: K futures of each.
        history_max: longest self-generated history, frames.
        clip: frames of a future.
        beta: of the objective.
        advantage_max: A_max; advantages are normalised in the group and clipped to it.
        reference_weight: lambda.
        old_decay: of the average that v_old is.
        learning_rate: of AdamW.
        adapter_rank: of the low-rank corrections of the transformer.
        state_weight: of proprioception in a clip's score.
    """

    groups: int = 4
    samples: int = 16
    history_max: int = 8
    clip: int = 4
    beta: float = 0.5
    advantage_max: float = 2.0
    reference_weight: float = 1e-2
    old_decay: float = 0.9
    learning_rate: float = 1e-4
    adapter_rank: int = 4
    state_weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.beta <= 1 or not self.advantage_max > 0:
            raise ConfigError("post-training: expected 0 < beta <= 1 and advantage_max > 0")
        if self.samples < 2 or self.clip < 1 or self.history_max < 0:
            raise ConfigError("post-training: expected at least 2 samples, a clip of 1 frame and no negative history")


class LowRank(nn.Module):
    """A frozen linear layer with a trained correction of low rank, zero at first (LoRA, arXiv 2106.09685)."""

    def __init__(self, linear: nn.Linear, rank: int) -> None:
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x) + self.up(self.down(x))
        return out

    @torch.no_grad()
    def merged(self) -> nn.Linear:
        """The plain layer with the correction added to its weights."""
        self.linear.weight += self.up.weight @ self.down.weight
        return self.linear.requires_grad_(True)


def nft_loss(
    predicted: Tensor, old: Tensor, reference: Tensor, clean: Tensor, optimality: Tensor, config: PostTrainingConfig
) -> Tensor:
    """The objective for noised frames; the flow head predicts the clean end directly, see the module.

    Args:
        predicted: x(v_theta), [M, ...], with a graph.
        old: x(v_old), the same shape, as are the next two.
        reference: x(v_ref).
        clean: the self-generated clean frames, x0.
        optimality: r, [M], 1 for the best draws.
    """
    dims = tuple(range(1, clean.ndim))
    positive = config.beta * predicted + (1 - config.beta) * old
    negative = (1 + config.beta) * old - config.beta * predicted

    def scaled(end: Tensor) -> Tensor:
        error = end - clean
        return error.square().mean(dims) / error.detach().abs().mean(dims).clamp(min=1e-6)

    gain = optimality * scaled(positive) + (1 - optimality) * scaled(negative)
    drift = (predicted - reference).square().mean(dims)
    return (config.advantage_max / config.beta * gain + config.reference_weight * drift).mean()


def optimalities(scores: Tensor, config: PostTrainingConfig) -> Tensor:
    """r of each sample: scores [groups, K] normalised in their group -> [groups, K] in [0, 1]; 1/2 in a group whose
    samples differ by no more than rounding.
    """
    rounding = 1e-5 * scores.abs().mean(1, keepdim=True) + 1e-12
    spread = scores.std(1, keepdim=True, correction=0).clamp(min=rounding)
    advantage = ((scores - scores.mean(1, keepdim=True)) / spread).clamp(-config.advantage_max, config.advantage_max)
    return (advantage / (2 * config.advantage_max) + 0.5).clamp(0, 1)


class PostTrainer:
    """Post-trains a world model in place; call `finish` at the end.

    Args:
        model: in eval mode.
        data: real episodes.
        config: see `PostTrainingConfig`.
        seed: of windows and noise.
    """

    def __init__(self, model: WorldModel, data: LatentEpisodes, config: PostTrainingConfig, seed: int = 0) -> None:
        self.model, self.data, self.config, self._seed = model, data, config, seed
        dynamics = model.dynamics.requires_grad_(False)
        dynamics.flow.requires_grad_(True)
        if config.adapter_rank:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                for block in dynamics.transformer.blocks:
                    for name in ("project", "output"):
                        setattr(block, name, LowRank(getattr(block, name), config.adapter_rank))
        self._trained = [parameter for parameter in dynamics.parameters() if parameter.requires_grad]
        self._reference = copy.deepcopy(dynamics).requires_grad_(False)
        self._old = copy.deepcopy(dynamics).requires_grad_(False)
        self._old.config = replace(dynamics.config, sampling_noise=1.0)  # futures must differ to be compared
        self._optimizer = torch.optim.AdamW(self._trained, config.learning_rate, weight_decay=0.0)

    def update(self, step: int) -> dict[str, float]:
        """One gradient step on fresh groups."""
        config = self.config
        generator = keyed_generator(self._seed, step)
        batch, first = self._windows(step, generator)
        latents, state, clean, scores = self._futures(batch, first, generator)
        optimality = optimalities(scores.view(config.groups, config.samples), config).flatten()
        time = torch.rand(clean.shape[:2], generator=generator).to(clean.device)
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        noisy = torch.lerp(noise, clean, time[..., None, None])

        def ends(dynamics: Dynamics) -> Tensor:
            hidden, condition = dynamics.hidden(
                dynamics.context(batch, latents, state), batch.anchor_latents, batch.anchor_state
            )
            return dynamics.clean_end(noisy, time, hidden, condition)

        predicted = ends(self.model.dynamics)
        with torch.no_grad():
            old, reference = ends(self._old), ends(self._reference)
        frame = torch.arange(clean.shape[1], device=clean.device)
        inside = (frame >= first[:, None]) & (frame < first[:, None] + config.clip) & batch.has_next
        weight = optimality[:, None].expand(inside.shape)[inside]
        loss = nft_loss(predicted[inside], old[inside], reference[inside], clean[inside], weight, config)
        self._optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._trained, 1.0)
        self._optimizer.step()
        with torch.no_grad():
            pairs = zip(self._old.parameters(), self.model.dynamics.parameters(), strict=True)
            for ours, theirs in pairs:
                ours.lerp_(theirs, 1 - config.old_decay)
        return {"nft_loss": float(loss.detach()), "clip_score": float(scores.mean())}

    def finish(self) -> None:
        """Merge the low-rank corrections into the weights and make everything trainable again."""
        for block in self.model.dynamics.transformer.blocks:
            for name in ("project", "output"):
                layer: Any = getattr(block, name)
                if isinstance(layer, LowRank):
                    setattr(block, name, layer.merged())
        self.model.dynamics.requires_grad_(True).eval()

    def _windows(self, step: int, generator: torch.Generator) -> tuple[WorldBatch, Tensor]:
        """Windows repeated K times each, and the frame at which each clip begins, int64 [groups K]."""
        config = self.config
        frames = 1 + config.history_max + config.clip
        batch = self.data.draw(self._seed, step, config.groups, frames)
        history = torch.randint(0, config.history_max + 1, (config.groups,), generator=generator)
        columns = (getattr(batch, name).repeat_interleave(config.samples, 0) for name in batch.__dataclass_fields__)
        device = self.model.device
        repeated = WorldBatch(*(column.to(device) for column in columns))
        return repeated, (1 + history).repeat_interleave(config.samples).to(device)

    @torch.no_grad()
    def _futures(
        self, batch: WorldBatch, first: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Imagine histories and clips with the old model. A group shares its history, so that a clip is judged by
        itself.

        Returns:
            context latents [B, T, N, D] and state [B, T, S], generated from frame 1 on; the generated clean ends of the
            flow [B, T, N, D]; and the clips' scores [B].
        """
        dynamics, config = self._old, self.config
        frames = batch.action.shape[1]
        own_noise = self.model.dynamics.config.sampling_noise  # a history is what the model will meet
        now, state = batch.latents[:, 0], batch.state[:, 0]
        memory = dynamics.begin(batch.anchor_latents, batch.anchor_state)
        latent_rows, state_rows, ends, distances = [], [], [], []
        for frame in range(frames):
            latent_rows.append(now)
            state_rows.append(state)
            noise = torch.randn(now.shape, generator=generator).to(now.device)
            shared = noise[:: config.samples].repeat_interleave(config.samples, 0)
            noise = torch.where((frame < first)[:, None, None], shared * own_noise, noise)
            step = dynamics.step(memory, now, state, batch.action[:, frame], noise)
            ends.append(dynamics.to_flow(step.latents[:, None], now[:, None])[:, 0])
            off = (step.latents - batch.latents[:, frame + 1]) / dynamics.latent_change_std
            off_state = (step.state - batch.state[:, frame + 1]) / dynamics.state_change_std
            distances.append(off.square().mean((1, 2)) + config.state_weight * off_state.square().mean(1))
            now, state = step.latents, step.state
        index = torch.arange(frames, device=first.device)
        inside = (index >= first[:, None]) & (index < first[:, None] + config.clip) & batch.has_next
        distance = (torch.stack(distances, 1) * inside).sum(1) / inside.sum(1).clamp(min=1)
        return torch.stack(latent_rows, 1), torch.stack(state_rows, 1), torch.stack(ends, 1), -distance
