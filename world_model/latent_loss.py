"""An auxiliary loss for a policy's encoder: from its tokens and the actions sent, foretell the world model's latents
some steps later. Failed episodes, whose actions nobody should imitate, teach the encoder this way too.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class NextLatentConfig:
    """Options of the loss.

    Attributes:
        weight: beside the policy's own loss; 0 switches it off.
        ahead: steps between observation and target.
        hidden: units.
    """

    weight: float = 0.0
    ahead: int = 6
    hidden: int = 256


class NextLatentHead(nn.Module):
    """Tokens of a policy's prefix and a chunk of actions -> change of the mean latents.

    Args:
        config: see `NextLatentConfig`.
        width: of the policy's tokens.
        action_dim: A.
        latents: numbers of a frame's latents, N D.
    """

    def __init__(self, config: NextLatentConfig, width: int, action_dim: int, latents: int) -> None:
        super().__init__()
        self.config = config
        size = 2 * width + config.ahead * action_dim
        self.network = nn.Sequential(nn.Linear(size, config.hidden), nn.SiLU(), nn.Linear(config.hidden, latents))

    def loss(self, tokens: Tensor, mask: Tensor, actions: Tensor, now: Tensor, later: Tensor, inside: Tensor) -> Tensor:
        """Squared error of the change of latents, averaged over samples whose target exists.

        Args:
            tokens: [B, N, width], of the policy, with a graph.
            mask: bool [B, N], True where there is a token.
            actions: [B, ahead, A], normalised, those that were really sent.
            now, later: [B, N, D], latents of the observation and ``ahead`` steps later.
            inside: bool [B], False where the episode ended before.
        """
        present = mask[..., None]
        mean = (tokens * present).sum(1) / present.sum(1).clamp(min=1)
        highest = tokens.masked_fill(~present, -torch.inf).amax(1)
        guess = self.network(torch.cat([mean, highest, actions.flatten(1)], -1))
        error = (guess - (later - now).flatten(1)).square().mean(-1)
        return (error * inside).sum() / inside.sum().clamp(min=1)
