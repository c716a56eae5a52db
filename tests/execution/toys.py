"""An environment that costs nothing, and a policy that solves it."""

from typing import Any

import gymnasium
import numpy as np

from tests.fakes.faulty_attempts import HORIZON
from vla_rl.core.types import ActionChunk, Float32Array, Observation


class ReachEnv(gymnasium.Env[dict[str, Any], Float32Array]):
    """Two joints and a target that they must touch; the joints reach their commands at once, at most 0.1 a step."""

    metadata = {"render_fps": 20}  # noqa: RUF012
    task_description = "touch the target"

    def __init__(self, limit: int = 200) -> None:
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        pixels = gymnasium.spaces.Dict({"front": gymnasium.spaces.Box(0, 255, (4, 4, 3), np.uint8)})
        position = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"pixels": pixels, "agent_pos": position})
        self._limit = limit

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.position = np.zeros(2, np.float32)
        self.target = self.np_random.uniform(-0.9, 0.9, 2).astype(np.float32)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Float32Array) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.position = (self.position + np.clip(action - self.position, -0.1, 0.1)).astype(np.float32)
        self.steps += 1
        success = bool(np.abs(self.position - self.target).max() < 0.02)
        truncated = not success and self.steps >= self._limit
        return self._observe(), float(success), success, truncated, {"is_success": success}

    def _observe(self) -> dict[str, Any]:
        image = np.full((4, 4, 3), self.steps % 256, np.uint8)
        return {"pixels": {"front": image}, "agent_pos": np.concatenate([self.position, self.target])}


class ReachPolicy:
    """Moves the joints towards the target in steps of ``pace``, with sampling noise that the seed and the tick fix."""

    version = 3

    def __init__(self, pace: float = 0.03, noise: float = 0.0, horizon: int = HORIZON) -> None:
        self._pace, self._noise, self._horizon = pace, noise, horizon

    def reset(self, seed: int) -> None:
        self._seed = seed

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        random = np.random.Generator(np.random.Philox(key=[self._seed, observation.tick]))
        start, target = observation.state[:2], observation.state[2:]
        path = (target - start) * np.minimum(1, self._pace * np.arange(1, self._horizon + 1))[:, None]
        actions = start + path + self._noise * random.standard_normal(2)
        if committed is not None:
            actions[: len(committed)] = committed
        return ActionChunk(actions.astype(np.float32), observation.tick, 0, self.version)
