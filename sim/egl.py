"""Renderer through EGL, for machines with a graphics card or Mesa.

Shadows, reflections, sky and multisampling are switched off: they cost most of the time and carry no information for a
policy. MuJoCo chooses its graphics library at its first import, by the environment variable MUJOCO_GL. A probe in
another process therefore finds out whether EGL loads before this process commits itself.

Not thread-safe: an EGL context belongs to the thread that made it.
"""

import atexit
import functools
import hashlib
import importlib
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.hulls import with_hulls, with_volume
from sim.visible import ONLY_SHOWN, Visibility, only
from vla_rl.core.errors import UserError

PROBE_TIMEOUT_S = 60.0
_PROBE = "from mujoco.egl import GLContext; context = GLContext(8, 8); context.make_current(); context.free()"


@functools.cache
def why_egl_does_not_load() -> str:
    """Return the last line of EGL's complaint, or "". It is tried in a process, as a bad driver can abort one."""
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE],
            env={**os.environ, "MUJOCO_GL": "egl"},
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_TIMEOUT_S:.0f} s"
    lines = probe.stderr.strip().splitlines() or [f"exit code {probe.returncode}"]
    return "" if probe.returncode == 0 else lines[-1]


class _Assets:
    """An OpenGL context with the meshes and textures of a model. Its last holder frees it."""

    def __init__(self, model: mujoco.MjModel, image_size: int) -> None:
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = 0
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, image_size)
        model.vis.global_.offheight = max(model.vis.global_.offheight, image_size)
        self.context: Any = importlib.import_module("mujoco.egl").GLContext(image_size, image_size)
        self.context.make_current()
        self.mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self.mjr)
        # Left to the garbage collector, or to weakref's own hook at exit, the context can outlive its library.
        release = weakref.finalize(self, _free, self.mjr, self.context)
        release.atexit = False
        atexit.register(release)


def _free(mjr: mujoco.MjrContext, context: Any) -> None:
    context.make_current()  # else what is freed are the pictures and lists of whichever renderer drew last
    mjr.free()
    context.free()


_shared: weakref.WeakValueDictionary[bytes, _Assets] = weakref.WeakValueDictionary()


def _assets(model: mujoco.MjModel, image_size: int, hulls: Sequence[str]) -> _Assets:
    """Return the assets of a model with some meshes as hulls, shared by all renderers of this thread that draw the
    same.

    A context of robosuite's Lift holds 170 MB, and a worker with eight environments would hold eight.
    """
    planes = model.geom_type == mujoco.mjtGeom.mjGEOM_PLANE  # a list of its own for each, as far as the eye can see
    depends = (os.getpid(), threading.get_ident(), image_size, sorted(hulls), model.stat.extent, model.vis.map.zfar)
    key = hashlib.blake2b(repr((depends, model.geom_size[planes].tolist(), model.geom_matid[planes].tolist())).encode())
    for name in dir(model):
        if name.startswith(("mesh_", "tex_", "mat_tex", "hfield_", "skin_", "flex_")):
            key.update(np.ascontiguousarray(getattr(model, name)).data)
    assets = _shared.get(key.digest())
    if assets is None:
        assets = _shared[key.digest()] = _Assets(with_hulls(model, hulls) if hulls else model, image_size)
    return assets


class EglRenderer:
    """Draws some cameras of a compiled model with OpenGL, and lowers the model's visual quality settings.

    Other arguments as of `sim.rendering.Renderer`.

    Raises:
        UserError: EGL does not load on this machine.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        cameras: Sequence[str],
        image_size: int,
        geom_groups: Sequence[int] | None = None,
        hulls: Sequence[str] = (),
    ) -> None:
        complaint = why_egl_does_not_load()
        if complaint:
            raise UserError(
                f"EGL does not load here ({complaint}). Install Mesa or a graphics driver, or use renderer='raycast', "
                "which needs neither."
            )
        self._size = image_size
        self._cameras = {name: model.camera(name).id for name in cameras}
        self._model, self._visibility = model, Visibility(model, geom_groups)
        self._option = mujoco.MjvOption()
        self._option.geomgroup[:] = ONLY_SHOWN
        self._option.sitegroup[:] = 0  # sites mark goals that a policy must not see
        self._hulls = [model.mesh(name).id for name in with_volume(model, hulls)]
        self._assets: _Assets | None = _assets(model, image_size, hulls)
        others = model.nflex + model.nskin + 2 * model.nwrap + model.ntendon  # a tendon is several pieces
        self._scene = mujoco.MjvScene(model, model.ngeom + others + 16)
        for flag in (
            mujoco.mjtRndFlag.mjRND_SHADOW,
            mujoco.mjtRndFlag.mjRND_REFLECTION,
            mujoco.mjtRndFlag.mjRND_SKYBOX,
        ):
            self._scene.flags[flag] = False
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._viewport = mujoco.MjrRect(0, 0, image_size, image_size)
        self._pixels = np.empty((image_size, image_size, 3), np.uint8)

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of `data`, whose kinematics and cameras must be up to date (`mj_forward`)."""
        self._draw(data, camera)
        return self._pixels[::-1].copy()

    def segment(self, data: mujoco.MjData, camera: str) -> NDArray[np.int32]:
        """Geom id of every pixel, int32 [H, W]; -1 where no geom is. Translucent geoms count as opaque."""
        flags = (mujoco.mjtRndFlag.mjRND_SEGMENT, mujoco.mjtRndFlag.mjRND_IDCOLOR)
        for flag in flags:
            self._scene.flags[flag] = True
        self._draw(data, camera)
        for flag in flags:
            self._scene.flags[flag] = False
        codes = self._pixels[::-1].astype(np.int32) @ (1, 1 << 8, 1 << 16)  # [H, W], 0 is the background
        geoms = np.full(self._scene.ngeom + 1, -1, np.int32)
        for drawn in self._scene.geoms[: self._scene.ngeom]:
            if drawn.objtype == mujoco.mjtObj.mjOBJ_GEOM:
                geoms[drawn.segid + 1] = drawn.objid
        return geoms[codes]

    def close(self) -> None:
        """Free the context, unless another renderer shares it. Drawing afterwards is an error."""
        self._assets = None

    def _draw(self, data: mujoco.MjData, camera: str) -> None:
        assert self._assets is not None, "this renderer is closed"
        self._assets.context.make_current()
        self.update_scene(data, camera)
        mujoco.mjr_render(self._viewport, self._scene, self._assets.mjr)
        self.read_pixels()

    def update_scene(self, data: mujoco.MjData, camera: str) -> None:
        """Put what there is to draw into the scene: microseconds, so that cameras need not share one."""
        self._camera.fixedcamid = self._cameras[camera]
        bodies = mujoco.mjtCatBit.mjCAT_STATIC.value | mujoco.mjtCatBit.mjCAT_DYNAMIC.value  # no arrows, no beams
        addresses = self._model.mesh_texcoordadr[self._hulls]
        self._model.mesh_texcoordadr[self._hulls] = -1  # a hull has no texture
        with only(self._model, self._visibility.geoms(self._model)):
            mujoco.mjv_updateScene(self._model, data, self._option, None, self._camera, bodies, self._scene)
        self._model.mesh_texcoordadr[self._hulls] = addresses

    def read_pixels(self) -> None:
        """Copy the drawn picture from the graphics library: microseconds too."""
        assert self._assets is not None, "this renderer is closed"
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._assets.mjr)
