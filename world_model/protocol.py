"""The one protocol of world models: the simulator and the learned one take each other's place.

Short rollouts, films, the Gymnasium environment, ``play --world``, the out-of-distribution check and the benchmarks
share it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.dimensions import UNDECLARED, Pair
from vla_rl.core.types import Float32Array, Uint8Array
from vla_rl.data.cache import FrameCache


@dataclass(frozen=True)
class OneStep:
    """What a robot or simulator observes now, as the only step of an episode. It has columns of a `FrameCache`."""

    images: Mapping[str, Uint8Array]
    state: Float32Array
    task: str = ""


class Observations(NamedTuple):
    """B moments: steps of recorded episodes, or now.

    Attributes:
        steps: Columns with one row per step.
        frames: int64 [B], rows of the moments.
    """

    steps: FrameCache | OneStep
    frames: NDArray[np.int64]

    @classmethod
    def live(cls, observation: Mapping[str, Any], task: str = "") -> "Observations":
        """Return what an environment shows now, from ``{"pixels": {camera: image}, "agent_pos": state}``, and the
        sentence of its task.
        """
        images = {camera: np.asarray(image)[None] for camera, image in observation["pixels"].items()}
        now = OneStep(images, np.asarray(observation["agent_pos"], np.float32)[None], task)
        return cls(now, np.zeros(1, np.int64))

    def tasks(self) -> list[str]:
        """Return the sentence of each moment."""
        if isinstance(self.steps, OneStep):
            return [self.steps.task] * len(self.frames)
        return self.steps.tasks_of(self.frames)

    def at(self, rows: Tensor) -> "Observations":
        """Return some of the moments, by their number."""
        return self._replace(frames=self.frames[rows.cpu().numpy()])

    def pictures(self, cameras: tuple[str, ...]) -> Tensor:
        """Return uint8 [B, cameras, H, W, 3]."""
        return torch.from_numpy(np.stack([self.steps.images[camera][self.frames] for camera in cameras], 1))


class Prediction[State](NamedTuple):
    """What follows the actions of B rows.

    Attributes:
        state: After them.
        success: [B], probability that the task succeeds within them.
        disagreement: Computes how uncertain the model is, [B] from 0 on. It is computed only on request.
    """

    state: State
    success: Tensor
    disagreement: Callable[[], Tensor]


class WorldModel[State](Protocol):
    """A world in which actions can be tried. A state has B rows and is never changed in place.

    Policies that act in it read its ``features``, the Gymnasium environment its ``proprioception``.
    """

    @property
    def members(self) -> int:
        """M, number of ensemble members. Each is a world of its own."""
        ...

    def encode(self, observations: Observations, member: Tensor | None = None) -> State:
        """Return the state at B moments. Each row goes on in the world of its member, int64 [B]; None: in the mean."""
        ...

    def predict(self, state: State, actions: Tensor) -> Prediction[State]:
        """Predict what follows C actions in raw units, [B, C, A], sent one after the other."""
        ...

    def decode(self, state: State) -> Tensor:
        """Return pictures of a state, uint8 [B, cameras, H, W, 3]."""
        ...


@dataclass(frozen=True)
class WorldSpec:
    """The robot and task that a world model imagines.

    Attributes:
        env_id: the environment or robot.
        task: the task sentence.
        cameras: names, in the order of the pictures.
        image_size: height and width, pixels, equal for all cameras.
        state_dim: S.
        action_dim: A.
        control_hz: frames per second.
        max_steps: where imagined episodes are truncated.
        action_low, action_high: bounds of the actions, A numbers each.
        action_kind: per action dimension, ``absolute`` (a target) or ``delta`` (a step); empty: all absolute.
        gripper_dims: action dimensions that are grippers.
        dimensions: Names and units of state and action, which imagined episodes carry too.
    """

    env_id: str
    task: str
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    state_dim: int
    action_dim: int
    control_hz: float
    max_steps: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    action_kind: tuple[str, ...] = ()
    gripper_dims: tuple[int, ...] = ()
    dimensions: Pair = (UNDECLARED, UNDECLARED)
