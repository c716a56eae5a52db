"""The residual of a frozen policy: one small, bounded offset for all actions of a chunk (as ResFiT, arXiv 2509.19301).

    a_1:C = pi(z, noise) + mu(z, t, a_1, a_C)

Independent noise on single actions averages out over a chunk, so nothing is learned from it. One coherent offset of few
dimensions does not. The residual reads the policy's own features z and the ends of the chunk that it moves. It is zero
before it is trained.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vla_rl.core.validation import check_ranges
from vla_rl.policies.base import BasePolicy, example_row
from vla_rl.policies.layers import Normalizer, ScaledInputs, scaled, zero_network


@dataclass(frozen=True)
class ResidualConfig:
    """Architecture: the largest offset in normalized action units, and the widths of the hidden layers."""

    bound: float = 0.5
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        check_ranges(self, "residual", bound="> 0", hidden=">= 1")


class Residual(ScaledInputs):
    """mu, the offset of a chunk. It is deterministic; the trainer adds noise.

    It reads features and statistics of the policy, whose weights are no part of it.

    Attributes:
        moved: [A], 1 in the dimensions that are moved, 0 in discrete ones and in those that never change.
    """

    moved: Tensor

    def __init__(self, model: BasePolicy, config: ResidualConfig | None = None) -> None:
        inputs = len(example_row(model)) + 1 + 2 * model.spec.action_dim
        super().__init__(inputs)
        self.config = config = config or ResidualConfig()
        self.action_normalizer = Normalizer(model.statistics.action, model.statistics.discrete_dims)
        moved = (self.action_normalizer.scale > 0).float()
        moved[list(model.statistics.discrete_dims)] = 0
        self.register_buffer("moved", moved, persistent=False)
        self.net = zero_network((inputs, *config.hidden), model.spec.action_dim)

    @property
    def corrects(self) -> bool:
        """Whether it has been trained: before, it is zero whatever the scale of its inputs."""
        return any(bool(weights.any()) for weights in self.net[-1].parameters())

    def rows(self, features: Tensor, tick: Tensor, chunk: Tensor) -> Tensor:
        """Return the input rows [..., I] of chunks, raw.

        They are made of `flat_features` [..., F], ticks since the episode began [...], and the executed actions [...,
        C, A], raw units.
        """
        ends = self.action_normalizer.normalize(torch.cat([chunk[..., :1, :], chunk[..., -1:, :]], -2))
        return torch.cat([features, tick[..., None], ends.flatten(-2)], -1)

    def forward(self, rows: Tensor) -> Tensor:
        """Offsets [..., A] of rows [..., I], in the units of `ResidualConfig.bound`; 0 in discrete dimensions."""
        offset = self.net(scaled(rows, self.mean, self.scale))
        return self.config.bound * torch.tanh(offset / self.config.bound) * self.moved

    def raw(self, offset: Tensor) -> Tensor:
        """Offsets [..., A] of actions in raw units."""
        return offset * self.action_normalizer.scale
