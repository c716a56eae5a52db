"""Proximal policy optimization of a residual (arXiv 1707.06347), the same for real episodes and model rollouts.

A chunk is tried with one offset a ~ N(mu(s), sigma^2) of few dimensions. Its log-probability is the *sum* over them.
Averaged over all numbers of a chunk, the ratio would stay near 1 under any update, and would never be clipped.

    L = - mean of min(rho A, clip(rho, 1 - c, 1 + c) A) + d KL(N(mu, sigma^2) | N(0, sigma^2)),   rho = p(a) / p_old(a)
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

LEARNING_RATE = 3e-4  # of Adam
EPOCHS, BATCH_SIZE = 8, 256  # over what was tried; chunks per gradient step
CLIP = 0.2  # c, of the ratio
GAE_LAMBDA = 0.95  # lambda of the advantages, from chunk to chunk


class Tried(NamedTuple):
    """K chunks that were executed.

    Attributes:
        rows: [K, I], inputs of the residual.
        offset: [K, A], what was tried, in normalized action units.
        mean: [K, A], what the residual proposed.
        advantage: [K].
    """

    rows: Tensor
    offset: Tensor
    mean: Tensor
    advantage: Tensor


def update(
    residual: nn.Module,
    optimizer: torch.optim.Optimizer,
    tried: Tried,
    action_std: float | Tensor,
    generator: torch.Generator,
    kl_coef: float = 0.0,
    target_kl: float = 0.0,
) -> dict[str, float]:
    """Take all epochs on the chunks that were tried. Advantages are normalized here.

    Args:
        residual: mu, a module from rows [K, I] to means [K, A]; trained in place.
        optimizer: Of its weights.
        tried: At least one chunk, tried with the present residual.
        action_std: sigma, one or one for each dimension, [A].
        generator: CPU generator of the batches.
        kl_coef: d, weight of the KL divergence from a zero residual, in nats per chunk.
        target_kl: KL divergence from the residual that acted, after which no further epoch begins, in nats per chunk;
            0: no bound.

    Returns:
        ``divergence`` is the true KL divergence of the residual that acted from the present one, in nats per chunk.
        ``clipped`` is the share of chunks whose ratio has left the clip's range. ``epochs`` is their number.
    """
    advantage = tried.advantage - tried.advantage.mean()
    advantage = advantage / (advantage.std(correction=int(len(advantage) > 1)) + 1e-6)
    before = log_probability(tried.offset, tried.mean, action_std)
    logs: dict[str, float] = {}
    for epoch in range(EPOCHS):
        for batch in torch.randperm(len(advantage), generator=generator).split(BATCH_SIZE):
            mean = residual(tried.rows[batch])
            ratio = (log_probability(tried.offset[batch], mean, action_std) - before[batch]).exp()
            clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
            gained = torch.minimum(ratio * advantage[batch], clipped * advantage[batch])
            loss = (kl_coef * divergence(mean, torch.zeros_like(mean), action_std) - gained).mean()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            mean = residual(tried.rows)
            ratio = (log_probability(tried.offset, mean, action_std) - before).exp()
        logs = {
            "divergence": float(divergence(mean, tried.mean, action_std).mean()),
            "clipped": float(((ratio - 1).abs() > CLIP).float().mean()),
            "epochs": float(epoch + 1),
        }
        if target_kl and logs["divergence"] > target_kl:
            break
    return logs


def log_probability(offset: Tensor, mean: Tensor, action_std: float | Tensor) -> Tensor:
    """log N(offset; mean, action_std^2) of [K, A], summed over dimensions, but for a constant: [K]."""
    return -((offset - mean) / action_std).square().sum(-1) / 2


def divergence(mean: Tensor, other: Tensor, action_std: float | Tensor) -> Tensor:
    """KL of two such Gaussians of means [K, A], in nats: [K]."""
    return ((mean - other) / action_std).square().sum(-1) / 2
