"""A policy of one's own, as somebody else would write it: a plain network that regresses a chunk from small pictures
and the state. ``policy.kind=chunk_mlp:ChunkMLP`` with this folder on PYTHONPATH.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.policies.base import PolicyBatch, PolicyConfig
from vla_rl.policies.layers import Normalizer
from vla_rl.policies.trainable import TrainablePolicy


@dataclass(frozen=True)
class ChunkMLPConfig(PolicyConfig):
    kind: str = "chunk_mlp:ChunkMLP"
    horizon: int = 8
    pixels: int = 8
    hidden: int = 64


class ChunkMLP(TrainablePolicy):
    config_class = ChunkMLPConfig

    def __init__(self, config: ChunkMLPConfig, spec: PolicySpec, statistics: Statistics) -> None:
        super().__init__(config, spec, statistics)
        self.states = Normalizer(statistics.state)
        self.actions = Normalizer(statistics.action, statistics.discrete_dims)
        seen = len(spec.cameras) * 3 * config.pixels**2 + spec.state_dim
        self.network = nn.Sequential(
            nn.Linear(seen, config.hidden), nn.ReLU(), nn.Linear(config.hidden, config.horizon * spec.action_dim)
        )

    def forward(self, images: dict[str, Tensor], state: Tensor) -> Tensor:
        pictures = [images[camera].permute(0, 3, 1, 2) / 127.5 - 1.0 for camera in self.spec.cameras]
        small = [nn.functional.adaptive_avg_pool2d(picture, self.config.pixels).flatten(1) for picture in pictures]
        chunk = self.network(torch.cat([*small, self.states.normalize(state)], 1))
        return chunk.unflatten(1, (self.config.horizon, self.spec.action_dim))

    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        error = (self(batch.images, batch.state) - self.actions.normalize(batch.actions)).square()
        valid = batch.valid.expand_as(error)
        return (error * valid).sum((1, 2)) / valid.sum((1, 2)).clamp(min=1), {}

    def draw(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, noise: Tensor, committed: Tensor | None = None
    ) -> Tensor:
        return self.actions.denormalize(self(images, state))
