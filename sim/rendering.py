"""Choice of a renderer by name."""

from collections.abc import Sequence
from typing import Protocol

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.egl import EglRenderer
from sim.hulls import with_hulls
from sim.raycast import RaycastRenderer
from vla_rl.core.errors import UserError, did_you_mean

RENDERERS = ("auto", "raycast", "egl")


class SceneRenderer(Protocol):
    """What an environment asks of a renderer."""

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of a state whose kinematics are up to date."""

    def segment(self, data: mujoco.MjData, camera: str) -> NDArray[np.int32]:
        """Geom id of every pixel, int32 [H, W]; -1 where no geom is."""

    def refresh(self, data: mujoco.MjData) -> None:
        """Notice that static geoms were moved in the model."""

    def close(self) -> None:
        """Free what the graphics library holds."""


def make_renderer(
    name: str,
    model: mujoco.MjModel,
    data: mujoco.MjData,
    cameras: Sequence[str],
    image_size: int,
    hulls: Sequence[str] = (),
) -> SceneRenderer:
    """Renderer by name: "raycast", "egl", or "auto".

    "auto" is the ray caster everywhere. At the sizes that policies see, it is as fast as EGL on a processor, and it
    draws the same bytes on every machine, so that what was recorded on one can be replayed on another. EGL is faster
    from about 128 pixels on.

    Args:
        name: one of `RENDERERS`.
        model: compiled model.
        data: a data of this model in which kinematics were computed at least once.
        cameras: names of the cameras to draw.
        image_size: height and width in pixels.
        hulls: names of meshes to draw as their coarse convex hulls, see `sim.hulls`.

    Raises:
        UserError: unknown name, or EGL does not load here.
    """
    if name not in RENDERERS:
        raise UserError(f"There is no renderer {name!r}.{did_you_mean(name, RENDERERS)}")
    if hulls:
        model = with_hulls(model, hulls)
    if name == "egl":
        return EglRenderer(model, cameras, image_size)
    return RaycastRenderer(model, data, cameras, image_size, hulls)
