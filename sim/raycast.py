"""Renderer that needs no graphics library: one `mujoco.mj_multiRay` call per camera, shaded in numpy.

The default everywhere, because it draws the same bytes on every machine. Geoms that cannot move are cast once per camera and kept as a
background; a frame then costs the rays against the moving geoms and the shading of the pixels that they cover.

Not thread-safe: one renderer belongs to one environment.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

LIGHT_DIRECTION = np.array([0.30, -0.55, 0.78]) / np.linalg.norm([0.30, -0.55, 0.78])  # towards the light
AMBIENT, DIFFUSE = 0.50, 0.55
CHECKER_SIZE_M, CHECKER_SHADE = 0.04, 0.93
SKY_HORIZON, SKY_ZENITH = np.array([0.86, 0.90, 0.95]), np.array([0.52, 0.66, 0.84])


@dataclass(frozen=True)
class _View:
    """What never changes of one camera: where its rays start and point, and the picture of everything static."""

    origin: NDArray[np.float64]  # [3]
    rays: NDArray[np.float64]  # [N, 3], unit length
    colour: NDArray[np.uint8]  # [N, 3]
    geom: NDArray[np.int32]  # [N], -1 where the sky is
    distance: NDArray[np.float64]  # [N] metres, infinite where the sky is


class RaycastRenderer:
    """Draws fixed cameras of a model made of primitive geoms.

    Args:
        model: compiled model; cameras must be attached to the world.
        data: a data of this model in which kinematics were computed at least once.
        cameras: names of the cameras to draw.
        image_size: height and width in pixels.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData, cameras: Sequence[str], image_size: int) -> None:
        self._model, self._size = model, image_size
        n_rays = image_size * image_size
        self._hit = np.empty(n_rays, np.int32)
        self._distance = np.empty(n_rays, np.float64)
        self._normal = np.empty((n_rays, 3), np.float64)
        self._albedo = model.geom_rgba[:, :3].astype(np.float64)
        self._static = model.body_weldid[model.geom_bodyid] == 0  # [G]
        self._views = {name: self._make_view(data, name) for name in cameras}

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of `data`, whose kinematics must be up to date."""
        view = self._views[camera]
        self._cast(data, view.origin, view.rays, static=False)
        (drawn,) = np.nonzero((self._hit >= 0) & (self._distance < view.distance))
        picture = view.colour.copy()
        lit = AMBIENT + DIFFUSE * np.maximum(self._normal[drawn] @ LIGHT_DIRECTION, 0.0)
        picture[drawn] = np.minimum(self._albedo[self._hit[drawn]] * lit[:, None], 1.0) * 255.0
        return picture.reshape(self._size, self._size, 3)

    def segment(self, data: mujoco.MjData, camera: str) -> NDArray[np.int32]:
        """Geom id of every pixel, int32 [H, W]; -1 where no geom is."""
        view = self._views[camera]
        self._cast(data, view.origin, view.rays, static=False)
        moving = (self._hit >= 0) & (self._distance < view.distance)
        return np.where(moving, self._hit, view.geom).reshape(self._size, self._size)

    def close(self) -> None:
        """Nothing to free; here so that both renderers are used alike."""

    def _cast(self, data: mujoco.MjData, origin: NDArray, rays: NDArray, static: bool) -> None:
        mujoco.mj_multiRay(
            self._model,
            data,
            origin,
            rays.reshape(-1),
            None,
            static,
            -1,
            self._hit,
            self._distance,
            self._normal.reshape(-1),
            len(rays),
            mujoco.mjMAXVAL,
        )

    def _make_view(self, data: mujoco.MjData, camera: str) -> _View:
        camera_id = self._model.camera(camera).id
        origin = data.cam_xpos[camera_id].copy()
        axes = data.cam_xmat[camera_id].reshape(3, 3)  # columns: right, up, backwards
        half = np.tan(np.deg2rad(self._model.cam_fovy[camera_id]) / 2)
        pixel = ((np.arange(self._size) + 0.5) / self._size * 2 - 1) * half
        right, up = np.meshgrid(pixel, -pixel)
        rays = np.stack([right, up, -np.ones_like(right)], axis=-1).reshape(-1, 3) @ axes.T
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)

        hit, distance, normal = self._cast_static_geoms(data, origin, rays)
        elevation = np.clip(rays[:, 2:], 0, 1)
        colour = SKY_HORIZON * (1 - elevation) + SKY_ZENITH * elevation
        seen = hit >= 0
        points = origin + rays * np.where(seen, distance, 0.0)[:, None]
        lit = AMBIENT + DIFFUSE * np.maximum(normal @ LIGHT_DIRECTION, 0.0)
        table = self._model.geom("table").id
        checker = (np.floor(points[:, :2] / CHECKER_SIZE_M).sum(axis=1) % 2 == 0) & (hit == table)
        surface = self._albedo[hit] * lit[:, None] * np.where(checker, CHECKER_SHADE, 1.0)[:, None]
        colour = np.where(seen[:, None], np.minimum(surface, 1.0), colour)
        return _View(origin, rays, (colour * 255).astype(np.uint8), hit, np.where(seen, distance, np.inf))

    def _cast_static_geoms(
        self, data: mujoco.MjData, origin: NDArray, rays: NDArray
    ) -> tuple[NDArray, NDArray, NDArray]:
        """Rays against static geoms alone. MuJoCo can leave out static geoms but not moving ones: put those in a group that is off."""
        groups, moving = self._model.geom_group.copy(), ~self._static
        self._model.geom_group[moving] = mujoco.mjNGROUP - 1
        enabled = np.ones(mujoco.mjNGROUP, np.uint8)
        enabled[-1] = 0
        hit, distance, normal = np.empty(len(rays), np.int32), np.empty(len(rays)), np.zeros((len(rays), 3))
        try:
            mujoco.mj_multiRay(
                self._model,
                data,
                origin,
                rays.reshape(-1),
                enabled,
                1,
                -1,
                hit,
                distance,
                normal.reshape(-1),
                len(rays),
                mujoco.mjMAXVAL,
            )
        finally:
            self._model.geom_group[:] = groups
        return hit, distance, normal
