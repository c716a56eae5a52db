"""Renderer that needs no graphics library: rays cast by MuJoCo, shaded in numpy.

The default everywhere, because it draws the same bytes on every machine. A camera's view of the fixed geoms is kept as
a background until camera or scene change. A picture then costs only the rays through the rectangles of the other geoms.

Every scene is lit by one distant lamp of this module's own, whatever its lights are. A texture is drawn as its mean
color. Sites are not drawn. A translucent geom shows what is behind it.

Not thread-safe: one renderer belongs to one environment.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.hulls import Hull, with_volume
from sim.rays import CONVEX, Caster, Hits, Rays, camera_rays
from sim.scene import CHECKER
from sim.visible import LOOKS, OPTICS, Visibility, geom_halves, geom_rgba, uses_material

LIGHT_DIRECTION = np.array([0.30, -0.55, 0.78]) / np.linalg.norm([0.30, -0.55, 0.78])  # towards the light
AMBIENT, DIFFUSE = 0.50, 0.55
CHECKER_SIZE_M, CHECKER_SHADE = 0.04, 0.93
BACKDROP = (0.70, 0.76, 0.80)  # where nothing is
_OPAQUE = 0.995  # OpenGL blends what is less opaque
_CORNERS = np.array(list(itertools.product((-1.0, 1.0), repeat=3))).T  # [3, 8]


def geom_colors(model: mujoco.MjModel) -> NDArray[np.float64]:
    """Color of every geom, [G, 3] from 0 to 1; as in MuJoCo, a material's color unless the geom was given its own.

    A texture is drawn as its mean. Its pattern is finer than a policy's pixels, and without its color most textured
    things would be white on a white table. The texture `CHECKER` of our own scenes is drawn by `shade`.
    """
    colors, from_material, means = geom_rgba(model)[:, :3], uses_material(model), np.ones((model.nmat, 3))
    for material, texture in enumerate(model.mat_texid[:, mujoco.mjtTextureRole.mjTEXROLE_RGB]):
        if texture >= 0 and model.texture(texture).name != CHECKER:
            means[material] = _mean_color(model, texture)
    colors[from_material] *= means[model.geom_matid[from_material]]
    return colors


def _mean_color(model: mujoco.MjModel, texture: int) -> NDArray[np.float64]:
    """Mean color of a texture, [3] from 0 to 1."""
    start, n_channels = model.tex_adr[texture], model.tex_nchannel[texture]
    size = model.tex_height[texture] * model.tex_width[texture] * n_channels
    pixels = model.tex_data[start : start + size].reshape(-1, n_channels)
    return pixels.mean(axis=0)[:3] / 255.0


def shade(
    model: mujoco.MjModel, rays: NDArray[np.float64], origin: NDArray[np.float64], hits: Hits
) -> NDArray[np.float64]:
    """Return colors [N, 3] from 0 to 1 in the light of one distant lamp."""
    lit = AMBIENT + DIFFUSE * np.maximum(hits.normal @ LIGHT_DIRECTION, 0.0)
    (checked,) = np.nonzero(_is_checkered(model)[hits.geom] & (hits.geom >= 0))
    ground = origin[:2] + rays[checked, :2] * hits.distance[checked, None]
    lit[checked[np.floor(ground / CHECKER_SIZE_M).sum(axis=1) % 2 == 0]] *= CHECKER_SHADE
    color = geom_colors(model)[hits.geom] * lit[:, None]
    color[hits.geom < 0] = BACKDROP
    return np.minimum(color, 1.0)


def _is_checkered(model: mujoco.MjModel) -> NDArray[np.bool_]:
    """Mask [G] of the geoms whose material has the texture of our own scenes' table."""
    textures = model.mat_texid[:, mujoco.mjtTextureRole.mjTEXROLE_RGB]
    named = [texture >= 0 and model.texture(texture).name == CHECKER for texture in textures]
    return np.array([*named, False])[model.geom_matid]  # -1, no material, finds the last


@dataclass(frozen=True)
class _Layer:
    """Geoms that are cast together, onto what is behind them."""

    geoms: NDArray[np.intp]  # [D]
    middles: NDArray[np.float64]  # [D, 3], of the box around each, in its frame
    halves: NDArray[np.float64]  # [D, 3], half sizes of these boxes
    hulls: list[Hull]  # of the first of the geoms
    cast: NDArray[np.bool_]  # [G], the others
    closed: bool  # whether those can only be seen from outside
    opacity: NDArray[np.float64] | None  # [G], None if all are opaque


@dataclass(frozen=True)
class _View:
    """One camera and the picture of everything that it sees stand still."""

    still: bytes  # poses and optics at which this was drawn
    rays: Rays
    color: NDArray[np.uint8]  # [N, 3]
    geom: NDArray[np.int32]  # [N], -1 for nothing
    distance: NDArray[np.float64]  # [N] meters, infinite where nothing is


