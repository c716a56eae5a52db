"""Pictures of the feature dynamics' predictions. The decoder of the video model draws them from the policy's features.

For people alone. Nothing that learns or acts ever decodes, and nothing of it flows back into the features.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vla_rl.core.normalization import INPUT_LIMIT
from world_model.autoencoder import Autoencoder, to_network, to_pictures
from world_model.config import AutoencoderConfig
from world_model.training import fit

_LEAST_SCALE = 1e-3
_HIDDEN = 256
_BATCH_SIZE = 64
_LEARNING_RATE = 2e-3  # of AdamW, down to 0 by a cosine


class FeatureDecoder(nn.Module):
    """Features [N, F] -> pictures. The features, on which it will be trained, give the scales.

    ``examples`` uint8 [B, cameras, H, W, 3] give the mean picture of each camera, to which the difference is drawn.

    Raises:
        ConfigError: for pictures that cannot be divided into cells.
    """

    def __init__(self, features: Tensor, examples: Tensor) -> None:
        super().__init__()
        cameras, size = tuple(map(str, range(examples.shape[1]))), examples.shape[2:4]
        self.coder = Autoencoder(AutoencoderConfig(token_cells=1), cameras, (size[0], size[1]))
        self.coder.background.copy_(to_network(examples).mean(0))
        self.register_buffer("mean", features.mean(0))
        self.register_buffer("scale", features.std(0) + _LEAST_SCALE)
        cells = self.coder.tokens * self.coder.token_dim
        self.spread = nn.Sequential(nn.Linear(features.shape[1], _HIDDEN), nn.SiLU(), nn.Linear(_HIDDEN, cells))

    mean: Tensor
    scale: Tensor

    def forward(self, features: Tensor) -> Tensor:
        """Features [B, F] -> pictures [B, cameras, 3, H, W] around 0."""
        cells = self.spread(((features - self.mean) / self.scale).clamp(-INPUT_LIMIT, INPUT_LIMIT))
        return self.coder.draw(cells.view(-1, self.coder.config.latent_channels, *self.coder.grid))

    @torch.no_grad()
    def pictures(self, features: Tensor) -> Tensor:
        """uint8 [B, cameras, H, W, 3]."""
        return to_pictures(self(features))


def fit_decoder(
    features: Tensor, look: Callable[[Tensor], Tensor], steps: int, generator: torch.Generator
) -> FeatureDecoder:
    """Train a decoder on features [N, F] from scratch; its first weights follow from torch's own generator.

    ``look`` gives the pictures uint8 [B, cameras, H, W, 3] of the features with indices int64 [B]. The generator draws
    the batches on the CPU.
    """

    def draw(count: int) -> Tensor:
        return torch.randint(len(features), (count,), generator=generator)

    decoder = FeatureDecoder(features, look(draw(min(512, len(features))))).to(features.device)

    def loss() -> Tensor:
        chosen = draw(_BATCH_SIZE)
        true = to_network(look(chosen).to(features.device))
        return (decoder.coder.moving_weight(true) * (decoder(features[chosen]) - true).abs()).mean()

    fit(decoder, loss, "decoder", steps, _LEARNING_RATE, weight_decay=0.01)
    return decoder
