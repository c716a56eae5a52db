"""Pictures of what the short-range world model foretells: from the policy's own features back to what cameras show.

For people alone. Nothing that learns or acts ever decodes, and nothing of it flows back into the features.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from vla_rl.core.progress import track
from vla_rl.core.ranges import check_ranges
from vla_rl.core.scaling import INPUT_LIMIT

_LEAST_SCALE = 1e-3
_MOVING = 0.06  # difference to the mean picture from which a pixel shows something that moves


@dataclass(frozen=True)
class FeatureDecoderConfig:
    """Architecture and optimisation.

    Attributes:
        hidden: width of the hidden layer.
        cells: pictures are drawn from so many cells on a side.
        channels: of a cell.
        steps: gradient steps.
        batch_size: frames per step.
        learning_rate: of AdamW, down to 0 by a cosine.
        moving_weight: how many times more pixels count that differ from the mean picture.
    """

    hidden: int = 256
    cells: int = 8
    channels: int = 64
    steps: int = 600
    batch_size: int = 64
    learning_rate: float = 2e-3
    moving_weight: float = 10.0

    def __post_init__(self) -> None:
        check_ranges(self, "decoder", hidden=">= 1", cells=">= 1", channels=">= 1", steps=">= 1", batch_size=">= 1")
        if self.channels % 4:
            raise ConfigError(f"decoder.channels is {self.channels}; expected a multiple of 4")


class FeatureDecoder(nn.Module):
    """Features -> pictures, as the difference to the mean picture of each camera.

    Args:
        features: [N, F], what it will be trained on, for its scales.
        mean: float [cameras, H, W, 3], the mean picture, from 0 to 1.
        config: see `FeatureDecoderConfig`.

    Raises:
        ConfigError: for pictures that cannot be divided into twice as many cells.
    """

    def __init__(self, features: Tensor, mean: Tensor, config: FeatureDecoderConfig) -> None:
        super().__init__()
        cameras, height, width, _ = mean.shape
        if height != width or height % (2 * config.cells):
            raise ConfigError(
                f"pictures of {height} x {width} pixels cannot be drawn from {config.cells} x {config.cells} cells; "
                f"expected squares with a multiple of {2 * config.cells} pixels on a side"
            )
        self.config = config
        self.register_buffer("mean", mean)
        self.register_buffer("feature_mean", features.mean(0))
        self.register_buffer("feature_scale", features.std(0) + _LEAST_SCALE)
        cells, channels, patch = config.cells, config.channels, height // (2 * config.cells)
        self.spread = nn.Sequential(
            nn.Linear(features.shape[1], config.hidden), nn.SiLU(), nn.Linear(config.hidden, channels * cells**2)
        )
        self.draw = nn.Sequential(
            nn.SiLU(),
            nn.Conv2d(channels, 2 * channels, 3, padding=1),
            nn.PixelShuffle(2),
            nn.SiLU(),
            nn.Conv2d(channels // 2, cameras * 3 * patch**2, 3, padding=1),
            nn.PixelShuffle(patch),
        )

    mean: Tensor
    feature_mean: Tensor
    feature_scale: Tensor

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, F] -> pictures [B, cameras, H, W, 3], about from 0 to 1."""
        seen = ((features - self.feature_mean) / self.feature_scale).clamp(-INPUT_LIMIT, INPUT_LIMIT)
        cells = self.spread(seen)
        drawn: Tensor = self.draw(cells.unflatten(1, (self.config.channels, self.config.cells, self.config.cells)))
        return drawn.unflatten(1, (-1, 3)).permute(0, 1, 3, 4, 2) + self.mean

    @torch.no_grad()
    def pictures(self, features: Tensor) -> Tensor:
        """uint8 [B, cameras, H, W, 3]."""
        return (self(features).clamp(0, 1) * 255).round().to(torch.uint8)


def fit_decoder(
    features: Tensor, look: Callable[[Tensor], Tensor], config: FeatureDecoderConfig, generator: torch.Generator
) -> FeatureDecoder:
    """Train a decoder from scratch; its first weights follow from torch's own generator.

    Args:
        features: [N, F].
        look: indices int64 [B] -> the pictures uint8 [B, cameras, H, W, 3] that these features are of.
        config: see `FeatureDecoderConfig`.
        generator: of the CPU, of the batches.
    """

    def batch(count: int) -> tuple[Tensor, Tensor]:
        chosen = torch.randint(len(features), (count,), generator=generator)
        return features[chosen], look(chosen).to(features.device).float() / 255

    _, some = batch(min(512, len(features)))
    decoder = FeatureDecoder(features, some.mean(0), config).to(features.device)
    optimizer = torch.optim.AdamW(decoder.parameters(), config.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, config.steps)
    for _ in track(range(config.steps), "decoder", "step"):
        rows, true = batch(config.batch_size)
        weight = 1 + config.moving_weight * ((true - decoder.mean).abs().amax(-1, keepdim=True) > _MOVING)
        loss = (weight * F.l1_loss(decoder(rows), true, reduction="none")).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
    return decoder.eval()
