"""Random shifts of training images (DrQ, arXiv 2004.13649). Torch; the randomness is the caller's generator."""

import torch
from torch import Tensor


def random_shift(images: dict[str, Tensor], pixels: int, generator: torch.Generator) -> dict[str, Tensor]:
    """Shift every image by up to ``pixels`` in each direction, edges repeated. Cameras of a sample shift independently.

    Args:
        images: camera -> uint8 [B, H, W, 3].
        pixels: largest shift; 0 returns the images as they are.
        generator: a CPU generator.
    """
    if pixels == 0:
        return images
    shifted = {}
    for camera, image in images.items():
        batch, height, width, _ = image.shape
        offsets = torch.randint(0, 2 * pixels + 1, (batch, 2), generator=generator).tolist()
        padded = image.new_empty(batch, height + 2 * pixels, width + 2 * pixels, 3)
        inside = slice(pixels, -pixels)
        padded[:, inside, inside] = image
        padded[:, :pixels, inside], padded[:, -pixels:, inside] = image[:, :1], image[:, -1:]
        padded[:, :, :pixels] = padded[:, :, pixels : pixels + 1]
        padded[:, :, -pixels:] = padded[:, :, -pixels - 1 : -pixels]
        shifted[camera] = torch.stack([padded[i, y : y + height, x : x + width] for i, (y, x) in enumerate(offsets)])
    return shifted
