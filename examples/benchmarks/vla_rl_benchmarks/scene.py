"""What the tasks of this package share: pictures drawn only on demand, and random draws that nothing disturbs."""

import importlib
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.experts.base import CorrelatedNoise, expert_rng
from sim.rendering import Renderer
from vla_rl.core.errors import UserError


class SceneEnv(gymnasium.Env[dict[str, Any], NDArray[np.float32]], ABC):
    """A MuJoCo scene with a sparse reward: 1 at success, which ends the episode.

    Args:
        image_size: Height and width of the pictures, pixels.
        pictures: Whether the policy sees pictures. If not, its state holds the objects too, and nothing is drawn.

    Attributes:
        drawing: Whether `reset` and `step` draw. While it is False, observations repeat the last pictures. The control
            loop draws only where the policy looks, with `draw_now`.
    """

    cameras: ClassVar[Mapping[str, str]]  # name for the policy -> name in the model
    renderer: Renderer | None = None

    def __init__(self, image_size: int, pictures: bool) -> None:
        self.image_size, self.with_pictures = image_size, pictures
        self.drawing = True
        self._pictures: dict[str, NDArray[np.uint8]] = {}
        # Without "rgb_array" nothing takes what `render` draws for a camera.
        self.metadata = {**self.metadata, "render_modes": ["rgb_array"] if pictures else []}
        self.render_mode = "rgb_array" if pictures else None

    @abstractmethod
    def _draw(self, camera: str) -> NDArray[np.uint8]:
        """Picture uint8 [H, W, 3] of the present state, by a camera of the model."""

    def draw_now(self) -> dict[str, NDArray[np.uint8]]:
        """Pictures of the present state, by camera, uint8 [H, W, 3]; none where the policy sees none."""
        shown = self.cameras if self.with_pictures else {}
        self._pictures = {name: self._draw(camera) for name, camera in shown.items()}
        return dict(self._pictures)

    def render(self) -> NDArray[np.uint8]:
        """Picture of the first camera, uint8 [H, W, 3]."""
        return self._draw(next(iter(self.cameras.values())))

    def close(self) -> None:
        """Free the renderer."""
        if self.renderer is not None:
            self.renderer.close()

    def _observation(self, state: NDArray[np.floating[Any]]) -> dict[str, Any]:
        observed: dict[str, Any] = {"agent_pos": state.astype(np.float32)}
        if self.with_pictures:
            observed["pixels"] = self.draw_now() if self.drawing or not self._pictures else dict(self._pictures)
        return observed

    def _space(self, n_state: int) -> gymnasium.spaces.Dict:
        picture = gymnasium.spaces.Box(0, 255, (self.image_size, self.image_size, 3), np.uint8)
        parts: dict[str, gymnasium.Space[Any]] = {
            "agent_pos": gymnasium.spaces.Box(-np.inf, np.inf, (n_state,), np.float32)
        }
        if self.with_pictures:
            parts["pixels"] = gymnasium.spaces.Dict(dict.fromkeys(self.cameras, picture))
        return gymnasium.spaces.Dict(parts)


class StepExpert(ABC):
    """Scripted solution of a task whose actions begin with three steps of the hand.

    Arguments and methods as in `sim.experts.base.Expert`; the environment has its last action in ``last_action``.
    """

    meters_per_action: ClassVar[float]

    def __init__(self, env: Any, action_noise: float = 0.0) -> None:
        self.env = env.unwrapped
        self.action_noise = action_noise
        self.pace = 1.0
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines the noise."""
        self._noise = CorrelatedNoise(expert_rng(seed), self.action_noise / self.meters_per_action, (3,))

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the clean action (the label) and the one to send, both float32 [A] and within bounds."""
        clean = self._plan()
        clean[:3] *= self.pace
        sent = clean.copy()
        sent[:3] = np.clip(sent[:3] + self._noise.draw(), -1.0, 1.0)
        return clean.astype(np.float32), sent.astype(np.float32)

    def last_sent(self) -> NDArray[np.float64]:
        """Return the action of the last step, float64 [A]."""
        return np.asarray(self.env.last_action, np.float64)

    @abstractmethod
    def _plan(self) -> NDArray[np.float64]:
        """Return the action of the present state, float64 [A] within bounds, as a new array."""

    @abstractmethod
    def progress(self) -> float:
        """Return how much of the task is done, 0 to 1."""


@contextmanager
def numpy_seeded(seed: int) -> Iterator[None]:
    """Seed numpy's global state, from which some suites draw, and restore it afterwards."""
    before = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(before)  # noqa: NPY002


@contextmanager
def quiet() -> Iterator[None]:
    """Keep warnings and log lines of a suite out of ours; its errors are shown."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def import_suite(module: str, extra: str) -> ModuleType:
    """Import a module of a suite.

    Raises:
        UserError: The suite is not installed; the message says how to install it.
    """
    try:
        with quiet():
            return importlib.import_module(module)
    except ImportError as error:
        raise UserError(
            f"this task needs the package {module.partition('.')[0]!r} ({error}). Install it: "
            f"uv pip install -e 'examples/benchmarks[{extra}]'"
        ) from error


def aim(model: mujoco.MjModel, camera: str, eye: ArrayLike, at: ArrayLike, field: float) -> None:
    """Put a camera somewhere and point it at something; `field` is its vertical field of view in degrees."""
    forward = np.subtract(at, eye) / np.linalg.norm(np.subtract(at, eye))
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, forward), -forward], axis=1)
    camera_id = model.camera(camera).id
    model.cam_pos[camera_id], model.cam_fovy[camera_id] = eye, field
    model.cam_mode[camera_id] = mujoco.mjtCamLight.mjCAMLIGHT_FIXED  # it may follow a body
    mujoco.mju_mat2Quat(model.cam_quat[camera_id], axes.reshape(-1))
