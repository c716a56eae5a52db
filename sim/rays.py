"""Rays from a camera through its pixels, and the surfaces that they meet.

MuJoCo casts the rays. This module adds OpenGL's rules. Faces that look away from the camera are not drawn, nor is
anything before the near plane or beyond the far plane.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.scene import CHECKER
from sim.visible import ONLY_SHOWN, geom_halves, only

_ALL = 1e10  # meters; with a cutoff, MuJoCo drops a plane whose middle is further away
_BEYOND_M = 1e-6  # a ray that passes through a surface starts again this much behind it
CONVEX = [
    getattr(mujoco.mjtGeom, f"mjGEOM_{name}").value for name in ("SPHERE", "CAPSULE", "ELLIPSOID", "CYLINDER", "BOX")
]
"""Geom types whose faces all look away from a camera inside."""


@dataclass(frozen=True)
class Rays:
    """The rays of one camera, row by row from the top left."""

    origin: NDArray[np.float64]  # [3]
    axes: NDArray[np.float64]  # [3, 3], columns: right, up, backwards
    middle: NDArray[np.float64]  # [2], tangents of the angles right and up to the middle of the picture
    slope: NDArray[np.float64]  # [2], half the picture's width and height, in tangents
    directions: NDArray[np.float64]  # [N, 3], unit length
    stretch: NDArray[np.float64]  # [N], length of a ray per meter of depth
    near: float  # depth of the near plane, meters
    far: float  # depth of the far plane, meters


@dataclass(frozen=True)
class Hits:
    """What the rays met."""

    geom: NDArray[np.int32]  # [N], -1 for nothing
    distance: NDArray[np.float64]  # [N] meters
    normal: NDArray[np.float64]  # [N, 3]

    def __getitem__(self, rays: NDArray[np.intp]) -> "Hits":
        return Hits(self.geom[rays], self.distance[rays], self.normal[rays])

    def put(self, rays: NDArray[np.intp], other: "Hits") -> None:
        """Replace what these rays met."""
        self.geom[rays], self.distance[rays], self.normal[rays] = other.geom, other.distance, other.normal


def camera_rays(model: mujoco.MjModel, data: mujoco.MjData, camera: str, image_size: int) -> Rays:
    """Return the rays through the middles of a camera's pixels, at its present pose and with its present optics.

    A camera with a sensor size has its own focal lengths and principal point; the picture is stretched to a square.
    """
    camera_id = model.camera(camera).id
    axes = data.cam_xmat[camera_id].reshape(3, 3).copy()
    sensor, lens = model.cam_sensorsize[camera_id], model.cam_intrinsic[camera_id].astype(np.float64)
    if sensor[1]:
        slope, middle = sensor / 2 / lens[:2], lens[2:] / lens[:2] * (1.0, -1.0)
    else:
        slope, middle = np.full(2, np.tan(np.deg2rad(model.cam_fovy[camera_id]) / 2)), np.zeros(2)
    pixel = (np.arange(image_size) + 0.5) / image_size * 2 - 1
    right, up = np.meshgrid(pixel * slope[0] + middle[0], -pixel * slope[1] + middle[1])
    directions = np.stack([right, up, -np.ones_like(right)], axis=-1).reshape(-1, 3) @ axes.T
    stretch = np.linalg.norm(directions, axis=1, keepdims=True)
    near, far = (float(model.stat.extent * plane) for plane in (model.vis.map.znear, model.vis.map.zfar))
    origin = data.cam_xpos[camera_id].copy()
    return Rays(origin, axes, middle, slope, directions / stretch, stretch[:, 0], near, far)


class Caster:
    """Casts rays at the geoms of a compiled model, as its sizes and their places in their bodies are now.

    Kinematics were computed at least once in ``data``.
    """

    def __init__(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._model = model
        # Published figures of our own scenes used MuJoCo's spheres, which leave out a pixel now and then. Their
        # pictures stay unchanged.
        self._keeps_spheres = any(model.texture(number).name == CHECKER for number in range(model.ntex))
        halves, body = geom_halves(model), model.geom_bodyid
        frame = data.ximat[body].reshape(-1, 3, 3).transpose(0, 2, 1)  # [G, 3, 3], world to body
        turn = frame @ data.geom_xmat.reshape(-1, 3, 3)
        offset = (frame @ (data.geom_xpos - data.xipos[body])[..., None])[..., 0]
        middle = offset + np.einsum("gij,gj->gi", turn, model.geom_aabb[:, :3])
        reach = np.einsum("gij,gj->gi", np.abs(turn), halves)
        low, high = np.full((model.nbody, 3), np.inf), np.full((model.nbody, 3), -np.inf)
        np.minimum.at(low, body, middle - reach)
        np.maximum.at(high, body, middle + reach)
        (self._bodies,) = np.nonzero(model.body_bvhadr >= 0)
        self._boxes, low, high = model.body_bvhadr[self._bodies], low[self._bodies], high[self._bodies]
        self._middles = ((low + high) / 2)[..., None]  # [B, 3, 1]
        self._spheres = np.concatenate([low, (high - low) / 2], axis=1)  # [B, 6], middle in the world and half sizes
        self._mujocos = model.bvh_aabb[self._boxes]
        resized = ~np.isclose(halves, model.geom_aabb[:, 3:]).all(axis=1)
        self._resized = np.unique(body[resized])

    def cast(
        self,
        data: mujoco.MjData,
        origin: NDArray[np.float64],
        directions: NDArray[np.float64],
        geoms: NDArray[np.bool_],
    ) -> Hits:
        """Nearest surface along each ray from one point, whichever way it faces. Kinematics must be up to date.

        Args:
            data: State of the model.
            origin: Where the rays start, [3].
            directions: Unit vectors [N, 3].
            geoms: Mask [G] of the geoms to meet.
        """
        n, model, vectors = len(directions), self._model, directions.reshape(-1)
        geom, distance, normal = np.empty(n, np.int32), np.empty(n), np.empty(3 * n)
        with self._complete(data, geoms):
            mujoco.mj_multiRay(model, data, origin, vectors, ONLY_SHOWN, True, -1, geom, distance, normal, n, _ALL)
        return Hits(geom, distance, normal.reshape(-1, 3))

    def look(self, data: mujoco.MjData, rays: Rays, pixels: NDArray[np.intp], geoms: NDArray[np.bool_]) -> Hits:
        """Return what OpenGL draws in some pixels of a camera. Arguments as of `cast`, and the indices of the pixels
        [N]."""
        directions, stretch = rays.directions[pixels], rays.stretch[pixels]
        hits = self.cast(data, rays.origin, directions, geoms)
        away = np.einsum("ni,ni->n", hits.normal, directions) > 0
        (passed,) = np.nonzero((away | (hits.distance < rays.near * stretch)) & (hits.geom >= 0))
        for geom in np.unique(hits.geom[passed]).tolist():
            through = passed[hits.geom[passed] == geom]
            if self._model.geom_type[geom] in CONVEX:  # its other faces look away too
                others = geoms.copy()
                others[geom] = False
                hits.put(through, self.look(data, rays, pixels[through], others))
            else:
                hits.put(through, self._walk(data, rays, pixels[through], geoms))
        hits.geom[hits.distance > rays.far * stretch] = -1
        return hits

    def _walk(self, data: mujoco.MjData, rays: Rays, pixels: NDArray[np.intp], geoms: NDArray[np.bool_]) -> Hits:
        """As `look`, ray by ray: each starts at the near plane, and again behind every face that looks away."""
        hits = Hits(np.full(len(pixels), -1, np.int32), np.full(len(pixels), -1.0), np.zeros((len(pixels), 3)))
        geom, normal = np.empty(1, np.int32), np.empty(3)
        with self._complete(data, geoms):
            for ray, pixel in enumerate(pixels.tolist()):
                direction, travelled, step = rays.directions[pixel], rays.near * rays.stretch[pixel], 0.0
                while step >= 0:
                    start = rays.origin + direction * travelled
                    step = mujoco.mj_ray(self._model, data, start, direction, ONLY_SHOWN, True, -1, geom, normal)
                    if step >= 0 and normal @ direction <= 0:
                        hits.geom[ray], hits.distance[ray], hits.normal[ray] = geom[0], travelled + step, normal
                        break
                    travelled += step + _BEYOND_M
        return hits

    @contextmanager
    def _complete(self, data: mujoco.MjData, geoms: NDArray[np.bool_]) -> Iterator[None]:
        """Let rays meet these geoms [G], all of them, and no others.

        MuJoCo skips a body whose bounding sphere a ray misses. Its sphere leaves out geoms that collide with nothing.
        It is not turned with the body (at least up to 3.9) and misses geoms that grew. Parts of a picture would be
        missing. MuJoCo also skips a geom with a color of its own if its material is invisible.
        """
        if self._keeps_spheres:
            with only(self._model, geoms):
                yield
            return
        model, materials = self._model, self._model.geom_matid.copy()
        addresses = model.body_bvhadr[self._resized]
        self._spheres[:, :3] = (data.ximat[self._bodies].reshape(-1, 3, 3) @ self._middles)[..., 0]
        model.bvh_aabb[self._boxes] = self._spheres
        model.body_bvhadr[self._resized], model.geom_matid[:] = -1, -1
        try:
            with only(model, geoms):
                yield
        finally:
            model.bvh_aabb[self._boxes] = self._mujocos
            model.body_bvhadr[self._resized], model.geom_matid[:] = addresses, materials
