"""Pictures of a robot's cameras, brought to the size that a policy was trained on."""

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.types import Uint8Array


def resize(image: Uint8Array, size: tuple[int, int]) -> Uint8Array:
    """The image at [height, width]: averaged when it shrinks, the same array when it fits.

    Raises:
        UserError: if the package pillow is missing.
    """
    if image.shape[:2] == size:
        return image
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("pictures of another size need the package pillow: pip install pillow") from error
    picture = Image.fromarray(np.ascontiguousarray(image))
    return np.asarray(picture.resize((size[1], size[0]), Image.Resampling.BOX))
