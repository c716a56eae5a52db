"""Pictures to latent tokens and back: one convolutional network for all cameras; cells at a place share a token."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError
from world_model.config import AutoencoderConfig

_MOVING = 0.06  # difference to the camera's median picture from which a pixel shows something that moves
_MOVING_WEIGHT = 4.0  # how much more such a pixel weighs
_LATENT_NOISE = 0.05  # in training, so that the decoder bears imagined latents
_LATENT_PENALTY = 1e-3  # keeps that noise from being outgrown


class ResidualBlock(nn.Module):
    """x + two 3 x 3 convolutions."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(self.norm(x)))))


class Autoencoder(nn.Module):
    """Encodes and decodes frames with all their cameras.

    Latents leave `encode` standardized per channel, once `set_statistics` has been called.

    Attributes:
        side: Cells on a side that make up one token.
        familiar: The `strangeness` that few real successes ever reach; set after training.

    Raises:
        ConfigError: if the images cannot be divided into whole tokens.
    """

    latent_mean: Tensor
    latent_std: Tensor
    background: Tensor
    familiar: Tensor

    def __init__(self, config: AutoencoderConfig, cameras: tuple[str, ...], image_size: tuple[int, int]) -> None:
        super().__init__()
        self.side = config.token_cells or max(1, max(image_size) // (2 * config.patch))
        size = 2 * config.patch * self.side
        if any(pixels % size for pixels in image_size):
            raise ConfigError(f"images of {image_size} pixels cannot be divided into tokens of {size} x {size}")
        self.config, self.cameras = config, cameras
        self.grid = (image_size[0] // size, image_size[1] // size)
        narrow, wide = config.widths
        patch, channels = config.patch, config.latent_channels
        self.encoder = nn.Sequential(
            nn.PixelUnshuffle(patch),
            nn.Conv2d(3 * patch**2, narrow, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(narrow, wide, 2, stride=2),
            ResidualBlock(wide),
            nn.Conv2d(wide, channels, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(channels, wide, 3, padding=1),
            ResidualBlock(wide),
            nn.SiLU(),
            nn.Conv2d(wide, 4 * narrow, 1),
            nn.PixelShuffle(2),
            nn.SiLU(),
            nn.Conv2d(narrow, 3 * patch**2, 3, padding=1),
            nn.PixelShuffle(patch),
        )
        self.register_buffer("latent_mean", torch.zeros(self.token_dim))
        self.register_buffer("latent_std", torch.ones(self.token_dim))
        self.register_buffer("background", torch.zeros(len(cameras), 3, *image_size))
        self.register_buffer("familiar", torch.tensor(float("inf")))

    @property
    def tokens(self) -> int:
        """Tokens of a frame, N."""
        return self.grid[0] * self.grid[1]

    @property
    def token_dim(self) -> int:
        """Numbers in a token, D."""
        return len(self.cameras) * self.side**2 * self.config.latent_channels

    def set_statistics(self, latents: Tensor) -> None:
        """Standardize latents like these from now on, [B, N, D], as `encode` gives them before the first call."""
        flat = latents.flatten(0, -2)
        mean = self.over_places(flat.mean(0))
        self.latent_mean.copy_(mean)
        self.latent_std.copy_(self.over_places((flat - mean).square().mean(0)).sqrt().clamp(min=1e-3))

    def over_places(self, statistic: Tensor) -> Tensor:
        """Return a statistic [D] of the numbers in a token, averaged over its cells. A cell in which nothing ever moves
        is not blown up.
        """
        cells = self.side**2
        return statistic.unflatten(0, (-1, cells)).mean(-1).repeat_interleave(cells)

    def encode(self, images: Tensor) -> Tensor:
        """Frames uint8 [B, cameras, H, W, 3] -> latents [B, N, D]."""
        return (self._to_tokens(self.encoder(to_network(images).flatten(0, 1))) - self.latent_mean) / self.latent_std

    def decode(self, latents: Tensor) -> Tensor:
        """Latents [B, N, D] -> frames uint8 [B, cameras, H, W, 3]."""
        return to_pictures(self.draw(self._to_cells(latents * self.latent_std + self.latent_mean)))

    def strangeness(self, images: Tensor) -> Tensor:
        """Return the distance [B] of frames uint8 [B, cameras, H, W, 3] from the training data. It is the mean squared
        change of their latents when decoded and encoded once more.
        """
        latents = self.encode(images)
        return (self.encode(self.decode(latents)) - latents).square().mean((1, 2))

    def loss(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, dict[str, float]]:
        """Weighted squared error of the reconstruction of uint8 [B, cameras, H, W, 3], with noise on the latents."""
        pictures = to_network(images)
        cells = self.encoder(pictures.flatten(0, 1))
        noise = torch.randn(cells.shape, generator=generator).to(cells.device)
        rebuilt = self.draw(cells + _LATENT_NOISE * noise)
        error = (rebuilt - pictures).square()
        weight = self.moving_weight(pictures)
        reconstruction = (weight * error).mean() / weight.mean()
        loss = reconstruction + _LATENT_PENALTY * cells.square().mean()
        logs = {"reconstruction": float(reconstruction.detach()), "pixel_error": float(error.detach().mean())}
        return loss, logs

    def moving_weight(self, pictures: Tensor) -> Tensor:
        """Weights of pixels [B, cameras, 1, H, W] of pictures around 0, larger where they show something that moves."""
        return 1 + _MOVING_WEIGHT * ((pictures - self.background).abs().amax(2, keepdim=True) > _MOVING)

    def draw(self, cells: Tensor) -> Tensor:
        """[B cameras, C, h, w] -> [B, cameras, 3, H, W], around 0."""
        residual: Tensor = self.decoder(cells).unflatten(0, (-1, len(self.cameras)))
        return residual + self.background

    def _to_tokens(self, cells: Tensor) -> Tensor:
        """[B cameras, C, h, w] -> [B, N, D]."""
        grouped = F.pixel_unshuffle(cells, self.side).flatten(2)  # [B cameras, C side^2, N]
        return grouped.unflatten(0, (-1, len(self.cameras))).flatten(1, 2).transpose(1, 2)

    def _to_cells(self, tokens: Tensor) -> Tensor:
        """Return the inverse of `_to_tokens`."""
        grouped = tokens.transpose(1, 2).unflatten(1, (len(self.cameras), -1)).flatten(0, 1)
        return F.pixel_shuffle(grouped.unflatten(2, self.grid), self.side)


def to_network(images: Tensor) -> Tensor:
    """uint8 [B, cameras, H, W, 3] -> float [B, cameras, 3, H, W] around 0."""
    return images.permute(0, 1, 4, 2, 3).float() / 255 - 0.5


def to_pictures(drawn: Tensor) -> Tensor:
    """Return the inverse of `to_network`."""
    return ((drawn + 0.5).clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 1, 3, 4, 2)
