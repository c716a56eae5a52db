"""Somebody's package: a task of his own, registered with Gymnasium as anyone does it, and a person who can do it.

It imports nothing of ours, and no environment in it has an attribute that only we would look for.
"""

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np


class PointReach(gymnasium.Env):
    """Bring a point to a goal: the action is where it should go, and it goes there at a bounded speed."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(self, speed: float = 0.15, render_mode: str | None = None) -> None:
        self.speed, self.render_mode = speed, render_mode
        self.action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float64)
        self.observation_space = gymnasium.spaces.Dict(
            {
                "body": gymnasium.spaces.Dict({"position": gymnasium.spaces.Box(-1, 1, (2,), np.float64)}),
                "views": gymnasium.spaces.Dict(
                    {
                        "overhead": gymnasium.spaces.Box(0, 255, (48, 40, 3), np.uint8),
                        "wrist": gymnasium.spaces.Box(0, 255, (3, 20, 24), np.uint8),
                    }
                ),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-0.9, -0.3, 2)
        self.goal = self.np_random.uniform(0.3, 0.9, 2)
        return self.observe(), {}

    def step(self, action: Any) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.position = self.position + np.clip(action - self.position, -self.speed, self.speed)
        done = bool(np.abs(self.position - self.goal).max() < 0.05)
        return self.observe(), float(done), done, False, {}

    def render(self) -> Any:
        picture = np.zeros((48, 40, 3), np.uint8)
        for place, color in ((self.goal, (0, 255, 0)), (self.position, (255, 0, 0))):
            row, column = ((place + 1) / 2 * (45, 37)).astype(int)
            picture[row : row + 3, column : column + 3] = color
        return picture

    def observe(self) -> dict[str, Any]:
        picture = self.render()
        wrist = picture[14:34, 8:32].transpose(2, 0, 1).copy()
        return {"body": {"position": self.position.copy()}, "views": {"overhead": picture, "wrist": wrist}}


@dataclass(frozen=True)
class GuideConfig:
    """When the guide acts: from this tick on."""

    from_tick: int = 0


class Guide:
    """A person who knows the way: demonstrates, or takes over late."""

    config_class = GuideConfig

    def __init__(self, env: gymnasium.Env[Any, Any], config: GuideConfig) -> None:
        self.env, self.config = env.unwrapped, config

    def reset(self, seed: int) -> None:
        """He plays every episode alike."""

    def command(self, tick: int, proposed: Any) -> Any:
        return self.env.goal.astype(np.float32) if tick >= self.config.from_tick else None


gymnasium.register("PointReach-v0", entry_point="point_world:PointReach", max_episode_steps=40)
