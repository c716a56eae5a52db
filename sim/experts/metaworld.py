"""Meta-World's own scripted policies as experts. Like ours, they decide from the present state alone."""

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.adapters.metaworld import STEP_M, MetaWorldEnv
from sim.adapters.metaworld_tasks import TASKS
from sim.adapters.optional import import_benchmark
from sim.experts.base import CorrelatedNoise, expert_rng


class MetaWorldExpert:
    """Scripted policy of one Meta-World task. Arguments and methods as in `sim.experts.base.Expert`."""

    meters_per_action = STEP_M

    def __init__(self, env: Any, action_noise: float = 0.0) -> None:
        self.env: MetaWorldEnv = env.unwrapped
        self.action_noise = action_noise if TASKS[self.env.native_name].takes_noise else 0.0
        self.pace = 1.0
        self._policy = import_benchmark("metaworld.policies").ENV_POLICY_MAP[self.env.native_name]()
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines the noise."""
        self._noise = CorrelatedNoise(expert_rng(seed), self.action_noise / STEP_M, (3,))

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the clean action (the label) and the one to send, both float32 [4] and within bounds."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns at every step that its own actions are cut to [-1, 1]
            clean = np.clip(self._policy.get_action(self.env.native_observation), -1.0, 1.0)
        clean[:3] *= self.pace
        sent = clean.copy()
        sent[:3] = np.clip(sent[:3] + self._noise.draw(), -1.0, 1.0)
        return clean.astype(np.float32), sent.astype(np.float32)

    def progress(self) -> float:
        """Return the best of Meta-World's dense reward so far, 0 to 1."""
        return self.env.progress

    def last_sent(self) -> NDArray[np.float64]:
        """Return the action of the last step, float64 [4]."""
        return self.env.last_action
