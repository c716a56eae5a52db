"""Renderer that needs no graphics library: one `mujoco.mj_multiRay` call per picture, shaded in numpy.

The default everywhere, because it draws the same bytes on every machine. Geoms that cannot move are cast once per
camera and kept as a background; a picture then costs only the rays through the rectangles that the moving geoms
cover.

Not thread-safe: one renderer belongs to one environment.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.hulls import Hull

LIGHT_DIRECTION = np.array([0.30, -0.55, 0.78]) / np.linalg.norm([0.30, -0.55, 0.78])  # towards the light
AMBIENT, DIFFUSE = 0.50, 0.55
CHECKER_SIZE_M, CHECKER_SHADE = 0.04, 0.93
FAR_M = 10.0  # nothing further away is drawn
BACKDROP = (0.70, 0.76, 0.80)  # where nothing is
_SHOWN = np.array([1, 1, 1, 0, 0, 0], np.uint8)  # geom groups, as MuJoCo's own renderer has them
_CORNERS = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))  # [8, 3]


@dataclass(frozen=True)
class Rays:
    """The rays of one camera, row by row from the top left."""

    origin: NDArray[np.float64]  # [3]
    axes: NDArray[np.float64]  # [3, 3], columns: right, up, backwards
    slope: float  # tangent of half the field of view
    directions: NDArray[np.float64]  # [N, 3], unit length


@dataclass(frozen=True)
class Hits:
    """What the rays met."""

    geom: NDArray[np.int32]  # [N], -1 for nothing
    distance: NDArray[np.float64]  # [N] metres
    normal: NDArray[np.float64]  # [N, 3]


def camera_rays(model: mujoco.MjModel, data: mujoco.MjData, camera: str, image_size: int) -> Rays:
    """The rays through the middles of a camera's pixels."""
    camera_id = model.camera(camera).id
    axes = data.cam_xmat[camera_id].reshape(3, 3).copy()
    slope = float(np.tan(np.deg2rad(model.cam_fovy[camera_id]) / 2))
    pixel = ((np.arange(image_size) + 0.5) / image_size * 2 - 1) * slope
    right, up = np.meshgrid(pixel, -pixel)
    directions = np.stack([right, up, -np.ones_like(right)], axis=-1).reshape(-1, 3) @ axes.T
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    return Rays(data.cam_xpos[camera_id].copy(), axes, slope, directions)


def cast(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    origin: NDArray[np.float64],
    directions: NDArray[np.float64],
    static: bool = True,
    hidden: NDArray[np.intp] | None = None,
) -> Hits:
    """Nearest geom along each ray [N, 3] from one point.

    Args:
        model: the model.
        data: its state, with kinematics up to date.
        origin: where the rays start, [3].
        directions: unit vectors [N, 3].
        static: whether geoms that cannot move are met too.
        hidden: ids of geoms to pass through.
    """
    groups = model.geom_group.copy()
    if hidden is not None:  # MuJoCo can leave out static geoms but not moving ones, so those go where nothing is shown
        model.geom_group[hidden] = mujoco.mjNGROUP - 1
    n, vectors = len(directions), directions.reshape(-1)
    geom, distance, normal = np.empty(n, np.int32), np.empty(n), np.empty(3 * n)
    mujoco.mj_multiRay(model, data, origin, vectors, _SHOWN, static, -1, geom, distance, normal, n, FAR_M)
    if hidden is not None:
        model.geom_group[:] = groups
    return Hits(geom, distance, normal.reshape(-1, 3))


