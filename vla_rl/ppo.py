"""Proximal policy optimisation of an edit (arXiv 1707.06347): the same update for real episodes and imagined branches.

What is tried of a chunk is one offset a ~ N(mu(s), sigma^2) of few dimensions, and its log-probability is their *sum*:
averaged over all numbers of a chunk the ratio would stay near 1 whatever the update does, and clipping would never act.

    L = - mean of min(rho A, clip(rho, 1 - c, 1 + c) A) + d KL(N(mu, sigma^2) | N(0, sigma^2)),   rho = p(a) / p_old(a)

Torch; knows nobody but core, so that algorithms and world models share it.
"""

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

LEARNING_RATE = 3e-4  # of Adam
EPOCHS, BATCH_SIZE = 8, 256  # over what was tried; chunks per gradient step
CLIP = 0.2  # c, of the ratio
CARRY = 0.95  # lambda of the advantages, from chunk to chunk


class Tried(NamedTuple):
    """K chunks that were executed.

    Attributes:
        rows: [K, I], the edit's inputs.
        offset: [K, A], what was tried, in normalised action units.
        mean: [K, A], what the edit proposed.
        advantage: [K].
    """

    rows: Tensor
    offset: Tensor
    mean: Tensor
    advantage: Tensor


class Trainable(Protocol):
    """What is improved: see `vla_rl.policies.editing.Edit`."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """Its weights."""

    def __call__(self, rows: Tensor) -> Tensor:
        """Means [K, A] of rows [K, I]."""


def update(
    edit: Trainable,
    optimizer: torch.optim.Optimizer,
    tried: Tried,
    spread: float,
    generator: torch.Generator,
    distance_cost: float = 0.0,
    largest_divergence: float = 0.0,
) -> dict[str, float]:
    """All epochs on what was tried; the advantages are normalised here.

    Args:
        edit: trained in place.
        optimizer: of its weights.
        tried: at least one chunk, with the edit as it is.
        spread: sigma.
        generator: of the CPU, of the batches.
        distance_cost: d, weight of the divergence from no edit, in nats a chunk.
        largest_divergence: no further epoch begins once the edit has moved so far from the one that acted, in nats a
            chunk; 0: no bound.

    Returns:
        ``divergence``, the true one of the edit that acted from what it is now, in nats a chunk; ``clipped``, the share
        of chunks whose ratio has left the clip's range; ``epochs`` that were taken.
    """
    advantage = tried.advantage - tried.advantage.mean()
    advantage = advantage / (advantage.std(correction=int(len(advantage) > 1)) + 1e-6)
    before = log_probability(tried.offset, tried.mean, spread)
    logs: dict[str, float] = {}
    for epoch in range(EPOCHS):
        for batch in torch.randperm(len(advantage), generator=generator).split(BATCH_SIZE):
            mean = edit(tried.rows[batch])
            ratio = (log_probability(tried.offset[batch], mean, spread) - before[batch]).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            gained = torch.minimum(ratio * advantage[batch], clipped * advantage[batch])
            loss = (distance_cost * divergence(mean, torch.zeros_like(mean), spread) - gained).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            mean = edit(tried.rows)
            ratio = (log_probability(tried.offset, mean, spread) - before).exp()
        logs = {
            "divergence": float(divergence(mean, tried.mean, spread).mean()),
            "clipped": float(((ratio - 1).abs() > CLIP).float().mean()),
            "epochs": float(epoch + 1),
        }
        if largest_divergence and logs["divergence"] > largest_divergence:
            break
    return logs


def log_probability(offset: Tensor, mean: Tensor, spread: float) -> Tensor:
    """log N(offset; mean, spread^2) of [K, A], summed over dimensions, but for a constant: [K]."""
    return -((offset - mean) / spread).square().sum(-1) / 2


def divergence(mean: Tensor, other: Tensor, spread: float) -> Tensor:
    """KL of two such Gaussians of means [K, A], in nats: [K]."""
    return ((mean - other) / spread).square().sum(-1) / 2


def generalised_advantages(value: Tensor, outcome: float, discount: float, carry: float) -> Tensor:
    """Advantages of the K chunks of an episode that is rewarded at its end alone (GAE, arXiv 1506.02438):

        delta_i = gamma V_{i+1} - V_i,   delta_K = R - V_K,   A_i = delta_i + gamma lambda A_{i+1}

    Args:
        value: [K], V where each chunk began.
        outcome: R.
        discount: gamma, of a chunk.
        carry: lambda.
    """
    later = torch.cat([discount * value[1:], value.new_tensor([outcome])])
    advantages, carried = [], value.new_zeros(())
    for delta in (later - value).flip(0):
        carried = delta + discount * carry * carried
        advantages.append(carried)
    return torch.stack(advantages[::-1])
