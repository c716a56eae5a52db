"""Pictures of the short-rollout model's predictions, decoded from the policy's own features.

For people alone. Nothing that learns or acts ever decodes, and nothing of it flows back into the features.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.core.normalization import INPUT_LIMIT
from vla_rl.core.progress import track

_LEAST_SCALE = 1e-3
_HIDDEN = 256
_CELLS, _CHANNELS = 8, 64  # pictures are drawn from 8 x 8 cells
_BATCH_SIZE = 64
_LEARNING_RATE = 2e-3  # of AdamW, down to 0 by a cosine
_MOVING = 0.06  # difference to the mean picture from which a pixel shows something that moves
_MOVING_WEIGHT = 10.0  # how much more such a pixel counts


class FeatureDecoder(nn.Module):
    """Features [N, F] -> pictures, as the difference to the mean picture of each camera.

    The features, on which it will be trained, give the scales. The mean pictures are float [cameras, H, W, 3] from 0 to
    1.

    Raises:
        ConfigError: for pictures that cannot be divided into twice as many cells.
    """

    def __init__(self, features: Tensor, mean: Tensor) -> None:
        super().__init__()
        cameras, height, width, _ = mean.shape
        if height != width or height % (2 * _CELLS):
            raise ConfigError(
                f"pictures of {height} x {width} pixels cannot be drawn from {_CELLS} x {_CELLS} cells. "
                f"Expected are squares with a multiple of {2 * _CELLS} pixels on a side"
            )
        self.register_buffer("mean", mean)
        self.register_buffer("feature_mean", features.mean(0))
        self.register_buffer("feature_scale", features.std(0) + _LEAST_SCALE)
        patch = height // (2 * _CELLS)
        self.spread = nn.Sequential(
            nn.Linear(features.shape[1], _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, _CHANNELS * _CELLS**2)
        )
        self.draw = nn.Sequential(
            nn.SiLU(),
            nn.Conv2d(_CHANNELS, 2 * _CHANNELS, 3, padding=1),
            nn.PixelShuffle(2),
            nn.SiLU(),
            nn.Conv2d(_CHANNELS // 2, cameras * 3 * patch**2, 3, padding=1),
            nn.PixelShuffle(patch),
        )

    mean: Tensor
    feature_mean: Tensor
    feature_scale: Tensor

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, F] -> pictures [B, cameras, H, W, 3], about from 0 to 1."""
        seen = ((features - self.feature_mean) / self.feature_scale).clamp(-INPUT_LIMIT, INPUT_LIMIT)
        cells = self.spread(seen)
        drawn: Tensor = self.draw(cells.unflatten(1, (_CHANNELS, _CELLS, _CELLS)))
        return drawn.unflatten(1, (-1, 3)).permute(0, 1, 3, 4, 2) + self.mean

    @torch.no_grad()
    def pictures(self, features: Tensor) -> Tensor:
        """uint8 [B, cameras, H, W, 3]."""
        return (self(features).clamp(0, 1) * 255).round().to(torch.uint8)


def fit_decoder(
    features: Tensor, look: Callable[[Tensor], Tensor], steps: int, generator: torch.Generator
) -> FeatureDecoder:
    """Train a decoder on features [N, F] from scratch; its first weights follow from torch's own generator.

    ``look`` gives the pictures uint8 [B, cameras, H, W, 3] of the features with indices int64 [B]. The generator draws
    the batches on the CPU.
    """

    def batch(count: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(features), (count,), generator=generator)
        return features[chosen], look(chosen).to(features.device).float() / 255

    _, some = batch(min(512, len(features)))
    decoder = FeatureDecoder(features, some.mean(0)).to(features.device)
    optimizer = torch.optim.AdamW(decoder.parameters(), _LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in track(range(steps), "decoder", "step"):
        rows, true = batch(_BATCH_SIZE)
        weight = 1 + _MOVING_WEIGHT * ((true - decoder.mean).abs().amax(-1, keepdim=True) > _MOVING)
        loss = (weight * F.l1_loss(decoder(rows), true, reduction="none")).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return decoder.eval()
