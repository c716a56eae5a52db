"""`FlowVLAPolicy`: the model behind the loop's `Policy` protocol. Numpy in, numpy out; one instance belongs to one thread."""

import numpy as np
import torch
from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.flow_vla.model import FlowVLA, Indicator


def flow_noise(seed: int, tick: int, horizon: int, action_dim: int) -> Float32Array:
    """The noise of the chunk planned at a tick, float32 [H, A]: a function of (seed, tick), so that an episode replays exactly."""
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, tick % 2**64]))
    return generator.standard_normal((horizon, action_dim), dtype=np.float32)


class FlowVLAPolicy:
    """Plans chunks with a `FlowVLA`.

    Args:
        model: put into eval mode; its weights may be replaced in place between calls.
        device: where the model runs.
        version: of the weights.
        steps: Euler steps, default from the model's config.
    """

    def __init__(self, model: FlowVLA, device: str = "cpu", version: int = 0, steps: int | None = None) -> None:
        self.model = model.to(device).eval()
        self.device = device
        self.version = version
        self.steps = steps or model.config.sampling_steps
        self._text: dict[str, Tensor] = {}
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Start an episode: the sampling noise of each tick follows from the seed."""
        self._seed = seed
        self._chunk_id = 0

    @torch.inference_mode()
    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        """Plan a chunk that starts at the observation's tick.

        Args:
            observation: the newest observation.
            committed: float32 [d, A]; the chunk begins with exactly these actions.

        Raises:
            UserError: for a missing camera, a wrong shape, or a longer committed prefix than a chunk.
        """
        model = self.model
        self._check(observation, committed)
        images = {name: self._tensor(observation.images[name]) for name in model.spec.cameras}
        indicator = torch.tensor([int(Indicator.POSITIVE)], device=self.device) if model.config.indicator else None
        prefix = model.encode(images, self._tensor(observation.state), self._tokens(observation.task), indicator)
        noise = self._tensor(flow_noise(self._seed, observation.tick, model.config.horizon, model.spec.action_dim))
        fixed = None if committed is None or len(committed) == 0 else self._tensor(committed)
        actions = model.sample(prefix, noise, fixed, self.steps)[0].cpu().numpy()
        chunk = ActionChunk(actions, observation.tick, self._chunk_id, self.version)
        self._chunk_id += 1
        return chunk

    def _tensor(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self.device)[None]

    def _tokens(self, task: str) -> Tensor:
        if task not in self._text:
            self._text[task] = self.model.tokenize([task]).to(self.device)
        return self._text[task]

    def _check(self, observation: Observation, committed: Float32Array | None) -> None:
        spec, config = self.model.spec, self.model.config
        for camera in spec.cameras:
            if camera not in observation.images:
                raise UserError(
                    f"the policy needs camera {camera!r}, the observation has {sorted(observation.images)}; check the camera names"
                )
            found = observation.images[camera].shape
            if found != (*spec.image_size, 3):
                raise UserError(
                    f"camera {camera!r} gives {list(found)}, the policy was trained on {[*spec.image_size, 3]}; set the image size"
                )
        if observation.state.shape != (spec.state_dim,):
            raise UserError(
                f"the state is {list(observation.state.shape)}, the policy was trained on [{spec.state_dim}]"
            )
        if committed is not None and (committed.shape[1:] != (spec.action_dim,) or len(committed) > config.horizon):
            raise UserError(
                f"committed actions are {list(committed.shape)}, expected [d <= {config.horizon}, {spec.action_dim}]"
            )
