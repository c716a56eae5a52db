"""Pictures for people: the whole scene with soft edges and shadows.

Slower than what policies see; the same ray casting, no graphics library.
"""

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.raycast import LIGHT_DIRECTION, shade
from sim.rays import Caster, camera_rays
from sim.visible import Visibility

IMAGE_SIZE, OVERSAMPLING = 480, 2
SHADOW = 0.72  # what is left of the light in the shade
LAMP_DISTANCE_M = 4.0


def draw_picture(model: mujoco.MjModel, data: mujoco.MjData) -> NDArray[np.uint8]:
    """Picture uint8 [H, W, 3] of a state whose kinematics are up to date.

    Shadows: the lamp casts a ray to every point that the camera sees; where it meets something earlier, the point is
    in the shade.
    """
    rays = camera_rays(model, data, "overview", IMAGE_SIZE * OVERSAMPLING)
    caster, geoms = Caster(model, data), Visibility(model).geoms(model)
    hits = caster.cast(data, rays.origin, rays.directions, geoms)
    color = shade(model, rays.directions, rays.origin, hits)

    lamp = LAMP_DISTANCE_M * LIGHT_DIRECTION
    ways = rays.origin + rays.directions * np.maximum(hits.distance, 0.0)[:, None] - lamp  # [N, 3]
    lengths = np.linalg.norm(ways, axis=1)
    shaded = caster.cast(data, lamp, ways / lengths[:, None], geoms).distance < lengths - 1e-3
    color[shaded & (hits.geom >= 0) & (hits.geom != model.geom("wall").id)] *= SHADOW
    blocks = color.reshape(IMAGE_SIZE, OVERSAMPLING, IMAGE_SIZE, OVERSAMPLING, 3)
    return (blocks.mean(axis=(1, 3)) * 255).astype(np.uint8)
