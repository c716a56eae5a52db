"""A small bounded correction of a frozen policy's chunks: one constant offset for all actions of a chunk.

Independent noise on single actions averages out over a chunk, so that nothing is learnt from it; one coherent offset of
few dimensions does not. The edit sees the state through the policy's own features, and the ends of the chunk that it
moves. It begins as no correction at all. Residual policies on frozen ones: ResFiT, arXiv 2509.19301.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.policies.base import example_row
from vla_rl.policies.layers import Normalizer, scaled

if TYPE_CHECKING:
    from vla_rl.policies.base import BasePolicy


_LEAST_SCALE = 1e-2


@dataclass(frozen=True)
class EditConfig:
    """Architecture, as the file of an edit keeps it.

    Attributes:
        bound: of an offset, in normalised action units.
        hidden: widths of the hidden layers.
    """

    bound: float = 0.5
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        if not self.bound > 0 or not self.hidden:
            raise ConfigError(
                f"edit: expected bound > 0 and at least one hidden layer, found {self.bound} and {self.hidden}"
            )


class Edit(nn.Module):
    """The offset of a chunk, deterministic; whoever trains it adds noise.

    Args:
        model: the policy whose features and statistics it reads; its weights are no part of the edit.
        config: see `EditConfig`.

    Attributes:
        mean, scale: of the input rows, [I]; set by whoever trains it.
        moved: [A], 1 in the dimensions that are moved, 0 in discrete ones and in those that never change.
    """

    mean: Tensor
    scale: Tensor
    moved: Tensor

    def __init__(self, model: "BasePolicy", config: EditConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or EditConfig()
        self.action_normalizer = Normalizer(model.statistics.action, model.statistics.discrete_dims)
        moved = (self.action_normalizer.scale > 0).float()
        moved[list(model.statistics.discrete_dims)] = 0
        self.register_buffer("moved", moved, persistent=False)
        inputs = len(example_row(model)) + 1 + 2 * model.spec.action_dim
        self.register_buffer("mean", torch.zeros(inputs))
        self.register_buffer("scale", torch.ones(inputs))
        widths = (inputs, *config.hidden)
        layers: list[nn.Module] = []
        for width, following in zip(widths, config.hidden, strict=False):
            layers += [nn.Linear(width, following), nn.ReLU()]
        self.net = nn.Sequential(*layers, nn.Linear(widths[-1], model.spec.action_dim))
        nn.init.zeros_(self._last.weight)
        nn.init.zeros_(self._last.bias)

    @property
    def corrects(self) -> bool:
        """Whether it has ever been trained: before that it is no correction at all, whatever its inputs' scale."""
        return bool(self._last.weight.any() or self._last.bias.any())

    @property
    def _last(self) -> nn.Linear:
        last = self.net[-1]
        assert isinstance(last, nn.Linear)
        return last

    def fit_inputs(self, rows: Tensor) -> None:
        """Take the scale of the inputs from rows [K, I]; only before anything has been learnt."""
        self.mean.copy_(rows.mean(0))
        self.scale.copy_(rows.std(0, correction=0) + _LEAST_SCALE)

    def rows(self, features: Tensor, tick: Tensor, chunk: Tensor) -> Tensor:
        """The input rows [..., I] of chunks, raw.

        Args:
            features: [..., F], of `flat_features`.
            tick: [...], ticks since the episode began.
            chunk: [..., C, A], the actions that are executed, raw units.
        """
        ends = self.action_normalizer.normalize(torch.cat([chunk[..., :1, :], chunk[..., -1:, :]], -2))
        return torch.cat([features, tick[..., None], ends.flatten(-2)], -1)

    def forward(self, rows: Tensor) -> Tensor:
        """Offsets [..., A] of rows [..., I], in the units of `EditConfig.bound`; 0 in discrete dimensions."""
        offset = self.net(scaled(rows, self.mean, self.scale))
        return self.config.bound * torch.tanh(offset / self.config.bound) * self.moved

    def raw(self, offset: Tensor) -> Tensor:
        """Offsets [..., A] of actions in raw units."""
        return offset * self.action_normalizer.scale
