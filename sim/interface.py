"""What all environments of this package share, ours and the adapted ones: cameras, arguments, observation space."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from sim.rendering import Renderer
from vla_rl.core.errors import UserError, did_you_mean

CAMERAS = ("front", "top")
ABSOLUTE, DELTA = "absolute", "delta"
"""What a number of an action means: a target, which holds still when it is repeated, or a step, where 0 does. Every
environment declares it per dimension: ``action_kind``, with ``gripper_dims`` the dimensions that are grippers and
``rest_action(state)`` the action that keeps everything where it is. It also declares what each number is called and in
which unit it is: ``state_names``, ``state_units``, ``action_names`` and ``action_units``.
"""


StepResult = tuple[dict[str, Any], float, bool, bool, dict[str, Any]]
"""Observation, reward, terminated, truncated, info."""


class CameraEnv(gymnasium.Env[dict[str, Any], NDArray[np.float32]], ABC):
    """The constructor that all environments share.

    Args:
        difficulty: 0 (easy) to 1 (hard). A benchmark whose tasks have just one accepts any.
        image_size: height and width of the pictures, in pixels.
        renderer: "raycast" (no graphics library, same bytes on every machine), "egl", or "auto": the ray caster, or EGL
            for scenes that only EGL can draw.
        cameras: which of `camera_names` to draw; in most scenes "front" and "top".
        render_mode: "rgb_array", the only one: `render` returns a picture.

    Attributes:
        drawing: whether `reset` and `step` draw, which they do from the start. While it is False, their observations
            repeat the last pictures that were drawn. A caller that acts in chunks, or is blind, saves most of a step's
            time. Set it to True before the step whose pictures are wanted, or call `draw_now` after it.
        camera_names: names that ``cameras`` may have.
        with_pictures: whether the policy sees pictures. A class with a state that says everything sets it to False
            before it calls this constructor. There are no cameras then, and `draw_now` draws nothing.

    Raises:
        UserError: an argument that does not fit, or a renderer that does not load.
    """

    renderer: Renderer | None = None
    camera_names: ClassVar[Sequence[str]] = CAMERAS
    with_pictures = True
    max_episode_steps: int
    elapsed_steps: int

    def __init__(
        self,
        difficulty: float = 0.5,
        image_size: int = 64,
        renderer: str = "auto",
        cameras: Sequence[str] = CAMERAS,
        render_mode: str | None = "rgb_array",
    ) -> None:
        _check_arguments(difficulty, image_size, cameras, self.camera_names, render_mode)
        self.difficulty, self.image_size, self.cameras = float(difficulty), image_size, tuple(cameras)
        self.render_mode = render_mode
        if not self.with_pictures:  # without "rgb_array" nothing takes what `render` draws for a camera
            self.metadata, self.render_mode, self.cameras = {**self.metadata, "render_modes": []}, None, ()
        self.drawing = True
        self._pictures: dict[str, NDArray[np.uint8]] = {}
        self._build(renderer)

    @abstractmethod
    def _build(self, renderer: str) -> None:
        """Make the model, the renderer of this name and the spaces."""

    @abstractmethod
    def _draw(self, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of the present state."""

    def render(self) -> NDArray[np.uint8]:
        """Picture of the first camera, uint8 [H, W, 3]."""
        return self._draw(self.cameras[0])

    def close(self) -> None:
        if self.renderer is not None:
            self.renderer.close()

    def _result(self, success: bool) -> StepResult:
        """What `step` returns: success ends an episode with reward 1, the time limit cuts it."""
        truncated = not success and self.elapsed_steps >= self.max_episode_steps
        return self._observe(), float(success), success, truncated, {"is_success": success}

    @abstractmethod
    def _observe(self) -> dict[str, Any]:
        """Return the observation of the present state."""

    def pictures(self) -> dict[str, NDArray[np.uint8]]:
        """Return pictures by camera, uint8 [H, W, 3]: the present ones, or the last ones while `drawing` is False."""
        return self.draw_now() if self.drawing or not self._pictures else dict(self._pictures)

    def draw_now(self) -> dict[str, NDArray[np.uint8]]:
        """Return pictures of the present state, whatever `drawing` says."""
        self._pictures = {camera: self._draw(camera) for camera in self.cameras}
        return dict(self._pictures)

    def _observation(self, state: NDArray[np.floating[Any]]) -> dict[str, Any]:
        pixels = {"pixels": self.pictures()} if self.cameras else {}
        return {**pixels, "agent_pos": state.astype(np.float32)}


def _check_arguments(
    difficulty: float, image_size: int, cameras: Sequence[str], known: Sequence[str], render_mode: str | None
) -> None:
    """Raises UserError if one of the arguments that every environment takes does not fit."""
    if not (isinstance(difficulty, int | float) and 0.0 <= difficulty <= 1.0):
        raise UserError(f"difficulty is {difficulty!r}; it must be a number from 0 (easy) to 1 (hard).")
    if not (isinstance(image_size, int) and image_size >= 16):
        raise UserError(f"image_size is {image_size!r}; it must be a whole number of pixels, 16 or more.")
    for camera in cameras:
        if camera not in known:
            raise UserError(f"There is no camera {camera!r}.{did_you_mean(camera, known)}")
    if not cameras or len(set(cameras)) != len(cameras):
        raise UserError(f"cameras is {tuple(cameras)}; name each of one or both of {', '.join(known)} once.")
    if render_mode not in (None, "rgb_array"):
        raise UserError(f"render_mode is {render_mode!r}; it must be 'rgb_array' or None.")


def observation_space(
    cameras: Sequence[str], image_size: int, n_state: int, state_bound: float
) -> gymnasium.spaces.Dict:
    """Space of `{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [S]}`; without cameras, of the state."""
    box = gymnasium.spaces.Box(0, 255, (image_size, image_size, 3), np.uint8)
    pixels: dict[str, gymnasium.Space[Any]] = dict.fromkeys(cameras, box)
    seen: dict[str, gymnasium.Space[Any]] = {"pixels": gymnasium.spaces.Dict(pixels)} if pixels else {}
    agent_pos = gymnasium.spaces.Box(-state_bound, state_bound, (n_state,), np.float32)
    return gymnasium.spaces.Dict({**seen, "agent_pos": agent_pos})
