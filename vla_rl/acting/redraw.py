"""Episodes of simulations drawn again at another size. Their states are not recorded, but what leads to them is: the
seed and the commands. A simulation that answers them as it did is in the same states.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from robot_io.env_robot import EnvRobot
from vla_rl.acting.task import open_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.errors import one_line
from vla_rl.core.types import Episode, Origin

logger = logging.getLogger(__name__)

_SAME = 1e-5  # of the state's units: rounding, and no more


class Redrawer:
    """Draws episodes of the task of a run, if it has one, again; a `vla_rl.report.media.Redraw`."""

    def __init__(self, task: TaskConfig | None) -> None:
        self._task = task
        self._robots: dict[tuple[str, int], EnvRobot | None] = {}
        self._told: set[str] = set()

    def __call__(
        self, episode: Episode, steps: NDArray[np.intp], size_px: int
    ) -> Mapping[str, NDArray[np.uint8]] | None:
        """Draw these steps: camera -> uint8 [N, size_px, size_px, 3]. Return None for an episode of no simulation that
        can be drawn at any size. Also None where the simulation now answers the same commands differently, or raises,
        which is logged once.
        """
        try:
            return self._draw(episode, steps, size_px)
        except Exception as error:  # a task that is not installed here, or whatever a user's environment raises
            if episode.env_id not in self._told:
                self._told.add(episode.env_id)
                kind = f"{type(error).__name__}: {one_line(error)}"
                logger.warning("%s cannot be drawn again, what was recorded is shown: %s", episode.env_id, kind)
            return None

    def _draw(self, episode: Episode, steps: NDArray[np.intp], size_px: int) -> Mapping[str, NDArray[np.uint8]] | None:
        robot = self._robot(episode.env_id, size_px) if episode.origin in (Origin.SIM, Origin.DEMO) else None
        if robot is None or episode.seed is None:
            return None
        wanted, drawn = set(steps.tolist()), []
        robot.draws_always = False
        robot.reset(episode.seed)
        for step, command in enumerate(episode.action_sent):
            seen = robot.read()
            if not np.allclose(seen.state, episode.state[step], rtol=0, atol=_SAME):
                return None
            if step in wanted:
                drawn.append(dict(seen.images))
            if step + 1 < len(episode):
                robot.write(command)
        return {camera: np.stack([images[camera] for images in drawn]) for camera in drawn[0]}

    def _robot(self, env_id: str, size_px: int) -> EnvRobot | None:
        if self._task is None:
            return None
        if (env_id, size_px) not in self._robots:
            self._robots[env_id, size_px] = None
            robot = open_robot(replace(self._task, image_size=size_px), env_id)
            # What cannot leave pictures out cannot draw them when asked either.
            draws = bool(robot.reader.camera_names) and hasattr(robot.env.unwrapped, "draw_now")
            if draws and robot.reader.size == (size_px, size_px):
                self._robots[env_id, size_px] = robot
            else:
                robot.close()
        return self._robots[env_id, size_px]

    def close(self) -> None:
        """Close the environments."""
        for robot in filter(None, self._robots.values()):
            robot.close()
