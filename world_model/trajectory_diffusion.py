"""A second generator: policy-guided diffusion (arXiv 2404.06356). Whole short trajectories are denoised at once, and at
each step their actions are pushed towards what the policy would do:

    a <- a + lambda_i grad_a log pi(a | s)        lambda_i = c [ (1 - i / n) + .3 sin(pi (i + 1) / n) ]

the last of the n steps is not guided. Such trajectories stay near the data, which a rollout of the policy leaves.

The paper diffuses low-dimensional states. Here a step of a trajectory is a frame's latents, the proprioception, the
action and the success of the action; one transformer over the steps predicts the clean trajectory from a noised one.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from world_model.config import TrajectoryConfig
from world_model.dynamics import WorldBatch
from world_model.model import WorldModel
from world_model.training import ModuleTraining, ModuleTrainingConfig
from world_model.windows import LatentEpisodes

_SEEDS_APART = 1_000_003

type ScoreFunction = Callable[["Trajectories"], Tensor]
"""grad_a log pi(a | s) of trajectories, [B, T, A], in the actions' standard deviations."""


class Trajectories(NamedTuple):
    """B trajectories of T steps: ``latents`` [B, T, N, D], ``state`` [B, T, S] and ``action`` [B, T, A] in raw units,
    and ``success`` [B, T], near 1 where the action ends the task in success.
    """

    latents: Tensor
    state: Tensor
    action: Tensor
    success: Tensor


class TrajectoryDiffusion(nn.Module):
    """Generates trajectories like the data, bent towards a policy.

    Args:
        config: sizes and guidance.
        model: a trained world model: its statistics and its latents are used, its weights are not trained.
    """

    def __init__(self, config: TrajectoryConfig, model: WorldModel) -> None:
        super().__init__()
        self.config, self._world = config, [model]  # in a list: not a submodule
        coder, spec = model.autoencoder, model.spec
        self.sizes = (coder.tokens * coder.token_dim, spec.state_dim, spec.action_dim, 1)
        size = sum(self.sizes)
        self.input = nn.Linear(size, config.width)
        self.time = nn.Sequential(nn.Linear(1, config.width), nn.SiLU(), nn.Linear(config.width, config.width))
        self.place = nn.Parameter(0.02 * torch.randn(config.frames, config.width))
        layer = nn.TransformerEncoderLayer(
            config.width, config.heads, 4 * config.width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, config.layers, enable_nested_tensor=False)
        self.output = nn.Linear(config.width, size)

    def loss(self, batch: WorldBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Squared error of the clean trajectory, over steps that are inside their episode."""
        frames = self.config.frames
        own = Trajectories(
            batch.latents[:, :frames], batch.state[:, :frames], batch.action[:, :frames], batch.success[:, :frames]
        )
        clean = self.flatten(own)
        time = torch.rand(len(clean), 1, 1, generator=generator).to(clean.device)
        noise = torch.randn(clean.shape, generator=generator).to(clean.device)
        error = (self(torch.lerp(noise, clean, time), time) - clean).square()
        parts = [part.mean(-1) for part in error.split(self.sizes, -1)]
        per_step = parts[0] + parts[1] + parts[2] + self.config.success_weight * parts[3]
        inside = batch.inside[:, :frames].float()
        loss = (per_step * inside).sum() / inside.sum().clamp(min=1)
        return loss, {"trajectory_loss": float(loss.detach())}

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        """Flat noised trajectories [B, T, size] at flow times [B, 1, 1] -> flat clean ones."""
        clean: Tensor = self.output(self.encoder(self.input(noisy) + self.place + self.time(time)))
        return clean

    @torch.no_grad()
    def sample(
        self, noise: Tensor, score: ScoreFunction | None = None, start: tuple[Tensor, Tensor] | None = None
    ) -> Trajectories:
        """Denoise trajectories.

        Args:
            noise: [B, T, size], standard normal.
            score: of the policy; None: unguided.
            start: latents [B, N, D] and state [B, S] that trajectories must begin at; None: anywhere.
        """
        point, steps = noise, self.config.denoise_steps
        fixed = None if start is None else self._start(*start)
        for index, weight in enumerate(guidance_schedule(steps, self.config.guidance)):
            time = noise.new_full((len(noise), 1, 1), index / steps)
            clean = self(point, time)
            if fixed is not None:
                clean[:, 0, : fixed.shape[1]] = fixed
            if score is not None and weight:
                first = self.sizes[0] + self.sizes[1]
                push = score(self.unflatten(clean))
                clean[..., first : first + self.sizes[2]] += weight * push
            point = torch.lerp(point, clean, 1.0 / (steps - index))
        return self.unflatten(point)

    def flatten(self, trajectories: Trajectories) -> Tensor:
        """Normalised and flat, [B, T, size]."""
        dynamics = self._world[0].dynamics
        state = (trajectories.state - dynamics.state_mean) / dynamics.state_std
        action = (trajectories.action - dynamics.action_mean) / dynamics.action_std
        success = 2 * trajectories.success[..., None] - 1
        return torch.cat([trajectories.latents.flatten(2), state, action, success], -1)

    def unflatten(self, flat: Tensor) -> Trajectories:
        """The inverse of `flatten`."""
        model = self._world[0]
        dynamics, coder = model.dynamics, model.autoencoder
        latents, state, action, success = flat.split(self.sizes, -1)
        return Trajectories(
            latents.unflatten(2, (coder.tokens, coder.token_dim)),
            state * dynamics.state_std + dynamics.state_mean,
            action * dynamics.action_std + dynamics.action_mean,
            (success[..., 0] + 1) / 2,
        )

    def _start(self, latents: Tensor, state: Tensor) -> Tensor:
        dynamics = self._world[0].dynamics
        return torch.cat([latents.flatten(1), (state - dynamics.state_mean) / dynamics.state_std], -1)


def train_trajectories(
    config: TrajectoryConfig, model: WorldModel, data: LatentEpisodes, folder: Path
) -> TrajectoryDiffusion:
    """Train the generator on real episodes, go on where an earlier call stopped, or read it if it is finished.

    Args:
        config: sizes and training.
        model: whose latents ``data`` holds.
        data: real episodes.
        folder: of its checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    training, seed = model.config.training, model.config.seed
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        generator = TrajectoryDiffusion(config, model)

    def loss(step: int) -> tuple[Tensor, dict[str, float]]:
        batch = data.draw(seed, step, config.batch_size, config.frames, training.ending_share)
        return generator.loss(batch, torch.Generator().manual_seed(seed * _SEEDS_APART + step))

    stage = ModuleTrainingConfig("trajectories", config.steps, config.learning_rate, 0.0, training)
    ModuleTraining(stage, generator, loss, folder).run()
    return generator


def guidance_schedule(steps: int, scale: float) -> Iterator[float]:
    """lambda_i for i = 0 to n - 1; the last is 0."""
    for index in range(steps):
        last = index == steps - 1
        yield 0.0 if last else scale * ((1 - index / steps) + 0.3 * math.sin(math.pi * (index + 1) / steps))
