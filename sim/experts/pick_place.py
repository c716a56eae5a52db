"""Expert of PickPlace."""

import numpy as np
from numpy.typing import NDArray

from sim.experts.base import Expert, Grasp, nearness
from sim.scene import GRIPPER_OPENING_MAX
from sim.tasks.pick_place import CUBE_HALF, OPEN, TRAY_FLOOR_HALF, TRAY_RIM, PickPlaceEnv

CUBE = Grasp(height=0.026, width=2 * CUBE_HALF, half_length=CUBE_HALF)
HOVER_M = 0.020  # height of the cube over the tray's rim before it goes down


class PickPlaceExpert(Expert):
    """Expert of PickPlace."""

    env: PickPlaceEnv

    def plan(self) -> list[NDArray[np.float64]]:
        name, tray = self.env.cube, self.env.position("tray")
        here, cube = self.env.grip_points()[0], self.env.position(name)
        if self.env.in_tray():
            return [self.move(0, here, GRIPPER_OPENING_MAX)]
        if not self.holds(0, name, CUBE):
            return [self.pick(0, name, CUBE)]
        # The hand's spread over the tray, so that demonstrations do not all end in one spot.
        way = tray + self.style.meeting_offset * (0.5, 0.5, 0.0) - cube
        over = bool(np.abs(way[:2]).max() < self.env.tray_half - CUBE_HALF - 0.002)
        return [self.carry(here, way, float(cube[2]), over)]

    def carry(
        self, here: NDArray[np.float64], way: NDArray[np.float64], height: float, over: bool
    ) -> NDArray[np.float64]:
        """Target [4] while the hand at the grip point ``here`` holds the cube, meters.

        ``way`` [3] is from the cube to where it belongs, ``height`` that of the cube's base. ``over``: the cube is over
        the tray's floor.
        """
        if over:
            way[2] += 2 * TRAY_FLOOR_HALF
        else:
            way[2] = TRAY_RIM + HOVER_M - height
            if height < TRAY_RIM + 0.006 and np.abs(way[:2]).max() < self.env.tray_half + 0.035:
                way[:2] = 0.0
        return self.move(0, here + way, 0.0)

    def progress(self) -> float:
        if self.env.in_tray():
            return 0.9 + 0.1 * min(self.env.openings()[0] / OPEN, 1.0)
        name = self.env.cube
        done = 0.4 * self.reached(0, name, CUBE)
        if not self.holds(0, name, CUBE):
            return done
        return done + 0.5 * nearness(float(np.linalg.norm(self.env.position("tray") - self.env.position(name))), 0.25)
