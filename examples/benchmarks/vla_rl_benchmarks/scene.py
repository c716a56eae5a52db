"""What the tasks of this package share: experts that act in steps, and random draws that nothing disturbs."""

import importlib
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from sim.experts.base import CorrelatedNoise, expert_rng
from vla_rl.core.errors import UserError


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
