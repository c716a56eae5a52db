"""A world model as a Gymnasium environment, which robots, the control loop and the recorder take for any other.

An observation is ``{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [S]}``; actions are those of the real
robot. An episode replays bit by bit. Not thread-safe.
"""

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array
from vla_rl.data.cache import FrameCache
from world_model.protocol import Observations, WorldModel, WorldSpec

SUCCESS_THRESHOLD = 0.5  # probability from which an imagined episode has succeeded
_START = 0x7374  # separates the draw of the start from other draws of the same seed
STATE_BOUND = 1e6  # of the observation space, in the robot's units: imagined states are not clipped


class ImaginedEnv(gymnasium.Env[dict[str, Any], NDArray[np.float32]]):
    """An imagined environment, for example as the argument of `robot_io.env_robot.EnvRobot`.

    An episode begins at the first frame of a real episode that the seed draws. It is truncated at the time limit. With
    ``info["is_lost"]`` it is also truncated where the world model's disagreement is above 1. Later frames would be
    invented (the HALT state of MOReL, arXiv 2005.05951). MOReL punishes that; here the outcome is unknown, since a
    world model also loses itself where a policy does well.

    Args:
        world: A world model that predicts tick by tick. Its states have the ``proprioception``, [B, S] in raw units.
        spec: The robot and task.
        episodes: Real episodes, where imagined ones begin.

    Attributes:
        begun_in: Index of the real episode that the present one begins in.
    """

    _state: Any
    _seen: dict[str, NDArray[np.uint8]]
    _tick: int
    _ended: bool

    def __init__(self, world: WorldModel[Any], spec: WorldSpec, episodes: FrameCache) -> None:
        self.world, self.robot, self.episodes, self.begun_in = world, spec, episodes, 0
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
        self.begun_in = int(np.random.default_rng([own, _START]).integers(len(self.episodes.episodes)))
        begun = self.episodes.episodes[self.begun_in]
        self.task_description = begun.task
        self._last_action = self._rest(self.episodes.state[begun.start], self.episodes.action_sent[begun.start])
        return self._begin(Observations(self.episodes, np.array([begun.start]))), {"is_success": False}

    def begin_at(self, observation: dict[str, Any]) -> dict[str, Any]:
        """Begin at an observation of the real robot or simulator."""
        self.task_description = self.robot.task
        self._last_action = self._rest(np.asarray(observation["agent_pos"]), np.zeros(self.robot.action_dim))
        return self._begin(Observations.live(observation, self.task_description))

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        if not np.isfinite(action).all():
            raise UserError("an action is not finite; check the policy")
        self._last_action = np.clip(np.asarray(action, np.float32), self._low, self._high)
        self._state, success_probability, disagreement = self.world.predict(
            self._state, torch.from_numpy(self._last_action)[None, None]
        )
        self._tick += 1
        probability = float(success_probability)
        lost = not self._ended and bool(disagreement() > 1)
        success = not (self._ended or lost) and probability >= SUCCESS_THRESHOLD
        truncated = lost or (not success and self._tick >= self.robot.max_steps)
        self._ended |= success or truncated
        info = {"is_success": success, "is_lost": lost, "success_probability": probability}
        return self._observe(), float(success), success, truncated, info

    def render(self) -> NDArray[np.uint8]:
        """Return the cameras side by side, uint8 [H, cameras W, 3]."""
        return np.concatenate(list(self._seen.values()), axis=1)

    def rest_action(self, state: NDArray[np.float32]) -> Float32Array:
        """Return the action that keeps the robot where it is, float32 [A]: the last target."""
        del state
        return self._last_action.copy()

    def _begin(self, observations: Observations) -> dict[str, Any]:
        self._state = self.world.encode(observations)
        self._tick, self._ended = 0, False
        return self._observe()

    def _rest(self, state: NDArray[Any], otherwise: NDArray[Any]) -> Float32Array:
        """Return the targets before the first action: where the robot is, from its state if that has them."""
        spec = self.robot
        delta = np.array([kind == "delta" for kind in self.action_kind])
        here = state[: spec.action_dim] if spec.state_dim >= spec.action_dim else otherwise
        return np.where(delta, 0.0, here).astype(np.float32)

    def _observe(self) -> dict[str, Any]:
        images = self.world.decode(self._state)[0].cpu().numpy()
        self._seen = dict(zip(self.robot.cameras, images, strict=True))
        return {"pixels": dict(self._seen), "agent_pos": self._state.proprioception[0].cpu().numpy().copy()}
