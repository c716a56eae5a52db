r"""A second task whose success is the start of the first: the cube goes from the tray back to the table.

    uv pip install --no-deps -e examples/own_reset
    vla-rl train --config alone task.env=vla_rl/PickPlace-v0 task.also=[own_reset:PutBack-v0] policy.text.film=true \
        budget.demonstrations=32 budget.compare_episodes=0 workers=0 environments_per_worker=1 --out runs/unattended \
        --resets

The robot brings its hand home before each attempt, so both tasks begin there.
"""

from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.scene import GRIPPER_OPENING_MAX
from sim.tasks.pick_place import CUBE, HOVER_M, OPEN, TRAY_FLOOR_HALF, TRAY_RIM, PickPlaceEnv, PickPlaceExpert

MIDDLE = np.array([0.065, 0.0])  # of the cube's starts in PickPlace, meters


class PutBackEnv(PickPlaceEnv):
    """Success is the cube where PickPlace would put it, and let go."""

    expert = "own_reset:PutBackExpert"
    task_description = "put the cube back on the table"
    max_episode_steps = 120
    expert_steps = 60

    @property
    def region_half(self) -> NDArray[np.float64]:
        """Half the size of the region of the cube's starts, [2] meters."""
        return np.array([0.050, 0.085]) * (0.3 + 0.7 * self.difficulty)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = super().reset(seed=seed, options=options)
        if options is not None and "world" in options:
            return observation, info
        x, y, _ = self.position("tray")
        dx, dy = self.np_random.uniform(-0.01, 0.01, 2)
        self.place("cube", x + dx, y + dy)
        self._qpos[self._object_start["cube"] + 2] = 2 * TRAY_FLOOR_HALF
        mujoco.mj_forward(self.model, self.data)
        return self._observe(), info

    def at_start(self) -> bool:
        """Return whether the cube lies where an attempt of PickPlace begins."""
        cube = self.position("cube")
        return bool(np.all(np.abs(cube[:2] - MIDDLE) < self.region_half) and cube[2] < 0.004)

    def is_success(self) -> bool:
        return bool(self.openings()[0] > OPEN and self.at_start())


class PutBackExpert(PickPlaceExpert):
    """Takes the cube out of the tray and puts it down in the region."""

    env: PutBackEnv  # type: ignore[assignment]

    def plan(self) -> list[NDArray[np.float64]]:
        env = self.env
        here, cube = env.grip_points()[0], env.position("cube")
        if env.at_start():
            return [self.move(0, here, GRIPPER_OPENING_MAX)]
        if not self.holds(0, "cube", CUBE):
            return [self.pick(0, "cube", CUBE)]
        # The spread of the goals: the style's is of 12 mm.
        goal = MIDDLE + self.style.meeting_offset[:2] / 0.012 * (env.region_half - 0.012)
        way, over = np.append(goal - cube[:2], 0.0), TRAY_RIM + HOVER_M
        near = np.abs(way[:2]).max() < 0.006
        if near:
            way[2] = -cube[2] - 0.002
        else:
            way[2] = over - cube[2]
            x, y, _ = env.in_frame_of("tray", cube)
            if cube[2] < over - 0.008 and max(abs(x), abs(y)) < env.tray_half + 0.03:
                way[:2] = 0.0
        return [self.move(0, here + way, 0.0)]

    def progress(self) -> float:
        return 1.0 if self.env.is_success() else 0.5 * self.env.at_start()


gymnasium.register("PutBack-v0", entry_point=PutBackEnv, kwargs={})
