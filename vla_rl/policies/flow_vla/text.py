"""The task sentence to a token: hashed words, so that there is no vocabulary file and any sentence can be read."""

import torch
from torch import Tensor, nn

from vla_rl.core.flow import PADDING
from vla_rl.policies.flow_vla.config import TextConfig


class TextEncoder(nn.Module):
    """Word ids [B, L] -> one token [B, 1, width]. Words meet their position in a nonlinear layer, so the order of
    words counts.
    """

    def __init__(self, config: TextConfig, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(config.vocabulary, config.width)
        self.position = nn.Parameter(0.5 * torch.randn(config.max_words, config.width))
        self.mix = nn.Linear(config.width, 2 * config.width)
        self.out = nn.Linear(2 * config.width, width)

    def forward(self, ids: Tensor) -> Tensor:
        present = (ids != PADDING)[..., None].to(self.position.dtype)  # [B, L, 1]
        words = torch.nn.functional.gelu(self.mix(self.word(ids) + self.position))
        pooled = (words * present).sum(1) / present.sum(1).clamp(min=1.0)
        return self.out(pooled)[:, None]
