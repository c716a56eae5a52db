"""Small networks on top of features, M of them at once."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.normalization import INPUT_LIMIT


def scaled(rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return rows [..., I] as a network reads them: in scales from the mean [I], within the limit. An input that hardly
    varied in the data does not drown the others when it moves.
    """
    return ((rows - mean) / scale).clamp(-INPUT_LIMIT, INPUT_LIMIT)


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
        normalised: LayerNorm, without weights, before every rectifier.
    """

    def __init__(
        self, members: int, inputs: int, hidden: tuple[int, ...], outputs: int, normalised: bool = False
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.members, self._normalised = members, normalised
        self.layers = nn.ModuleList(
            EnsembleLinear(members, width, following) for width, following in zip(widths, hidden, strict=False)
        )
        self.out = EnsembleLinear(members, widths[-1], outputs)

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, I]."""
        return self._through(features.expand(self.members, *features.shape))

    def of_member(self, features: Tensor, member: Tensor) -> Tensor:
        """What one perceptron says of each row, [B, O], without asking the others.

        Args:
            features: [B, I].
            member: int64 [B], which one is asked.
        """
        counts = torch.bincount(member, minlength=self.members)
        order = member.argsort()
        place = torch.empty_like(member)  # of a row among those of its member
        place[order] = torch.arange(len(member), device=member.device) - (counts.cumsum(0) - counts)[member[order]]
        rows = features.new_zeros(self.members, int(counts.max()), features.shape[1])
        rows[member, place] = features
        return self._through(rows)[member, place]

    def _through(self, rows: Tensor) -> Tensor:
        """Rows [M, B, I] of each member's own."""
        for layer in self.layers:
            rows = layer(rows)
            rows = torch.relu(F.layer_norm(rows, rows.shape[-1:]) if self._normalised else rows)
        return self.out(rows)
