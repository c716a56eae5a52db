"""Open-loop imagination: from a moment of a real episode on, given actions, without ever looking at reality again."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from world_model.model import WorldModel
from world_model.transformer import Memory
from world_model.windows import LatentEpisodes

_SAMPLER = 0x776D  # apart from the policy's noise of the same seed and tick


@dataclass(frozen=True)
class Imagined:
    """B imagined futures of H steps, after each action: latents [B, H, N, D] and state [B, H, S] in raw units.

    ``success`` [B, H] is the probability that the action ended the task in success.
    """

    latents: Tensor
    state: Tensor
    success: Tensor


@torch.no_grad()
def imagine(
    model: WorldModel,
    data: LatentEpisodes,
    episode: Tensor,
    first: Tensor,
    actions: Tensor,
    seed: int = 0,
) -> Imagined:
    """Imagine what follows when the actions are sent from step ``first`` of the episodes on, by a model in eval mode.

    Args:
        data: Real episodes.
        episode, first: int64 [B], which ones, and the step at which the first action is sent.
        actions: [B, H, A], raw units.
        seed: Of the sampler's noise.
    """
    dynamics, device, start = model.dynamics, model.device, data.start[episode]
    memory = _relive(model, data, episode, first)
    latents, state = data.latents[start + first].to(device), data.state[start + first].to(device)
    rows, seeds = [], seed + np.arange(len(episode))
    for index in range(actions.shape[1]):
        noise = sampler_noise(seeds, np.full(len(seeds), index), *latents.shape[1:]).to(device)
        step = dynamics.step(memory, latents, state, actions[:, index].to(device), noise)
        latents, state = step.latents, step.state
        rows.append((latents.cpu(), state.cpu(), step.outcome.success_logit.sigmoid().cpu()))
    return Imagined(*(torch.stack(column, 1) for column in zip(*rows, strict=True)))


def _relive(model: WorldModel, data: LatentEpisodes, episode: Tensor, first: Tensor) -> Memory:
    """Return the memory of streams that have lived through real episodes int64 [B] up to, and without, step ``first``
    [B]. Frames further back than the memory reaches are skipped.
    """
    dynamics, device, config = model.dynamics, model.device, model.config.dynamics
    frames = min(config.window + config.memory_frames, int(first.max()))
    start = data.start[episode]
    memory = dynamics.begin(data.latents[start].to(device), data.state[start].to(device))
    for back in range(frames, 0, -1):
        step = first - back
        frame = start + step.clamp(min=0)
        inputs = (data.latents[frame], data.state[frame], data.action[frame])
        dynamics.push(memory, *(column.to(device) for column in inputs))
        memory.age[(step < 0).to(device)] = 0  # an episode that is not that old has not begun yet
    return memory


def sampler_noise(seeds: NDArray[np.int64], ticks: NDArray[np.int64], tokens: int, token_dim: int) -> Tensor:
    """Standard normal noise [B, N, D], a function of each stream's seed and tick, int64 [B] each: an episode replays
    exactly, whatever runs beside it.
    """
    draws = [
        np.random.Generator(
            np.random.Philox(key=[int(seed) % 2**64, int(tick)], counter=[0, 0, 0, _SAMPLER])
        ).standard_normal((tokens, token_dim), dtype=np.float32)
        for seed, tick in zip(seeds, ticks, strict=True)
    ]
    return torch.from_numpy(np.stack(draws))
