"""A trainable policy behind the loop's `Policy` protocol. Numpy in, numpy out; one instance belongs to one thread."""

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.flow import flow_noise
from vla_rl.core.types import ActionChunk, Float32Array, Observation, filled_up

if TYPE_CHECKING:
    from vla_rl.policies.trainable import TrainablePolicy

Inputs = tuple[dict[str, Tensor], Tensor, Tensor]
"""Images, state and text of one observation, [1, ...]."""


class ActingPolicy:
    """Plans chunks with a `TrainablePolicy`.

    Args:
        model: put into eval mode; its weights may be replaced in place between calls.
        device: where the model runs.
        version: of the weights.
    """

    def __init__(self, model: "TrainablePolicy", device: str = "cpu", version: int = 0) -> None:
        self.model = model.to(device).eval()
        self.device = device
        self.version = version
        self._action_size = model.spec.action_sizes
        self._mean_state = np.asarray(model.statistics.state.mean, np.float32)
        self._mean_action = np.asarray(model.statistics.action.mean, np.float32)
        self._text: dict[str, Tensor] = {}
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Start an episode: the sampling noise of each tick follows from the seed."""
        self._seed = seed
        self._chunk_id = 0

    @torch.no_grad()
    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick.

        Args:
            observation: the newest observation.
            committed: float32 [d, A]; the chunk begins with exactly these actions.

        Raises:
            UserError: for a missing camera, a wrong shape, or a longer committed prefix than a chunk.
        """
        inputs = self._inputs(observation)
        fixed = None if committed is None or len(committed) == 0 else self._actions(committed)
        actions = self._draw(inputs, self._noise(observation.tick), fixed)
        if fixed is not None:  # also of a policy that was not trained to go on from them
            actions[:, : fixed.shape[1]] = fixed[:, : actions.shape[1]]
        return self._chunk(observation, actions)

    def _draw(self, inputs: Inputs, noise: Tensor, committed: Tensor | None) -> Tensor:
        return self.model.draw(*inputs, noise, committed)

    def _inputs(self, observation: Observation) -> Inputs:
        self.model.spec.check(observation)
        images = {name: self._tensor(observation.images[name]) for name in self.model.spec.cameras}
        return images, self._tensor(filled_up(observation.state, self._mean_state)), self._tokens(observation.task)

    def _noise(self, tick: int) -> Tensor:
        """[1, H, A], of this tick."""
        return self._tensor(flow_noise(self._seed, tick, self.model.horizon, self.model.spec.action_dim))

    def _chunk(self, observation: Observation, actions: Tensor) -> ActionChunk:
        own = actions[0, :, : self._action_size[observation.state.size]].float().cpu().numpy()
        chunk = ActionChunk(own, observation.tick, self._chunk_id, self.version)
        self._chunk_id += 1
        return chunk

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)[None]

    def _tokens(self, task: str) -> Tensor:
        if task not in self._text:
            self._text[task] = self.model.tokenize([task]).to(self.device)
        return self._text[task]

    def _actions(self, actions: Float32Array) -> Tensor:
        """Given actions, [d, A of this robot] -> [1, d, A]."""
        horizon, sizes = self.model.horizon, sorted(set(self._action_size.values()))
        if actions.ndim != 2 or actions.shape[1] not in sizes or len(actions) > horizon:
            size = " or ".join(map(str, sizes))
            raise UserError(f"given actions are {list(actions.shape)}, expected [at most {horizon}, {size}]")
        return self._tensor(filled_up(actions.astype(np.float32, copy=False), self._mean_action))
