"""What flow matching draws at random in training: noise, flow times and committed prefixes; and how hard tokens weigh
more.

Everything is drawn on the CPU from the caller's generator, so that it is the same on every device.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vla_rl.policies.flow_vla.config import FlowVLAConfig

XIAOMI_HIDING = 0.5  # probability that a token of a prefix is hidden from the others
XIAOMI_VISIBLE = 2  # the last tokens of a prefix that are never hidden


class FlowDraw(NamedTuple):
    """The random part of a training step, for K draws per observation.

    Attributes:
        noise: [K B, H, A], standard normal.
        time: flow time of each action, [K B, H]: one value per draw, and 1 on committed actions.
        committed: bool [K B, H], actions that stay clean and have no loss.
        hidden: bool [K B, H], committed actions that uncommitted actions do not attend to.
    """

    noise: Tensor
    time: Tensor
    committed: Tensor
    hidden: Tensor


def draw_flow(config: FlowVLAConfig, batch_size: int, action_dim: int, generator: torch.Generator) -> FlowDraw:
    """Draw ``config.flow_samples`` times for each of ``batch_size`` observations."""
    rows = batch_size * config.flow_samples
    noise = torch.randn(rows, config.horizon, action_dim, generator=generator)
    time = _times(config, batch_size, generator)
    lengths = _prefix_lengths(config, rows, generator)[:, None]
    index = torch.arange(config.horizon)
    committed = index < lengths
    hidden = torch.zeros_like(committed)
    if config.prefix_law == "xiaomi":
        may_hide = (lengths > XIAOMI_VISIBLE) & (index < lengths - XIAOMI_VISIBLE)
        hidden = may_hide & (torch.rand(committed.shape, generator=generator) < XIAOMI_HIDING)
    return FlowDraw(noise, torch.where(committed, 1.0, time[:, None]), committed, hidden)


def difficulty_weights(rollout: Tensor, actions: Tensor, counted: Tensor) -> Tensor:
    """Loss weights [B, H] of actions by how wrong the policy still is on them, without a graph.

        w = clamp(|rollout - a| / mean, .5, 5)

    The rollout [B, H, A] is sampled with few steps. The mean is over the tokens that have a loss, bool [B, H]. Source:
    Xiaomi-Robotics-0, arXiv 2602.12684.
    """
    distance = (rollout - actions).abs().mean(-1).detach()
    mean = (distance * counted).sum() / counted.sum().clamp(min=1)
    return (distance / mean.clamp(min=1e-12)).clamp(0.5, 5.0)


def _times(config: FlowVLAConfig, batch_size: int, generator: torch.Generator) -> Tensor:
    """Flow times [K B], stratified over the draws of an observation: less variance at the same cost."""
    draws = config.flow_samples
    uniform = ((torch.arange(draws) + torch.rand(batch_size, draws, generator=generator)) / draws).flatten()
    if config.time_distribution == "beta":
        return 0.999 * (1 - uniform ** (1 / 1.5))
    if config.time_distribution == "logit_normal":
        return torch.sigmoid(torch.special.ndtri(uniform.clamp(1e-6, 1 - 1e-6)))
    return uniform


def _prefix_lengths(config: FlowVLAConfig, rows: int, generator: torch.Generator) -> Tensor:
    """Committed actions of each draw, int64 [rows]."""
    longest = config.prefix_max
    if longest == 0:
        return torch.zeros(rows, dtype=torch.int64)
    length = torch.arange(longest + 1, dtype=torch.float32)
    laws = {
        "linear": longest + 1 - length,
        "exponential": torch.exp(-length),
        "xiaomi": torch.where(length == 0, float(longest), 1.0),
    }
    return torch.multinomial(laws[config.prefix_law], rows, replacement=True, generator=generator)
