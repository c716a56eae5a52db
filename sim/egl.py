"""Renderer through EGL, for machines with a graphics card or Mesa.

Shadows, reflections, sky and multisampling are switched off: they cost most of the time and teach a policy nothing.
MuJoCo chooses its graphics library when it is first imported, by the environment variable MUJOCO_GL, so a probe in
another process finds out whether EGL loads before this process commits itself.

Not thread-safe: an EGL context belongs to the thread that made it.
"""

import functools
import importlib
import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError

PROBE_TIMEOUT_S = 60.0
_PROBE = "from mujoco.egl import GLContext; context = GLContext(8, 8); context.make_current(); context.free()"


@functools.cache
def why_egl_does_not_load() -> str:
    """The last line of EGL's complaint, or "" if it loads; tried in another process, as a bad driver can abort it."""
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


def _free(mjr: mujoco.MjrContext, context: Any) -> None:
    context.make_current()  # else what is freed are the pictures and lists of whichever renderer drew last
    mjr.free()
    context.free()


class EglRenderer:
    """Draws fixed cameras of a model with OpenGL.

    Args:
        model: compiled model. Its visual quality settings are lowered.
        cameras: names of the cameras that will be drawn.
        image_size: height and width in pixels.

    Raises:
        UserError: EGL does not load on this machine.
    """

    def __init__(self, model: mujoco.MjModel, cameras: Sequence[str], image_size: int) -> None:
        complaint = why_egl_does_not_load()
        if complaint:
            raise UserError(
                f"EGL does not load here ({complaint}). Install Mesa or a graphics driver, or use renderer='raycast', "
                "which needs neither."
            )
        model.vis.quality.offsamples = 0
        model.vis.quality.shadowsize = 0
        model.vis.global_.offwidth = max(model.vis.global_.offwidth, image_size)
        model.vis.global_.offheight = max(model.vis.global_.offheight, image_size)
        self._size = image_size
        self._cameras = {name: model.camera(name).id for name in cameras}
        self._model = model
        self._option = mujoco.MjvOption()
        self._option.sitegroup[:] = 0  # sites mark goals that a policy must not see
        self._context: Any = importlib.import_module("mujoco.egl").GLContext(image_size, image_size)
        self._context.make_current()
        self._mjr = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._mjr)
        self._scene = mujoco.MjvScene(model, model.ngeom + 16)
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
        # Left to the garbage collector, the context can outlive the library that frees it.
        self._free = weakref.finalize(self, _free, self._mjr, self._context)

    def render(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of `data`, whose kinematics must be up to date."""
        self._draw(data, camera)
        return self._pixels[::-1].copy()

    def segment(self, data: mujoco.MjData, camera: str) -> NDArray[np.int32]:
        """Geom id of every pixel, int32 [H, W]; -1 where no geom is."""
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

    def refresh(self, data: mujoco.MjData) -> None:
        """Nothing to do: every picture is drawn whole. Here so that both renderers are used alike."""

    def close(self) -> None:
        """Free the context. Drawing afterwards is an error."""
        self._free()

    def _draw(self, data: mujoco.MjData, camera: str) -> None:
        self._context.make_current()
        self.update_scene(data, camera)
        mujoco.mjr_render(self._viewport, self._scene, self._mjr)
        self.read_pixels()

    def update_scene(self, data: mujoco.MjData, camera: str) -> None:
        """Put what there is to draw into the scene: microseconds, so that cameras need not share one."""
        self._camera.fixedcamid = self._cameras[camera]
        mujoco.mjv_updateScene(
            self._model, data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )

    def read_pixels(self) -> None:
        """Copy the drawn picture from the graphics library: microseconds too."""
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._mjr)
