"""Normalisation of states and actions in torch, by the statistics of `vla_rl.core.normalization`."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from vla_rl.core.normalization import VectorStatistics


class Normalizer(nn.Module):
    """Affine map between raw units and normalised units of one vector, the last dimension of a tensor [..., D].

    A constant dimension is normalised to 0 and denormalised to its constant, whatever the network says.
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
        """Raw units to normalised units, [..., D]."""
        return (raw - self.offset) * self.inverse_scale

    def network_input(self, raw: Tensor) -> Tensor:
        """Raw units to normalized units within the limit, [..., D]: what a network reads."""
        return self.limited(self.normalize(raw))

    def limited(self, normalized: Tensor) -> Tensor:
        """Normalized units within the limit, [..., D]."""
        return normalized.clamp(-self.limit, self.limit)

    def denormalize(self, normalised: Tensor) -> Tensor:
        """Normalised units to raw units, [..., D]."""
        return normalised * self.scale + self.offset
