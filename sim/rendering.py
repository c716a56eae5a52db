"""Renderers by name."""

from collections.abc import Sequence

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.egl import EglRenderer
from sim.hulls import with_hulls
from sim.raycast import RaycastRenderer
from sim.visible import DEFAULT_GROUPS, LOOKS, OPTICS
from vla_rl.core.errors import UserError, did_you_mean

RENDERERS = ("auto", "raycast", "egl")


class Renderer:
    """Draws the cameras of a MuJoCo model, by "raycast", "egl", or "auto".

    "auto" is the ray caster, or EGL where a scene has what only EGL draws: skins, flexible bodies, spatial tendons,
    orthographic cameras. At the sizes that policies see, the ray caster is as fast as EGL on a processor. It draws the
    same bytes on every machine, so what was recorded on one can be replayed on another. EGL is faster from about 128
    pixels on, and where cameras move.

    Both draw the same geoms (see `sim.visible`) at the poses, sizes and colors of the moment. If the environment
    compiles a new model, the renderer follows it.

    Args:
        name: One of `RENDERERS`.
        model: Compiled model.
        data: A data of this model in which kinematics were computed at least once.
        cameras: Names of the cameras to draw.
        image_size: Height and width in pixels.
        hulls: Names of meshes to draw as their coarse convex hulls, see `sim.hulls`.
        geom_groups: Numbers of the geom groups to draw, as in MuJoCo's `MjvOption.geomgroup`. None: groups 0 to 2
            without the collision shapes in group 0 that have visual geoms beside them.

    Raises:
        UserError: Unknown name, camera, mesh or group; EGL does not load here; or "raycast" cannot draw this scene.
    """

    def __init__(
        self,
        name: str,
        model: mujoco.MjModel,
        data: mujoco.MjData,
        cameras: Sequence[str],
        image_size: int,
        hulls: Sequence[str] = (),
        geom_groups: Sequence[int] | None = None,
    ) -> None:
        if name not in RENDERERS:
            raise UserError(f"There is no renderer {name!r}.{did_you_mean(name, RENDERERS)}")
        self._name, self._cameras, self._size, self._hulls, self._groups = name, cameras, image_size, hulls, geom_groups
        self._model, self._renderer = data.model, self._make(model, data)

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of a state whose kinematics and cameras are up to date (`mj_forward`)."""
        return self._of(data).render(data, camera)

    def segment(self, data: mujoco.MjData, camera: str) -> NDArray[np.int32]:
        """Geom id of every pixel, int32 [H, W]; -1 where no geom is."""
        return self._of(data).segment(data, camera)

    def close(self) -> None:
        """Free what the graphics library holds."""
        self._renderer.close()

    def _of(self, data: mujoco.MjData) -> EglRenderer | RaycastRenderer:
        if data.model is not self._model:
            outdated = self._renderer
            self._model, self._renderer = data.model, self._make(data.model, data)
            outdated.close()
        for present, copy in self._followed:
            copy[:] = present
        return self._renderer

    def _make(self, model: mujoco.MjModel, data: mujoco.MjData) -> EglRenderer | RaycastRenderer:
        names = [model.camera(camera).name for camera in range(model.ncam)]
        for camera in self._cameras:
            if camera not in names:
                raise UserError(f"The model has no camera {camera!r}.{did_you_mean(camera, names)}")
        only_egl = _only_egl_draws(model, self._cameras)
        if only_egl and self._name == "raycast":
            raise UserError(f"renderer='raycast' does not draw {only_egl}. Use renderer='egl' or 'auto'.")
        self._followed = []
        if self._name == "egl" or only_egl:
            return EglRenderer(model, self._cameras, self._size, self._groups, self._hulls)
        if self._hulls:
            source, model = model, with_hulls(model, self._hulls)  # what a task changes, the copy has to follow
            self._followed = [(getattr(source, name), getattr(model, name)) for name in (*LOOKS, *OPTICS)]
        return RaycastRenderer(model, data, self._cameras, self._size, self._hulls, self._groups)


def _only_egl_draws(model: mujoco.MjModel, cameras: Sequence[str]) -> str:
    """What the scene has that the ray caster cannot draw, in words; "" if nothing."""
    spatial = model.wrap_type[model.tendon_adr] != mujoco.mjtWrap.mjWRAP_JOINT
    found = {
        "skins": np.isin(model.skin_group, DEFAULT_GROUPS) & (model.skin_rgba[:, 3] > 0),
        "flexible bodies": np.isin(model.flex_group, DEFAULT_GROUPS) & (model.flex_rgba[:, 3] > 0),
        "spatial tendons": np.isin(model.tendon_group, DEFAULT_GROUPS) & (model.tendon_rgba[:, 3] > 0) & spatial,
        "orthographic cameras": [
            model.cam_projection[model.camera(name).id] == mujoco.mjtProjection.mjPROJ_ORTHOGRAPHIC for name in cameras
        ],
    }
    return ", ".join(what for what, there in found.items() if np.any(there))
