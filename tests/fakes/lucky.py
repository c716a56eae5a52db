"""A task in which every second start ends well, whatever is done: what a tiny run needs to have something to learn."""

from typing import Any

import gymnasium
import numpy as np

import sim

LENGTH = 18


class Lucky(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose episodes end after `LENGTH` steps, as half of the seeds will have it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.lucky, self.steps = np.random.default_rng(seed).random() < 0.5, 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, *_ = self.env.step(action)
        self.steps += 1
        ends = self.steps == LENGTH
        success = bool(ends and self.lucky)
        return observation, float(success), ends, False, {"is_success": success}


def make_lucky(difficulty: float = 0.5, image_size: int = 64, renderer: str = "raycast") -> Lucky:
    """The default task like that."""
    sim.register_environments()
    options: dict[str, Any] = {"difficulty": difficulty, "image_size": image_size, "renderer": renderer}
    return Lucky(gymnasium.make("vla_rl/PegInsert-v0", disable_env_checker=True, **options))
