"""PickColor: three cubes before the tray, and a sentence that names one of them."""

from typing import Any

import numpy as np

from sim.scene import RED
from sim.tasks.pick_place import PickPlaceEnv, cube_xml
from vla_rl.core.errors import UserError, did_you_mean

COLORS = {"red": RED, "yellow": "0.98 0.85 0.10 1", "violet": "0.45 0.15 0.75 1"}
_LANES_M = 0.098  # distance of the cubes along y, so that an open hand passes between two


class PickColorEnv(PickPlaceEnv):
    """One scene and three tasks that differ in their sentence.

    The pictures of a seed are equal for all of them. A policy that does not read the sentence succeeds once in three.

    ``color`` is that of the cube that belongs in the tray, one of `COLORS`; other arguments as of `CameraEnv`.
    """

    expert = "sim.experts.pick_color:PickColorExpert"
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