class RaycastRenderer:
    """Draws cameras of a model. It is fast where cameras stand still and what moves is primitive geoms and hulls.

    Arguments as of `sim.rendering.Renderer`; ``hulls`` are those that `sim.hulls.with_hulls` has replaced.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        cameras: Sequence[str],
        image_size: int,
        hulls: Sequence[str] = (),
        geom_groups: Sequence[int] | None = None,
    ) -> None:
        self._model, self._size = model, image_size
        self._cameras = {name: model.camera(name).id for name in cameras}
        self._visibility = Visibility(model, geom_groups)
        self._planes = {model.mesh(name).id: Hull.of_mesh(model, name) for name in with_volume(model, hulls)}
        self._pixel = np.arange(image_size**2).reshape(image_size, image_size)
        self._looks = [getattr(model, name) for name in LOOKS]  # views of the model's memory
        self._optics = [getattr(model, name) for name in OPTICS]
        self._drawn_looks, self._views = b"", dict[str, _View]()
        for camera in cameras:
            self._view(data, camera)

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of `data`, whose kinematics and cameras must be up to date (`mj_forward`)."""
        view = self._view(data, camera)
        picture = view.color.copy()
        for layer, pixels, hits in self._cast_layers(data, view):
            lit = AMBIENT + DIFFUSE * np.maximum(hits.normal @ LIGHT_DIRECTION, 0.0)
            color = np.minimum(self._albedo[hits.geom] * lit[:, None], 255.0)
            if layer.opacity is not None:
                opacity = layer.opacity[hits.geom, None]
                color = opacity * color + (1.0 - opacity) * picture[pixels]
            picture[pixels] = color
        return picture.reshape(self._size, self._size, 3)

    def segment(self, data: mujoco.MjData, camera: str) -> NDArray[np.int32]:
        """Geom id of every pixel, int32 [H, W]; -1 where no geom is. Translucent geoms count as opaque."""
        view = self._view(data, camera)
        geom = view.geom.copy()
        for _, pixels, hits in self._cast_layers(data, view):
            geom[pixels] = hits.geom
        return geom.reshape(self._size, self._size)

    def close(self) -> None:
        """Nothing to free; here so that both renderers are used alike."""

    def _view(self, data: mujoco.MjData, camera: str) -> _View:
        """Return the background of a camera, drawn anew if anything that it depends on has changed."""
        looks = b"".join([array.tobytes() for array in self._looks])
        if looks != self._drawn_looks:
            self._drawn_looks = looks
            self._arrange(data)
        number = self._cameras[camera]
        poses = (data.geom_xpos[self._still], data.geom_xmat[self._still], data.cam_xpos[number], data.cam_xmat[number])
        still = b"".join([array.tobytes() for array in (*poses, *(optic[number] for optic in self._optics))])
        view = self._views.get(camera)
        if view is None or view.still != still:
            view = self._views[camera] = self._draw_view(data, camera, still)
        return view

    def _arrange(self, data: mujoco.MjData) -> None:
        """Sort the geoms into the background and the layers that are cast for every picture."""
        model = self._model
        drawn, opacity = self._visibility.geoms(model), geom_rgba(model)[:, 3]
        moves = model.body_weldid[model.geom_bodyid] != 0
        moves |= model.body_mocapid[model.body_rootid[model.geom_bodyid]] >= 0
        clear = drawn & (opacity < _OPAQUE)
        (self._still,) = np.nonzero(drawn & ~moves & ~clear)
        self._caster, self._views = Caster(model, data), {}
        self._albedo = geom_colors(model) * 255.0
        self._layers = [self._layer(drawn & moves & ~clear, None)]
        if clear.any():
            self._layers.append(self._layer(clear, 1.0 - (1.0 - opacity) ** 2))  # OpenGL draws them twice

    def _layer(self, geoms: NDArray[np.bool_], opacity: NDArray[np.float64] | None) -> _Layer:
        model = self._model
        mesh = np.where(geoms & (model.geom_type == mujoco.mjtGeom.mjGEOM_MESH), model.geom_dataid, -1)
        is_hull = np.isin(mesh, list(self._planes))
        cast = geoms & ~is_hull
        ids = np.concatenate([np.flatnonzero(is_hull), np.flatnonzero(cast)])
        middles, halves = model.geom_aabb[ids, :3], geom_halves(model)[ids]
        hulls = [self._planes[which] for which in mesh[is_hull].tolist()]
        closed = bool(np.isin(model.geom_type[cast], CONVEX).all())
        return _Layer(ids, middles, halves, hulls, cast, closed, opacity)

    def _cast_layers(self, data: mujoco.MjData, view: _View) -> Iterator[tuple[_Layer, NDArray[np.intp], Hits]]:
        """Layer by layer, the pixels in which it is before all that was drawn, and what their rays met."""
        distance = view.distance
        for layer in self._layers:
            pixels, hits = self._cast_layer(data, view.rays, layer, distance)
            yield layer, pixels, hits
            if layer is not self._layers[-1]:
                distance = distance.copy()
                distance[pixels] = hits.distance

    def _cast_layer(
        self, data: mujoco.MjData, rays: Rays, layer: _Layer, distance: NDArray[np.float64]
    ) -> tuple[NDArray[np.intp], Hits]:
        boxes, whole = self._boxes(data, rays, layer)
        covered = np.zeros((self._size, self._size), bool)
        for top, left, bottom, right in boxes[len(layer.hulls) :]:
            covered[top:bottom, left:right] = True
        pixels = np.flatnonzero(covered)
        if whole and layer.closed:  # nothing to look through
            hits = self._caster.cast(data, rays.origin, rays.directions[pixels], layer.cast)
        else:
            hits = self._caster.look(data, rays, pixels, layer.cast)
        (seen,) = np.nonzero((hits.geom >= 0) & (hits.distance < distance[pixels]))
        pixels, hits = pixels[seen], hits[seen]
        if not layer.hulls:
            return pixels, hits
        n = len(distance)
        nearest = Hits(np.full(n, -1, np.int32), distance.copy(), np.zeros((n, 3)))  # of all pixels
        nearest.put(pixels, hits)
        for geom, hull, (top, left, bottom, right) in zip(layer.geoms, layer.hulls, boxes, strict=False):
            if top >= bottom or left >= right:
                continue
            inside = self._pixel[top:bottom, left:right].reshape(-1)
            offset = data.geom_xpos[geom] - rays.origin
            met, away, normal = hull.cast(data.geom_xmat[geom].reshape(3, 3), offset, rays.directions[inside])
            pixels = inside[met]
            (nearer,) = np.nonzero((away < nearest.distance[pixels]) & (away >= rays.near * rays.stretch[pixels]))
            nearest.put(pixels[nearer], Hits(geom, away[nearer], normal[nearer]))
        (pixels,) = np.nonzero(nearest.geom >= 0)
        return pixels, nearest[pixels]

    def _boxes(self, data: mujoco.MjData, rays: Rays, layer: _Layer) -> tuple[list[list[int]], bool]:
        """Return top, left, bottom and right of each geom's box in pixels, and whether all lie between the planes."""
        turn = data.geom_xmat[layer.geoms].reshape(-1, 3, 3).transpose(1, 0, 2).reshape(3, -1)
        turn = (rays.axes.T @ turn).reshape(3, -1, 3)  # [3, D, 3], geom to camera
        offset = rays.axes.T @ (data.geom_xpos[layer.geoms] - rays.origin).T + (turn * layer.middles).sum(axis=2)
        corners = ((turn * layer.halves).reshape(-1, 3) @ _CORNERS).reshape(3, -1, 8) + offset[..., None]  # [3, D, 8]
        depth = -corners[2]
        near, far = depth.min(axis=1), depth.max(axis=1)
        whole = bool(((near > rays.near) & (far < rays.far)).all())
        place = corners[:2] / np.maximum(depth, 1e-6)  # tangents right and up
        low, high = place.min(axis=2), place.max(axis=2)  # [2, D]
        scale, half = 0.5 * self._size / rays.slope, 0.5 * self._size
        bounds = np.empty((len(layer.geoms), 4))  # of the pixels whose middles are covered
        np.ceil(half - 0.501 - (high[1] - rays.middle[1]) * scale[1], out=bounds[:, 0])
        np.ceil(half - 0.501 + (low[0] - rays.middle[0]) * scale[0], out=bounds[:, 1])
        np.floor(half + 0.501 - (low[1] - rays.middle[1]) * scale[1], out=bounds[:, 2])
        np.floor(half + 0.501 + (high[0] - rays.middle[0]) * scale[0], out=bounds[:, 3])
        if not whole:
            bounds[near < rays.near] = 0, 0, self._size, self._size  # it reaches past the camera
            bounds[far < rays.near] = 0  # behind the camera
        boxes: list[list[int]] = np.minimum(np.maximum(bounds, 0.0), self._size).astype(int).tolist()
        return boxes, whole

    def _draw_view(self, data: mujoco.MjData, camera: str, still: bytes) -> _View:
        rays = camera_rays(self._model, data, camera, self._size)
        background = np.zeros(self._model.ngeom, bool)
        background[self._still] = True
        hits = self._caster.look(data, rays, self._pixel.reshape(-1), background)
        color = (shade(self._model, rays.directions, rays.origin, hits) * 255).astype(np.uint8)
        return _View(still, rays, color, hits.geom, np.where(hits.geom >= 0, hits.distance, np.inf))
