"""Pictures at the size that a policy sees."""

import numpy as np

from vla_rl.core.errors import UserError
from vla_rl.core.types import Uint8Array


def resized(picture: Uint8Array, size: tuple[int, int] | None) -> Uint8Array:
    """Return a picture [H, W, 3] at the height and width ``size``, averaged where it shrinks; None: unchanged.

    Raises:
        UserError: If pillow is missing.
    """
    if size is None or picture.shape[:2] == tuple(size):
        return picture
    try:
        from PIL import Image
    except ImportError as error:
        raise UserError("pictures of another size need the package pillow: pip install pillow") from error
    image = Image.fromarray(np.ascontiguousarray(picture))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BOX))
