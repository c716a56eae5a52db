"""`LeRobotPolicy`: a lerobot policy that cannot be guided (ACT, diffusion) behind the loop's `Policy` protocol; for the
others see `vla_rl.policies.lerobot_policy`. Numpy in, numpy out; one instance belongs to one thread.
"""

import numpy as np
import torch

from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.lerobot_adapter.model import LeRobotModel


class LeRobotPolicy:
    """Plans chunks with a `LeRobotModel`.

    Args:
        model: put into eval mode.
        device: where it runs.
        version: of the weights.
    """

    def __init__(self, model: LeRobotModel, device: str = "cpu", version: int = 0) -> None:
        self.model = model.to(device).eval()
        self.device, self.version = device, version
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Start an episode: the sampling noise of each tick follows from the seed."""
        self._seed, self._chunk_id = seed, 0

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick.

        These policies were not trained to go on from a prefix: ``committed`` replaces the first actions, no more.

        Raises:
            UserError: for a missing camera or a wrong shape.
        """
        self._check(observation)
        images = {
            camera: torch.from_numpy(np.ascontiguousarray(observation.images[camera]))[None].to(self.device)
            for camera in self.model.spec.cameras
        }
        state = torch.from_numpy(np.ascontiguousarray(observation.state))[None].to(self.device)
        text = self.model.tokenize([observation.task])
        seed = int(np.random.SeedSequence([self._seed, observation.tick]).generate_state(1, np.uint64)[0] >> 2)
        actions = self.model.act(images, state, text, seed)[0].cpu().numpy().astype(np.float32)
        if committed is not None:
            actions[: len(committed)] = committed[: len(actions)]
        chunk = ActionChunk(actions, observation.tick, self._chunk_id, self.version)
        self._chunk_id += 1
        return chunk

    def _check(self, observation: Observation) -> None:
        spec = self.model.spec
        found = {name: list(image.shape) for name, image in observation.images.items() if name in spec.cameras}
        expected = {name: [*spec.image_size, 3] for name in spec.cameras}
        if found != expected or observation.state.shape != (spec.state_dim,):
            raise UserError(
                f"the policy was trained on the cameras {expected} and a state of [{spec.state_dim}], "
                f"the observation has {found} and {list(observation.state.shape)}"
            )
