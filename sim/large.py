"""Pictures for people who follow a task while it goes on: its own cameras, larger than policies see them."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.env import TabletopEnv
from sim.interface import CameraEnv
from sim.rendering import Renderer


def large_pictures(env: Any, image_size: int) -> Callable[[], Mapping[str, NDArray[np.uint8]]]:
    """What draws an environment for people: camera -> uint8 [H, W, 3] of its present state.

    A task of ours is drawn with this many pixels, an adapted benchmark as large as its cameras are, any other
    environment as `render` does, where it can.
    """
    inner = env.unwrapped
    if isinstance(inner, TabletopEnv):
        renderer = Renderer("auto", inner.model, inner.data, inner.cameras, image_size)
        return lambda: {camera: renderer.render(inner.data, camera) for camera in inner.cameras}
    if isinstance(inner, CameraEnv):
        return inner.draw_now
    if inner.render_mode == "rgb_array":
        return lambda: {"render": np.asarray(inner.render())}
    return dict
