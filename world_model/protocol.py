"""The one protocol of world models: the simulator, the feature dynamics and the video model take each other's place.

Short rollouts, films, the Gymnasium environment, ``play --world``, the out-of-distribution check and the benchmarks
know no more of a world model than this.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.types import Float32Array, Uint8Array

if TYPE_CHECKING:
    from vla_rl.data.cache import FrameCache


@dataclass(frozen=True)
class OneStep:
    """What a robot or simulator observes now, as the only step of an episode. It has the columns of a `FrameCache`."""

    images: Mapping[str, Uint8Array]
    state: Float32Array
    action_sent: Float32Array = field(default_factory=lambda: np.zeros((1, 0), np.float32))
    position: NDArray[np.int32] = field(default_factory=lambda: np.zeros(1, np.int32))


class Observations(NamedTuple):
    """B moments: steps of recorded episodes. A world model with a memory also reads the steps before them.

    Attributes:
        steps: Columns with one row per step.
        frames: int64 [B], rows of the moments.
    """

    steps: "FrameCache | OneStep"
    frames: NDArray[np.int64]

    @classmethod
    def live(cls, observation: Mapping[str, Any]) -> "Observations":
        """Return what an environment shows now, from ``{"pixels": {camera: image}, "agent_pos": state}``."""
        images = {camera: np.asarray(image)[None] for camera, image in observation["pixels"].items()}
        return cls(OneStep(images, np.asarray(observation["agent_pos"], np.float32)[None]), np.zeros(1, np.int64))

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
    """A world in which actions can be tried. A state has B rows and is never changed in place."""

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
