"""Pictures of the dynamics' predictions, drawn from the policy's features.

For people alone. Nothing that learns or acts ever decodes, and nothing of it flows back into the features.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.policies.layers import scaled
from world_model.fitting import fit

_LEAST_SCALE = 1e-3
_HIDDEN = 256
_PATCH, _CHANNELS, _NARROW, _WIDE = 4, 8, 48, 96
_CELL = 2 * _PATCH  # pixels on a side that one cell draws
_BATCH_SIZE = 64
_LEARNING_RATE = 2e-3  # of AdamW, down to 0 by a cosine
_MOVING = 0.06  # difference to the camera's mean picture from which a pixel shows something that moves
_MOVING_WEIGHT = 4.0  # how much more such a pixel weighs
_EXAMPLES = 512


class ResidualBlock(nn.Module):
    """x + two 3 x 3 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(self.norm(x)))))


class FeatureDecoder(nn.Module):
    """Features [B, F] -> the difference of each camera's picture from its mean.

    Args:
        features: F.
        cameras: Number of cameras.
        size: Height and width of their pictures.
    """

    mean: Tensor
    scale: Tensor
    background: Tensor

    def __init__(self, features: int, cameras: int, size: tuple[int, int]) -> None:
        super().__init__()
        self.grid, self.size = (-(-size[0] // _CELL), -(-size[1] // _CELL)), size  # the last cells may be cut
        self.cameras = cameras
        cells = cameras * _CHANNELS * self.grid[0] * self.grid[1]
        self.spread = nn.Sequential(nn.Linear(features, _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, cells))
        self.draw = nn.Sequential(
            nn.Conv2d(_CHANNELS, _WIDE, 3, padding=1),
            ResidualBlock(_WIDE),
            nn.SiLU(),
            nn.Conv2d(_WIDE, 4 * _NARROW, 1),
            nn.PixelShuffle(2),
            nn.SiLU(),
            nn.Conv2d(_NARROW, 3 * _PATCH**2, 3, padding=1),
            nn.PixelShuffle(_PATCH),
        )
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        self.register_buffer("background", torch.zeros(cameras, 3, *size))

    @classmethod
    def of(cls, features: Tensor, examples: Tensor) -> "FeatureDecoder":
        """Return a decoder with the scales of its training data.

        Args:
            features: [N, F], all of them.
            examples: uint8 [B, cameras, H, W, 3], some of the pictures.
        """
        decoder = cls(features.shape[1], examples.shape[1], (examples.shape[2], examples.shape[3]))
        decoder.mean.copy_(features.mean(0))
        decoder.scale.copy_(features.std(0) + _LEAST_SCALE)
        decoder.background.copy_(_to_network(examples).mean(0))
        return decoder.to(features.device)

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, F] -> pictures [B, cameras, 3, H, W] around 0."""
        cells = self.spread(scaled(features, self.mean, self.scale)).view(-1, _CHANNELS, *self.grid)
        height, width = self.size
        drawn: Tensor = self.draw(cells)[..., :height, :width].unflatten(0, (-1, self.cameras))
        return drawn + self.background

    def loss(self, features: Tensor, pictures: Tensor) -> Tensor:
        """Absolute error of pictures uint8 [B, cameras, H, W, 3], larger where they show something that moves."""
        true = _to_network(pictures.to(features.device))
        moves = (true - self.background).abs().amax(2, keepdim=True) > _MOVING
        return ((1 + _MOVING_WEIGHT * moves) * (self(features) - true).abs()).mean()

    @torch.no_grad()
    def pictures(self, features: Tensor) -> Tensor:
        """uint8 [B, cameras, H, W, 3]."""
        drawn = ((self(features) + 0.5).clamp(0, 1) * 255).round().to(torch.uint8)
        return drawn.permute(0, 1, 3, 4, 2)


def fit_decoder(
    features: Tensor, look: Callable[[Tensor], Tensor], steps: int, generator: torch.Generator
) -> FeatureDecoder:
    """Train a decoder on features [N, F] from scratch; its first weights follow from torch's own generator.

    ``look`` gives the pictures uint8 [B, cameras, H, W, 3] of the features with indices int64 [B]. The generator draws
    the batches on the CPU.
    """

    def draw(count: int) -> Tensor:
        return torch.randint(len(features), (count,), generator=generator)

    decoder = FeatureDecoder.of(features, look(draw(min(_EXAMPLES, len(features)))))

    def loss() -> Tensor:
        chosen = draw(_BATCH_SIZE)
        return decoder.loss(features[chosen], look(chosen))

    fit(decoder, loss, "decoder", steps, _LEARNING_RATE, weight_decay=0.01)
    return decoder


def _to_network(images: Tensor) -> Tensor:
    """uint8 [B, cameras, H, W, 3] -> float [B, cameras, 3, H, W] around 0."""
    return images.permute(0, 1, 4, 2, 3).float() / 255 - 0.5
