"""Small networks on top of features, M of them at once."""

import math

import torch
from torch import Tensor, nn


class EnsembleLinear(nn.Module):
    """M independent linear maps, [M, B, I] -> [M, B, O], each initialised as `torch.nn.Linear` is."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.baddbmm(self.bias, rows, self.weight)


class EnsembleHead(nn.Module):
    """M multilayer perceptrons with rectifiers, features [B, I] -> [M, B, O].

    Args:
        members: M.
        inputs: I.
        hidden: widths of the hidden layers.
        outputs: O.
        dropout: probability that a hidden unit is dropped in training.
    """

    def __init__(self, members: int, inputs: int, hidden: tuple[int, ...], outputs: int, dropout: float = 0.0) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.members, self.dropout = members, dropout
        self.layers = nn.ModuleList(
            EnsembleLinear(members, width, following) for width, following in zip(widths, hidden, strict=False)
        )
        self.rectifiers = nn.ModuleList(nn.ReLU() for _ in hidden)  # modules, so that active units can be counted
        self.out = EnsembleLinear(members, widths[-1], outputs)

    def forward(self, features: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Args: features: [B, I]; generator: a CPU generator for dropout in training, None: no dropout."""
        rows = features.expand(self.members, *features.shape)
        for layer, rectifier in zip(self.layers, self.rectifiers, strict=True):
            rows = rectifier(layer(rows))
            if self.dropout and generator is not None:
                kept = torch.rand(rows.shape, generator=generator) >= self.dropout
                rows = rows * kept.to(rows.device) / (1.0 - self.dropout)
        return self.out(rows)
