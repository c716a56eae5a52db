"""Small networks and scales on top of features: what policies, critics, residuals and short-range dynamics share."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.normalization import INPUT_LIMIT, LITTLE, VectorStatistics

_LEAST_SCALE = 1e-2  # added to the standard deviation of each input


class Normalizer(nn.Module):
    """Affine map between raw units and normalized units of one vector, the last dimension of a tensor [..., D].

    A constant dimension is normalized to 0 and denormalized to its constant, whatever the network says.
    Offset, scale and limit are buffers: they move with the module but are no part of its state_dict, since the
    statistics are saved as data.
    """

    offset: Tensor
    scale: Tensor
    inverse_scale: Tensor
    limit: Tensor

    def __init__(self, statistics: VectorStatistics, discrete_dims: Sequence[int] = ()) -> None:
        super().__init__()
        offset, scale = statistics.affine(discrete_dims)
        inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
        self.register_buffer("offset", torch.from_numpy(offset), persistent=False)
        self.register_buffer("scale", torch.from_numpy(scale), persistent=False)
        self.register_buffer("inverse_scale", torch.from_numpy(inverse), persistent=False)
        self.register_buffer("limit", torch.from_numpy(statistics.limits()), persistent=False)

    def normalize(self, raw: Tensor) -> Tensor:
        """Raw units to normalized units, [..., D]."""
        return (raw - self.offset) * self.inverse_scale

    def network_input(self, raw: Tensor) -> Tensor:
        """Raw units to normalized units within the limit, [..., D]: what a network reads."""
        return self.limited(self.normalize(raw))

    def limited(self, normalized: Tensor) -> Tensor:
        """Normalized units within the limit, [..., D]."""
        return normalized.clamp(-self.limit, self.limit)

    def denormalize(self, normalized: Tensor) -> Tensor:
        """Normalized units to raw units, [..., D]."""
        return normalized * self.scale + self.offset


def limited(normalized: Tensor, scale: Tensor) -> Tensor:
    """Limit the inputs [..., D] that moved little in the data, by their scales [D]; the others cannot go far."""
    little = scale < LITTLE * scale.max()
    return torch.where(little, normalized.clamp(-INPUT_LIMIT, INPUT_LIMIT), normalized)


def scaled(rows: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """Return rows [..., I] as a network reads them: in scales from the mean [I], within the limit. An input that hardly
    varied in the data does not drown the others when it moves.
    """
    return ((rows - mean) / scale).clamp(-INPUT_LIMIT, INPUT_LIMIT)


class ScaledInputs(nn.Module):
    """A network that reads rows [..., I] as `scaled` gives them.

    Attributes:
        mean, scale: Of the input rows, [I]; the trainer sets them.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))

    def fit_inputs(self, rows: Tensor) -> None:
        """Take the scale of the inputs from rows [K, I]; only before anything has been learned."""
        self.mean.copy_(rows.mean(0))
        self.scale.copy_(rows.std(0, correction=0) + _LEAST_SCALE)


def zero_network(widths: Sequence[int], outputs: int) -> nn.Sequential:
    """Return linear layers with rectifiers, from ``widths[0]`` inputs. Until it is trained, its outputs are zero."""
    hidden = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
    last = nn.Linear(widths[-1], outputs)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(*hidden, last)


class EnsembleLinear(nn.Module):
    """M independent linear maps, [M, B, I] -> [M, B, O], each initialized as `torch.nn.Linear` is."""

    def __init__(self, members: int, inputs: int, outputs: int) -> None:
        super().__init__()
        bound = 1.0 / math.sqrt(inputs)
        self.weight = nn.Parameter(torch.empty(members, inputs, outputs).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, outputs).uniform_(-bound, bound))

    def forward(self, rows: Tensor, members: Tensor | None = None) -> Tensor:
        """Rows [K, B, I] of the K members int64 [K]; None: of all."""
        if members is None:
            return torch.baddbmm(self.bias, rows, self.weight)
        return torch.baddbmm(self.bias[members], rows, self.weight[members])


class EnsembleHead(nn.Module):
    """M multilayer perceptrons with rectifiers, features [B, I] -> [M, B, O], with ``hidden`` widths between.

    ``normalized``: LayerNorm, without weights, before every rectifier.
    """

    def __init__(
        self, members: int, inputs: int, hidden: tuple[int, ...], outputs: int, normalized: bool = False
    ) -> None:
        super().__init__()
        widths = (inputs, *hidden)
        self.members, self._normalized = members, normalized
        self.layers = nn.ModuleList(
            EnsembleLinear(members, width, following) for width, following in zip(widths, hidden, strict=False)
        )
        self.out = EnsembleLinear(members, widths[-1], outputs)

    def forward(self, features: Tensor, members: Tensor | None = None) -> Tensor:
        """Features [B, I] -> [K, B, O] of the K members int64 [K]; None: of all."""
        count = self.members if members is None else len(members)
        return self._through(features.expand(count, *features.shape), members)

    def of_member(self, features: Tensor, member: Tensor) -> Tensor:
        """What one perceptron, member int64 [B], says of each row [B, I], [B, O], without asking the others."""
        counts = torch.bincount(member, minlength=self.members)
        order = member.argsort()
        place = torch.empty_like(member)  # of a row among those of its member
        place[order] = torch.arange(len(member), device=member.device) - (counts.cumsum(0) - counts)[member[order]]
        rows = features.new_zeros(self.members, int(counts.max()), features.shape[1])
        rows[member, place] = features
        return self._through(rows)[member, place]

    def _through(self, rows: Tensor, members: Tensor | None = None) -> Tensor:
        """Rows [K, B, I] of each member's own."""
        for layer in self.layers:
            rows = layer(rows, members)
            rows = torch.relu(F.layer_norm(rows, rows.shape[-1:]) if self._normalized else rows)
        return self.out(rows, members)
