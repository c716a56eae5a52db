"""PickPlace: one arm puts a cube into a tray."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.env import TabletopEnv
from sim.experts.base import Expert, Grasp, nearness
from sim.scene import DARK_GREEN, GREEN, GRIPPER_OPENING_MAX, RED, ArmSpec, box_geom, four_walls, standing_object

CUBE_HALF = 0.019  # m
TRAY_WALL, TRAY_RIM = 0.004, 0.014  # m
TRAY_FLOOR_HALF = 0.003  # m
OPEN = 0.055  # m, the gripper must be open this far: the cube lies there by itself
CUBE = Grasp(height=0.026, width=2 * CUBE_HALF, half_length=CUBE_HALF)
HOVER_M = 0.020  # height of the cube over the tray's rim before it goes down


class PickPlaceEnv(TabletopEnv):
    """The single-arm task: success is the cube in the tray and let go."""

    expert = "sim.tasks.pick_place:PickPlaceExpert"
    task_description = "put the cube into the tray"
    max_episode_steps = 100
    expert_steps = 50
    arms = (ArmSpec("right", (-0.18, 0.25)),)
    home = ((0.16, 0.0, 0.08),)
    objects: ClassVar[tuple[str, ...]] = ("cube", "tray")
    cube: str = "cube"  # the object that belongs in the tray

    @property
    def tray_half(self) -> float:
        """Half the width of the tray's inside, meters."""
        return 0.042 - 0.012 * self.difficulty

    def _bodies_xml(self) -> str:
        rough, inside = 'class="object" friction="0.5"', self.tray_half
        tray = box_geom((inside, inside, TRAY_FLOOR_HALF), (0, 0, TRAY_FLOOR_HALF), DARK_GREEN, rough)
        tray += four_walls(inside, TRAY_WALL, 0.0, TRAY_RIM, GREEN, rough)
        return self._cubes_xml() + standing_object("tray", tray, 0.40, TRAY_RIM, 4e-4)

    def _cubes_xml(self) -> str:
        return cube_xml("cube", RED)

    def _place_objects(self, rng: np.random.Generator) -> None:
        spread = 0.3 + 0.7 * self.difficulty
        self._place_cubes(rng, spread)
        dx, dy = rng.uniform(-1, 1, 2) * (0.020, 0.060) * spread
        self.place("tray", -0.085 + dx, dy)

    def _place_cubes(self, rng: np.random.Generator, spread: float) -> None:
        dx, dy = rng.uniform(-1, 1, 2) * (0.050, 0.085) * spread
        self.place("cube", 0.065 + dx, dy, rng.uniform(-0.3, 0.3) * spread)

    def in_tray(self) -> bool:
        """Return whether the cube lies in the tray."""
        x, y, z = self.in_frame_of("tray", self.position(self.cube))
        return bool(max(abs(x), abs(y)) < self.tray_half and z < TRAY_RIM)

    def is_success(self) -> bool:
        return bool(self.in_tray() and self.openings()[0] > OPEN)


def cube_xml(name: str, rgba: str) -> str:
    """Return a cube that stands on the table."""
    geom = box_geom((CUBE_HALF,) * 3, (0, 0, CUBE_HALF), rgba, 'class="object" friction="0.4"')
    return standing_object(name, geom, 0.05, 2 * CUBE_HALF, 5e-5)


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

        ``way`` [3] leads from the cube to its goal. ``height`` is the height of the cube's base. ``over`` says whether
        the cube is over the tray's floor.
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
