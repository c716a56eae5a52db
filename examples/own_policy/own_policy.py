"""A policy of one's own: a small network that says the whole chunk at once, from thumbnails and the state.

pip install examples/own_policy
vla-rl train --config tiny policy.kind=thumbnails policy.width=128 learning.critic.backbone=own
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.policies.base import PolicyBatch, PolicyConfig
from vla_rl.policies.layers import Normalizer
from vla_rl.policies.trainable import TrainablePolicy

PIXELS = 8


@dataclass(frozen=True)
class ThumbnailsConfig(PolicyConfig):
    """The section ``policy`` of a run whose ``policy.kind`` is this one."""

    kind: str = "thumbnails"
    horizon: int = 16
    width: int = 256


class Thumbnails(TrainablePolicy):
    """`loss` and `draw` are all that it must say; how it is saved, loaded and acts is as with any other."""

    config_class = ThumbnailsConfig

    def __init__(self, config: ThumbnailsConfig, spec: PolicySpec, statistics: Statistics) -> None:
        super().__init__(config, spec, statistics)
        self.state_normalizer = Normalizer(statistics.state)
        self.action_normalizer = Normalizer(statistics.action)
        seen = 3 * PIXELS * PIXELS * len(spec.cameras) + spec.state_dim
        said = config.horizon * spec.action_dim
        self.network = nn.Sequential(nn.Linear(seen, config.width), nn.GELU(), nn.Linear(config.width, said))

    def loss(self, batch: PolicyBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Mean absolute error of each sample, [B], over what has a loss."""
        error = (self._chunks(batch.images, batch.state) - self.action_normalizer.normalize(batch.actions)).abs()
        counted = batch.valid.expand_as(error)
        return (error * counted).sum((1, 2)) / counted.sum((1, 2)).clamp(min=1), {}

    def draw(
        self, images: dict[str, Tensor], state: Tensor, text: Tensor, noise: Tensor, committed: Tensor | None = None
    ) -> Tensor:
        """The chunk, [B, H, A], raw units. There is no chance in it, and it does not heed what is committed."""
        return self.action_normalizer.denormalize(self._chunks(images, state))

    def _chunks(self, images: dict[str, Tensor], state: Tensor) -> Tensor:
        pictures = [images[camera].movedim(-1, 1).float() / 255 for camera in self.spec.cameras]
        seen = [F.adaptive_avg_pool2d(picture, PIXELS).flatten(1) for picture in pictures]
        said = self.network(torch.cat([*seen, self.state_normalizer.network_input(state)], 1))
        return said.unflatten(1, (self.config.horizon, self.spec.action_dim))
