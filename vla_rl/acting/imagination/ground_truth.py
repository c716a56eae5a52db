"""True positions of recorded episodes, for the state probe: their actions are sent again in the simulator, which
replays exactly.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from vla_rl.acting.task import make_env
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Float32Array

_SMALLEST_IMAGE = 16  # nobody looks
_TOLERANCE_M = 1e-4


class SimulatorTruth:
    """The true positions that `world_model.probe.true_positions` asks for, of the tasks of `sim`.

    Args:
        task: the environment that the episodes were recorded in.

    Attributes:
        names: of the K points: the grip points of the arms, then the objects.
    """

    def __init__(self, task: TaskConfig) -> None:
        self._task = task
        self._env = make_env(replace(task, image_size=_SMALLEST_IMAGE)).unwrapped
        if not hasattr(self._env, "grip_points"):
            raise UserError(f"{task.env} does not tell true positions; the state probe needs one of our own tasks")
        self._arms = [f"grip_{arm.side}" for arm in self._env.arms]
        self.names = [*self._arms, *self._env.objects]

    @property
    def objects(self) -> list[int]:
        """The points that are objects."""
        return list(range(len(self._arms), len(self.names)))

    def __call__(self, episode: Episode) -> Float32Array:
        """Positions at every observation of an episode, float32 [T, K, 3], metres.

        Raises:
            UserError: if the episode does not replay: it is of another task, difficulty or program version.
        """
        env = self._env
        observation, _ = env.reset(seed=episode.seed)
        rows = np.empty((len(episode), len(self.names), 3), np.float32)
        for step in range(len(episode)):
            if np.abs(observation["agent_pos"] - episode.state[step]).max() > _TOLERANCE_M:
                raise UserError(
                    f"episode {episode.episode_id!r} does not replay in {self._task.env} at difficulty "
                    f"{self._task.difficulty:g} (step {step}); give the task that it was recorded in"
                )
            rows[step] = self._positions()
            observation = env.step(episode.action_sent[step])[0]
        return rows

    def metres_per_pixel(self, image_size: int) -> float:
        """On the table, in the camera that looks down."""
        model: Any = self._env.model
        camera = model.camera("top").id
        height = float(model.cam_pos[camera][2])
        return 2 * height * math.tan(math.radians(float(model.cam_fovy[camera])) / 2) / image_size

    def _positions(self) -> Float32Array:
        env = self._env
        objects = np.array([env.position(name) for name in env.objects])
        return np.concatenate([env.grip_points(), objects]).astype(np.float32)
