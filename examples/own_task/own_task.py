r"""A task of one's own: a plain `gymnasium.Env`, without a word of vla-rl in it. A dot is to be driven onto a square.

    pip install examples/own_task
    vla-rl task check own_task:Dot-v0
    vla-rl record own_task:Dot-v0 --with own_task:Guide --episodes 20 --out runs/dot-demonstrations
    vla-rl train --config tiny task.env=own_task:Dot-v0 task.demonstrations=runs/dot-demonstrations \
        takeover.enabled=false
"""

from typing import Any

import gymnasium
import numpy as np

SIZE = 48


class DotEnv(gymnasium.Env[dict[str, Any], np.ndarray]):
    """The action is where the dot should be, [x, y] in [0, 1]; it gets there at .06 a step at most."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(self) -> None:
        self.action_space = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        picture = gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
        place = gymnasium.spaces.Box(0.0, 1.0, (2,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"picture": picture, "place": place})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict[str, Any], dict]:
        super().reset(seed=seed)
        self.place, self.goal = self.np_random.uniform(0.1, 0.9, (2, 2)).astype(np.float32)
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.place = np.clip(self.place + np.clip(action - self.place, -0.06, 0.06), 0, 1).astype(np.float32)
        there = bool(np.abs(self.place - self.goal).max() < 0.05)
        return self._observe(), float(there), there, False, {"is_success": there}

    def _observe(self) -> dict[str, Any]:
        picture = np.zeros((SIZE, SIZE, 3), np.uint8)
        for (x, y), radius, color in ((self.goal, 4, (0, 200, 0)), (self.place, 2, (255, 80, 0))):
            row, column = round(float(y) * (SIZE - 1)), round(float(x) * (SIZE - 1))
            picture[max(row - radius, 0) : row + radius + 1, max(column - radius, 0) : column + radius + 1] = color
        return {"picture": picture, "place": self.place}


class Guide:
    """A person who knows the way: demonstrates, or takes over."""

    def __init__(self, env: gymnasium.Env[Any, Any], options: object) -> None:
        self.env: Any = env.unwrapped

    def reset(self, seed: int) -> None:
        """He plays every episode alike."""

    def command(self, tick: int, proposed: np.ndarray) -> np.ndarray:
        return self.env.goal


gymnasium.register("Dot-v0", entry_point=DotEnv, max_episode_steps=60)
