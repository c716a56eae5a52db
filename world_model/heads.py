"""Heads on the hidden tokens of a frame: the flow of the next latents, and what came of the action."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from world_model.config import DynamicsConfig, HeadsConfig
from world_model.transformer import Block, Blocks

SUCCESS_THRESHOLD = 0.5  # probability from which an imagined episode has succeeded
_FREQUENCIES = 32
_WEIGHTS = {"reward": 1.0, "success": 1.0, "termination": 0.5, "proprioception": 1.0}


class FlowHead(nn.Module):
    """Predicts the clean end of a rectified flow, y1 [D], from a point y_tau = (1 - tau) noise + tau y1.

    A small transformer within each frame; its output is zero at first.
    """

    frequencies: Tensor

    def __init__(self, config: DynamicsConfig, token_dim: int) -> None:
        super().__init__()
        width = config.width
        self.noisy = nn.Linear(token_dim, width)
        self.time = nn.Sequential(nn.Linear(2 * _FREQUENCIES, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = Blocks(Block(width, config.heads, causal_memory=False) for _ in range(config.flow_layers))
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, token_dim)
        nn.init.zeros_(self.output.weight)
        nn.init.zeros_(self.output.bias)
        self.register_buffer("frequencies", torch.logspace(0, 2, _FREQUENCIES), persistent=False)

    def forward(self, noisy: Tensor, time: Tensor, hidden: Tensor, condition: Tensor) -> Tensor:
        """y_tau [B, T, N, D] at flow times tau [B, T], hidden [B, T, N, width], condition [B, T, width] -> y1."""
        angle = time[..., None] * self.frequencies
        condition = condition + self.time(torch.cat([angle.sin(), angle.cos()], -1))
        x = self.noisy(noisy) + hidden
        for block in self.blocks:
            x = block.within_frames(x, condition)
        return self.output(self.norm(x))

    def sample(self, hidden: Tensor, condition: Tensor, steps: int) -> Tensor:
        """``steps`` Euler steps from the mode of the noise, 0, at tau = 0 to y1 [B, T, N, D] at tau = 1. The worlds are
        deterministic, and the noise of one frame would be the next one's error.
        """
        point = hidden.new_zeros(*hidden.shape[:3], self.output.out_features)
        for step in range(steps):
            time = point.new_full(point.shape[:2], step / steps)
            clean = self(point, time, hidden, condition)
            # dy/dtau = (y1 - y) / (1 - tau), over 1 / steps.
            point = torch.lerp(point, clean.to(point.dtype), 1.0 / (steps - step))
        return point


class Outcome(NamedTuple):
    """What the heads say of one action in its frame.

    Attributes:
        reward: [B, T].
        success_logit: [B, T], the action ends the task in success.
        termination_logit: [B, T], the action ends the task.
        state_change: [B, T, S], beyond what linear servos would make, in standard deviations of the change.
    """

    reward: Tensor
    success_logit: Tensor
    termination_logit: Tensor
    state_change: Tensor


class OutcomeHeads(nn.Module):
    """Reward, success, termination and proprioception [S] from the hidden tokens of a frame.

    ``extra`` tokens come before the picture's.
    """

    def __init__(self, config: HeadsConfig, width: int, extra: int, state_dim: int) -> None:
        super().__init__()
        self.extra = extra
        size = (extra + 2) * width
        self.outcome = nn.Sequential(nn.Linear(size, config.hidden), nn.SiLU(), nn.Linear(config.hidden, 3))
        last = nn.Linear(config.hidden, state_dim)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        self.state = nn.Sequential(nn.Linear(size, config.hidden), nn.SiLU(), last)

    def forward(self, hidden: Tensor) -> Outcome:
        """Hidden tokens [B, T, F, width]."""
        picture = hidden[:, :, self.extra :]
        seen = [hidden[:, :, : self.extra].flatten(2), picture.mean(2), picture.amax(2)]
        features = torch.cat(seen, -1)
        reward, success, termination = self.outcome(features).unbind(-1)
        return Outcome(reward, success, termination, self.state(features))


def outcome_loss(
    outcome: Outcome,
    labels: tuple[Tensor, Tensor, Tensor],
    state_change: Tensor,
    inside: Tensor,
    has_next: Tensor,
) -> tuple[Tensor, dict[str, float]]:
    """Weighted sum of the heads' losses.

    Args:
        labels: Reward, success and termination of each step, [B, T] each.
        state_change: [B, T, S], the true one in standard deviations.
        inside, has_next: float [B, T]; 0 on steps behind the end of an episode, and without a known next observation.
    """
    reward, success, termination = labels
    count, next_count = inside.sum().clamp(min=1), has_next.sum().clamp(min=1)

    def cross_entropy(logit: Tensor, label: Tensor) -> Tensor:
        return (F.binary_cross_entropy_with_logits(logit, label, reduction="none") * inside).sum() / count

    parts = {
        "reward": ((outcome.reward - reward).square() * inside).sum() / count,
        "success": cross_entropy(outcome.success_logit, success),
        "termination": cross_entropy(outcome.termination_logit, termination),
        "proprioception": ((outcome.state_change - state_change).square().mean(-1) * has_next).sum() / next_count,
    }
    total = sum(_WEIGHTS[name] * part for name, part in parts.items())
    return torch.as_tensor(total), {f"{name}_loss": float(part.detach()) for name, part in parts.items()}
