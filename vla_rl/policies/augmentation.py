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
        rows = torch.arange(-pixels, height + pixels, device=image.device).clamp_(0, height - 1)
        columns = torch.arange(-pixels, width + pixels, device=image.device).clamp_(0, width - 1)
        padded = image.index_select(1, rows).index_select(2, columns)
        shifted[camera] = torch.stack([padded[i, y : y + height, x : x + width] for i, (y, x) in enumerate(offsets)])
    return shifted