def geom_colours(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Colour of every geom, [G, 3] from 0 to 1; as in MuJoCo, a material's colour unless the geom was given its own.

    A texture is drawn as its mean: its pattern is finer than a policy's pixels, and without its colour most things
    that have one would be white on a white table. The geom called "table" keeps its colour, as `shade` draws its
    pattern.
    """
    materials = model.mat_rgba[:, :3].astype(np.float64)
    patterned = model.geom_matid[mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "table")]
    for material, texture in enumerate(model.mat_texid[:, mujoco.mjtTextureRole.mjTEXROLE_RGB]):
        if texture >= 0 and material != patterned:
            materials[material] *= _mean_colour(model, texture)
    colours = model.geom_rgba[:, :3].astype(np.float64)
    from_material = (model.geom_matid >= 0) & (colours == 0.5).all(axis=1)
    colours[from_material] = materials[model.geom_matid[from_material]]
    return colours


def _mean_colour(model: mujoco.MjModel, texture: int) -> NDArray[np.float64]:
    """Mean colour of a texture, [3] from 0 to 1."""
    start, n_channels = model.tex_adr[texture], model.tex_nchannel[texture]
    size = model.tex_height[texture] * model.tex_width[texture] * n_channels
    pixels = model.tex_data[start : start + size].reshape(-1, n_channels)
    return pixels.mean(axis=0)[:3] / 255.0


def shade(
    model: mujoco.MjModel, rays: NDArray[np.float64], origin: NDArray[np.float64], hits: Hits
) -> NDArray[np.float64]:
    """Colours [N, 3] from 0 to 1 in the light of one distant lamp."""
    lit = AMBIENT + DIFFUSE * np.maximum(hits.normal @ LIGHT_DIRECTION, 0.0)
    (checked,) = np.nonzero(hits.geom == mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "table"))
    ground = origin[:2] + rays[checked, :2] * hits.distance[checked, None]
    lit[checked[np.floor(ground / CHECKER_SIZE_M).sum(axis=1) % 2 == 0]] *= CHECKER_SHADE
    colour = geom_colours(model)[hits.geom] * lit[:, None]
    colour[hits.geom < 0] = BACKDROP
    return np.minimum(colour, 1.0)


@dataclass(frozen=True)
class _View:
    """One camera and the picture of everything static that it sees."""

    rays: Rays
    colour: NDArray[np.uint8]  # [N, 3]
    geom: NDArray[np.int32]  # [N], -1 for nothing
    distance: NDArray[np.float64]  # [N] metres, infinite where nothing is


class RaycastRenderer:
    """Draws fixed cameras of a model. It is fast where what moves is primitive geoms and convex hulls.

    Args:
        model: compiled model; cameras must be attached to the world.
        data: a data of this model in which kinematics were computed at least once.
        cameras: names of the cameras to draw.
        image_size: height and width in pixels.
        hulls: names of the meshes that `sim.hulls.with_hulls` has replaced.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        cameras: Sequence[str],
        image_size: int,
        hulls: Sequence[str] = (),
    ) -> None:
        self._model, self._size = model, image_size
        self._albedo = geom_colours(model) * 255.0
        shown = (_SHOWN[model.geom_group] > 0) & ((model.geom_rgba[:, 3] > 0) | (model.geom_matid >= 0))
        (self._moving,) = np.nonzero(shown & (model.body_weldid[model.geom_bodyid] != 0))
        middle, half = model.geom_aabb[self._moving, None, :3], model.geom_aabb[self._moving, None, 3:]
        self._corners = middle + half * _CORNERS  # [D, 8, 3], in the frame of each moving geom
        planes = {mesh: Hull.of_mesh(model, mesh) for mesh in (model.mesh(name).id for name in hulls)}
        mesh_of = np.where(model.geom_type == mujoco.mjtGeom.mjGEOM_MESH, model.geom_dataid, -1).tolist()
        self._hulls = {geom: planes[mesh_of[geom]] for geom in self._moving.tolist() if mesh_of[geom] in planes}
        self._hull_geoms = np.array(list(self._hulls)) if self._hulls else None
        self._pixel = np.arange(image_size**2).reshape(image_size, image_size)
        self._views = {name: self._make_view(data, name) for name in cameras}

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of `data`, whose kinematics must be up to date."""
        view = self._views[camera]
        pixels, hits = self._cast_moving(data, view)
        picture = view.colour.copy()
        lit = AMBIENT + DIFFUSE * np.maximum(hits.normal @ LIGHT_DIRECTION, 0.0)
        picture[pixels] = np.minimum(self._albedo[hits.geom] * lit[:, None], 255.0)
        return picture.reshape(self._size, self._size, 3)

    def segment(self, data: mujoco.MjData, camera: str) -> NDArray[np.int32]:
        """Geom id of every pixel, int32 [H, W]; -1 where no geom is."""
        view = self._views[camera]
        pixels, hits = self._cast_moving(data, view)
        geom = view.geom.copy()
        geom[pixels] = hits.geom
        return geom.reshape(self._size, self._size)

    def refresh(self, data: mujoco.MjData) -> None:
        """Draw the background anew, after static geoms were moved in the model."""
        self._views = {name: self._make_view(data, name) for name in self._views}

    def close(self) -> None:
        """Nothing to free; here so that both renderers are used alike."""

    def _cast_moving(self, data: mujoco.MjData, view: _View) -> tuple[NDArray[np.intp], Hits]:
        """The pixels in which a moving geom is in front, and what their rays met."""
        rays = view.rays
        boxes = dict(zip(self._moving.tolist(), self._boxes(data, rays), strict=True))
        covered = np.zeros((self._size, self._size), bool)
        for geom, (top, left, bottom, right) in boxes.items():
            if geom not in self._hulls:
                covered[top:bottom, left:right] = True
        pixels = np.flatnonzero(covered)
        hits = cast(self._model, data, rays.origin, rays.directions[pixels], static=False, hidden=self._hull_geoms)
        (seen,) = np.nonzero((hits.geom >= 0) & (hits.distance < view.distance[pixels]))
        pixels, hits = pixels[seen], Hits(hits.geom[seen], hits.distance[seen], hits.normal[seen])
        return self._cast_hulls(data, view, boxes, pixels, hits) if self._hulls else (pixels, hits)

    def _cast_hulls(
        self, data: mujoco.MjData, view: _View, boxes: dict[int, list[int]], pixels: NDArray[np.intp], hits: Hits
    ) -> tuple[NDArray[np.intp], Hits]:
        """`pixels` and `hits` with the moving hulls among them."""
        n, rays = len(view.distance), view.rays
        nearest = Hits(np.full(n, -1, np.int32), view.distance.copy(), np.zeros((n, 3)))  # of all pixels
        nearest.geom[pixels], nearest.distance[pixels], nearest.normal[pixels] = hits.geom, hits.distance, hits.normal
        for geom, hull in self._hulls.items():
            top, left, bottom, right = boxes[geom]
            if top >= bottom or left >= right:
                continue
            inside = self._pixel[top:bottom, left:right].reshape(-1)
            offset = data.geom_xpos[geom] - rays.origin
            met, distance, normal = hull.cast(data.geom_xmat[geom].reshape(3, 3), offset, rays.directions[inside])
            (nearer,) = np.nonzero(distance < nearest.distance[inside[met]])
            changed = inside[met[nearer]]
            nearest.geom[changed], nearest.distance[changed] = geom, distance[nearer]
            nearest.normal[changed] = normal[nearer]
        (pixels,) = np.nonzero(nearest.geom >= 0)
        return pixels, Hits(nearest.geom[pixels], nearest.distance[pixels], nearest.normal[pixels])

    def _boxes(self, data: mujoco.MjData, rays: Rays) -> list[list[int]]:
        """Top, left, bottom and right of the pixels that the bounding box of each moving geom covers."""
        rotation = rays.axes.T @ data.geom_xmat[self._moving].reshape(-1, 3, 3)  # [D, 3, 3], geom to camera
        offset = (data.geom_xpos[self._moving] - rays.origin) @ rays.axes  # [D, 3]
        corners = self._corners @ rotation.transpose(0, 2, 1) + offset[:, None]  # [D, 8, 3]
        depth = np.maximum(-corners[..., 2], 1e-6)
        scale = 0.5 * self._size / (rays.slope * depth)
        column, row = 0.5 * self._size + corners[..., 0] * scale, 0.5 * self._size - corners[..., 1] * scale
        low = np.stack([row.min(axis=1), column.min(axis=1)], axis=1) - 0.5
        high = np.stack([row.max(axis=1), column.max(axis=1)], axis=1) + 0.5
        bounds = np.clip(np.concatenate([np.floor(low), np.ceil(high)], axis=1), 0, self._size).astype(int)
        bounds[(corners[..., 2] >= 0).all(axis=1)] = 0  # behind the camera
        boxes: list[list[int]] = bounds.tolist()
        return boxes

    def _make_view(self, data: mujoco.MjData, camera: str) -> _View:
        rays = camera_rays(self._model, data, camera, self._size)
        hits = cast(self._model, data, rays.origin, rays.directions, hidden=self._moving)
        colour = (shade(self._model, rays.directions, rays.origin, hits) * 255).astype(np.uint8)
        return _View(rays, colour, hits.geom, np.where(hits.geom >= 0, hits.distance, np.inf))
