"""The world model as Gymnasium environments: a vector of them, and one alone that robots, the control loop and the
recorder take for any other environment.

An observation is ``{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [S]}``; actions are the real robot's.
Every environment of the vector has its own seed, start and sampler noise: what it imagines does not depend on the
others beside it, up to rounding; alone, it replays bit by bit. Not thread-safe.
"""

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array
from world_model.heads import SUCCESS_THRESHOLD
from world_model.model import WorldModel
from world_model.open_loop import sampler_noise
from world_model.windows import LatentEpisodes

_START = 0x7374  # apart from other draws of the same seed
STATE_BOUND = 1e6  # of the observation space, in the robot's units: imagined states are not clipped


class ImaginedVectorEnv(VectorEnv[dict[str, Any], NDArray[np.float32], NDArray[Any]]):
    """B imagined environments that step together.

    Finished environments are not reset by themselves: call ``reset(options={"reset_mask": bool [B]})``. ``reset``
    takes a seed (each environment then has seed + index) or one seed each; the seed draws the real episode whose first
    frame is the start. Beside the task's limit of time, an episode is truncated (``info["is_lost"]``) where its picture
    is stranger than those of nearly all real successes (`Autoencoder.strangeness`): what comes then is invented (the
    HALT state of MOReL, arXiv 2005.05951). MOReL punishes that; here the outcome is unknown, since a world model also
    loses itself where a policy does well.

    Args:
        model: in eval mode.
        data: real episodes, encoded by the model's autoencoder.
        num_envs: B.
    """

    def __init__(self, model: WorldModel, data: LatentEpisodes, num_envs: int) -> None:
        spec = model.spec
        self.model, self.data, self.num_envs = model, data, num_envs
        self.metadata = {"render_fps": spec.control_hz, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode, self.spec = None, None
        box = gymnasium.spaces.Box(0, 255, (*spec.image_size, 3), np.uint8)
        pixels: dict[str, gymnasium.Space[Any]] = dict.fromkeys(spec.cameras, box)
        agent_pos = gymnasium.spaces.Box(-STATE_BOUND, STATE_BOUND, (spec.state_dim,), np.float32)
        self.single_observation_space = gymnasium.spaces.Dict(
            {"pixels": gymnasium.spaces.Dict(pixels), "agent_pos": agent_pos}
        )
        self._low, self._high = np.array(spec.action_low, np.float32), np.array(spec.action_high, np.float32)
        self.single_action_space = gymnasium.spaces.Box(self._low, self._high)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        # Placeholders until the first reset.
        self._latents = data.latents[:1].repeat(num_envs, 1, 1).to(model.device)
        self._state = data.state[:1].repeat(num_envs, 1).to(model.device)
        with torch.no_grad():
            self._memory = model.dynamics.begin(self._latents, self._state)
        self._seeds = np.arange(num_envs, dtype=np.int64)
        self._tick = np.zeros(num_envs, np.int64)
        self._ended = np.ones(num_envs, bool)
        self.begun_in = np.zeros(num_envs, np.int64)  # index of the real episode whose first frame it was
        self.last_action: Float32Array = np.zeros((num_envs, spec.action_dim), np.float32)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        options = options or {}
        mask = np.asarray(options.get("reset_mask", np.ones(self.num_envs, bool)), bool)
        rows = np.flatnonzero(mask)
        given = [seed + row if isinstance(seed, int) else None for row in range(self.num_envs)]
        if isinstance(seed, Sequence):
            given = list(seed)
        for row in rows:
            own = given[row]
            self._seeds[row] = np.random.default_rng().integers(2**31) if own is None else own
            start = np.random.default_rng([self._seeds[row], _START])
            self.begun_in[row] = start.integers(len(self.data.episodes))
        if mask.all():
            self._memory.step = 0  # the same slots again, so that an episode replays bit by bit
        self._begin(rows)
        self._tick[rows] = 0
        self._ended[rows] = False
        return self._observe(), {"is_success": np.zeros(self.num_envs, bool)}

    @torch.no_grad()
    def step(
        self, actions: NDArray[np.float32]
    ) -> tuple[dict[str, Any], NDArray[Any], NDArray[Any], NDArray[Any], dict[str, Any]]:
        if not np.isfinite(actions).all():
            raise UserError("an action is not finite; check the policy")
        actions = np.clip(np.asarray(actions, np.float32), self._low, self._high)
        device = self.model.device
        noise = sampler_noise(self._seeds, self._tick, *self._latents.shape[1:])
        predicted = self.model.dynamics.step(
            self._memory, self._latents, self._state, torch.from_numpy(actions).to(device), noise.to(device)
        )
        self._latents, self._state = predicted.latents, predicted.state
        self.last_action = actions
        self._tick += 1
        outcome = predicted.outcome
        probability = outcome.success_logit.sigmoid().cpu().numpy()
        pictures = self.model.autoencoder.decode(self._latents)
        coder = self.model.autoencoder
        lost = (coder.strangeness(pictures) > coder.familiar).cpu().numpy() & ~self._ended
        success = (probability >= SUCCESS_THRESHOLD) & ~self._ended & ~lost
        truncated = lost | (~success & (self._tick >= self.model.spec.max_steps))
        self._ended |= success | truncated
        info = {"is_success": success, "success_probability": probability, "reward_head": outcome.reward.cpu().numpy()}
        return self._observe(pictures), success.astype(np.float64), success, truncated, info | {"is_lost": lost}

    @torch.no_grad()
    def begin_at(self, row: int, images: NDArray[np.uint8], state: NDArray[np.float32], seed: int) -> dict[str, Any]:
        """Begin one environment at what a robot or a simulator senses now, as the first frame of an episode.

        Args:
            row: which.
            images: uint8 [cameras, H, W, 3], in the order of the spec's cameras.
            state: float32 [S].
            seed: of the sampler's noise.

        Returns:
            the observations of all environments.
        """
        device = self.model.device
        own = torch.tensor([row], device=device)
        self._latents[own] = self.model.autoencoder.encode(torch.from_numpy(images)[None].to(device))
        self._state[own] = torch.from_numpy(np.asarray(state, np.float32))[None].to(device)
        self._memory.forget(own)
        self._seeds[row], self._ended[row] = seed, False
        self._tick[row] = 0
        return self._observe()

    def close_extras(self, **kwargs: Any) -> None:
        """Nothing to close."""

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Put the rows at the first frames of the episodes that they begin in."""
        data, device, own = self.data, self.model.device, torch.from_numpy(rows).to(self.model.device)
        frames = data.start[self.begun_in[rows]]
        self._memory.forget(own)
        self._latents[own], self._state[own] = data.latents[frames].to(device), data.state[frames].to(device)
        for row, frame in zip(rows, frames.tolist(), strict=True):
            self.last_action[row] = self._rest_at_start(frame)

    def _rest_at_start(self, frame: int) -> Float32Array:
        """Where nothing was sent yet, targets are where the robot is: the state, or what was sent first."""
        spec, first = self.model.spec, self.data.action[frame].numpy()
        delta = np.array([kind == "delta" for kind in spec.action_kind] or [False] * spec.action_dim)
        here = self.data.state[frame, : spec.action_dim].numpy() if spec.state_dim >= spec.action_dim else first
        return np.where(delta, 0.0, here).astype(np.float32)

    @torch.no_grad()
    def _observe(self, pictures: Tensor | None = None) -> dict[str, Any]:
        decoded = self.model.autoencoder.decode(self._latents) if pictures is None else pictures
        images = decoded.cpu().numpy()
        pixels = {camera: images[:, index] for index, camera in enumerate(self.model.spec.cameras)}
        return {"pixels": pixels, "agent_pos": self._state.cpu().numpy().copy()}


class ImaginedEnv(gymnasium.Env[dict[str, Any], NDArray[np.float32]]):
    """One imagined environment: what `robot_io.env_robot.EnvRobot` and the control loop expect of any.

    Arguments as `ImaginedVectorEnv`.
    """

    def __init__(self, model: WorldModel, data: LatentEpisodes) -> None:
        self.vector = ImaginedVectorEnv(model, data, 1)
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": model.spec.control_hz}
        self.render_mode = "rgb_array"
        self.observation_space = self.vector.single_observation_space
        self.action_space = self.vector.single_action_space
        self.task_description = model.spec.task
        self.action_kind = model.spec.action_kind or ("absolute",) * model.spec.action_dim
        self.gripper_dims = model.spec.gripper_dims
        state, action = model.spec.dimensions
        self.state_names, self.state_units = state.names, state.units
        self.action_names, self.action_units = action.names, action.units
        self._seen: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        observation, _ = self.vector.reset(seed=[seed])
        self.task_description = self.vector.data.episodes[self.vector.begun_in[0]].task
        return self._first(observation), {"is_success": False}

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.vector.step(np.asarray(action)[None])
        own: dict[str, Any] = {name: bool(info[name][0]) for name in ("is_success", "is_lost")}
        own["success_probability"] = float(info["success_probability"][0])
        return self._first(observation), float(reward[0]), bool(terminated[0]), bool(truncated[0]), own

    def begin_at(self, observation: dict[str, Any], seed: int) -> dict[str, Any]:
        """Begin at an observation of the real robot or simulator, with the sampler's noise of a seed."""
        images = np.stack([observation["pixels"][camera] for camera in self.vector.model.spec.cameras])
        return self._first(self.vector.begin_at(0, images, observation["agent_pos"], seed))

    def render(self) -> NDArray[np.uint8]:
        """The cameras side by side, uint8 [H, cameras W, 3]."""
        return np.concatenate(list(self._seen["pixels"].values()), axis=1)

    def rest_action(self, state: NDArray[np.float32]) -> Float32Array:
        """The action that keeps the robot where it is, float32 [A]: the last target."""
        del state
        return self.vector.last_action[0].copy()

    def _first(self, observation: dict[str, Any]) -> dict[str, Any]:
        pixels = {camera: image[0] for camera, image in observation["pixels"].items()}
        self._seen = {"pixels": pixels, "agent_pos": observation["agent_pos"][0]}
        return self._seen
