"""Pictures of recorded episodes, brought to the size that a policy sees. Dependency law: PIL is imported where it is
used.
"""

import numpy as np

from vla_rl.core.types import Uint8Array


def resized(picture: Uint8Array, size: tuple[int, int] | None) -> Uint8Array:
    """Return a picture [H, W, 3] at the height and width ``size``, averaged; None: unchanged."""
    if size is None or picture.shape[:2] == tuple(size):
        return picture
    from PIL import Image

    return np.asarray(Image.fromarray(picture).resize((size[1], size[0]), Image.Resampling.BOX))
