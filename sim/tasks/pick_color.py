"""PickColor: three cubes before the tray, and a sentence that names one of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.scene import GRIPPER_OPENING_MAX, RED
from sim.tasks.pick_place import HOVER_M, TRAY_RIM, PickPlaceEnv, PickPlaceExpert, cube_xml
from vla_rl.core.errors import UserError, did_you_mean

COLORS = {"red": RED, "yellow": "0.98 0.85 0.10 1", "violet": "0.45 0.15 0.75 1"}
_LANES_M = 0.098  # distance of the cubes along y, so that an open hand passes between two
_CLEAR_M = TRAY_RIM + HOVER_M - 0.008  # height of the carried cube from which the hand passes over the others


class PickColorEnv(PickPlaceEnv):
    """One scene and three tasks that differ in their sentence.

    The pictures of a seed are equal for all of them. A policy that does not read the sentence succeeds once in three.

    ``color``, one of `COLORS`, names the cube that belongs in the tray. Other arguments: see `CameraEnv`.
    """

    expert = "sim.tasks.pick_color:PickColorExpert"
    max_episode_steps = 120
    expert_steps = 58
    objects = (*COLORS, "tray")

    def __init__(self, color: str = "red", **arguments: Any) -> None:
        if color not in COLORS:
            raise UserError(f"There is no {color!r} cube.{did_you_mean(color, COLORS)}")
        self.cube = color
        super().__init__(**arguments)

    @property
    def task_description(self) -> str:  # type: ignore[override]
        return f"put the {self.cube} cube into the tray"

    def _cubes_xml(self) -> str:
        return "".join(cube_xml(name, rgba) for name, rgba in COLORS.items())

    def _place_cubes(self, rng: np.random.Generator, spread: float) -> None:
        for name, lane in zip(COLORS, rng.permutation(3) - 1, strict=True):
            dx, dy = rng.uniform(-1, 1, 2) * (0.012, 0.010) * spread
            self.place(name, 0.075 + dx, lane * _LANES_M + dy, rng.uniform(-0.3, 0.3) * spread)


class PickColorExpert(PickPlaceExpert):
    """Lifts a cube over the others and drops it: further down its boom would meet one of them."""

    def carry(
        self, here: NDArray[np.float64], way: NDArray[np.float64], height: float, over: bool
    ) -> NDArray[np.float64]:
        if over:
            return self.move(0, here, GRIPPER_OPENING_MAX)
        way[2] = TRAY_RIM + HOVER_M - height
        if height < _CLEAR_M:
            way[:2] = 0.0
        return self.move(0, here + way, 0.0)
