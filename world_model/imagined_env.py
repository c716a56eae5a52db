"""The video world model as a Gymnasium environment, which robots, the control loop and the recorder take for any other.

An observation is ``{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [S]}``; actions are those of the real
robot. An episode replays bit by bit. Not thread-safe.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array
from world_model.heads import SUCCESS_THRESHOLD
from world_model.model import WorldModel
from world_model.open_loop import sampler_noise
from world_model.windows import LatentEpisodes

_START = 0x7374  # separates the draw of the start from other draws of the same seed
STATE_BOUND = 1e6  # of the observation space, in the robot's units: imagined states are not clipped


class ImaginedEnv(gymnasium.Env[dict[str, Any], NDArray[np.float32]]):
    """An imagined environment, for example as the argument of `robot_io.env_robot.EnvRobot`.

    An episode begins at the first frame of a real episode that the seed draws. It is truncated at the time limit. With
    ``info["is_lost"]`` it is also truncated where a picture is stranger than those of nearly all real successes
    (`Autoencoder.strangeness`). Later frames would be invented (the HALT state of MOReL, arXiv 2005.05951). MOReL
    punishes that; here the outcome is unknown, since a world model also loses itself where a policy does well.

    Args:
        model: In eval mode.
        data: Real episodes, encoded by the model's autoencoder.

    Attributes:
        begun_in: Index of the real episode that the present one begins in.
    """

    _latents: Tensor
    _state: Tensor
    _seen: dict[str, NDArray[np.uint8]]
    _seed: int
    _tick: int
    _ended: bool

    def __init__(self, model: WorldModel, data: LatentEpisodes) -> None:
        spec = model.spec
        self.model, self.data, self.begun_in = model, data, 0
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": spec.control_hz}
        self.render_mode = "rgb_array"
        box = gymnasium.spaces.Box(0, 255, (*spec.image_size, 3), np.uint8)
        pixels: dict[str, gymnasium.Space[Any]] = dict.fromkeys(spec.cameras, box)
        agent_pos = gymnasium.spaces.Box(-STATE_BOUND, STATE_BOUND, (spec.state_dim,), np.float32)
        self.observation_space = gymnasium.spaces.Dict(
            {"pixels": gymnasium.spaces.Dict(pixels), "agent_pos": agent_pos}
        )
        self._low, self._high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
        self.action_space = gymnasium.spaces.Box(self._low, self._high)
        self.task_description = spec.task
        self.action_kind = spec.action_kind or ("absolute",) * spec.action_dim
        self.gripper_dims = spec.gripper_dims
        state, action = spec.dimensions
        self.state_names, self.state_units = state.names, state.units
        self.action_names, self.action_units = action.names, action.units
        self._last_action: Float32Array = np.zeros(spec.action_dim, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        own = int(np.random.default_rng().integers(2**31)) if seed is None else seed
        self.begun_in = int(np.random.default_rng([own, _START]).integers(len(self.data.episodes)))
        self.task_description = self.data.episodes[self.begun_in].task
        frame = int(self.data.start[self.begun_in])
        self._last_action = self._rest_at_start(frame)
        latents, state = self.data.latents[frame : frame + 1], self.data.state[frame : frame + 1]
        return self._begin(latents, state, own), {"is_success": False}

    @torch.no_grad()
    def begin_at(self, observation: dict[str, Any], seed: int) -> dict[str, Any]:
        """Begin at an observation of the real robot or simulator, with the sampler's noise of a seed."""
        images = np.stack([observation["pixels"][camera] for camera in self.model.spec.cameras])
        latents = self.model.autoencoder.encode(torch.from_numpy(images)[None].to(self.model.device))
        state = torch.from_numpy(np.asarray(observation["agent_pos"], np.float32))[None]
        return self._begin(latents, state, seed)

    @torch.no_grad()
    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if not np.isfinite(action).all():
            raise UserError("an action is not finite; check the policy")
        self._last_action = np.clip(np.asarray(action, np.float32), self._low, self._high)
        model, device = self.model, self.model.device
        noise = sampler_noise(np.array([self._seed]), np.array([self._tick]), *self._latents.shape[1:])
        sent = torch.from_numpy(self._last_action)[None].to(device)
        predicted = model.dynamics.step(self._memory, self._latents, self._state, sent, noise.to(device))
        self._latents, self._state = predicted.latents, predicted.state
        self._tick += 1
        images = model.autoencoder.decode(self._latents)
        probability = float(predicted.outcome.success_logit.sigmoid())
        lost = not self._ended and bool(model.autoencoder.strangeness(images) > model.autoencoder.familiar)
        success = not (self._ended or lost) and probability >= SUCCESS_THRESHOLD
        truncated = lost or (not success and self._tick >= model.spec.max_steps)
        self._ended |= success or truncated
        info = {"is_success": success, "is_lost": lost, "success_probability": probability}
        return self._observe(images), float(success), success, truncated, info

    def render(self) -> NDArray[np.uint8]:
        """Return the cameras side by side, uint8 [H, cameras W, 3]."""
        return np.concatenate(list(self._seen.values()), axis=1)

    def rest_action(self, state: NDArray[np.float32]) -> Float32Array:
        """Return the action that keeps the robot where it is, float32 [A]: the last target."""
        del state
        return self._last_action.copy()

    @torch.no_grad()
    def _begin(self, latents: Tensor, state: Tensor, seed: int) -> dict[str, Any]:
        """Begin at latents [1, N, D] and a state [1, S]."""
        self._latents, self._state = latents.to(self.model.device), state.to(self.model.device)
        self._memory = self.model.dynamics.begin(self._latents, self._state)
        self._seed, self._tick, self._ended = seed, 0, False
        return self._observe(self.model.autoencoder.decode(self._latents))

    def _rest_at_start(self, frame: int) -> Float32Array:
        """Return the targets before the first action: where the robot is, from its state or from the first action."""
        spec, first = self.model.spec, self.data.action[frame].numpy()
        delta = np.array([kind == "delta" for kind in self.action_kind])
        here = self.data.state[frame, : spec.action_dim].numpy() if spec.state_dim >= spec.action_dim else first
        return np.where(delta, 0.0, here).astype(np.float32)

    def _observe(self, images: Tensor) -> dict[str, Any]:
        self._seen = dict(zip(self.model.spec.cameras, images[0].cpu().numpy(), strict=True))
        return {"pixels": dict(self._seen), "agent_pos": self._state[0].cpu().numpy().copy()}
