"""PickColour: three cubes before the tray, and a sentence that names one of them."""

from typing import Any, ClassVar

import numpy as np

from sim.scene import RED
from sim.tasks.pick_place import PickPlaceEnv, cube_xml
from vla_rl.core.errors import UserError, did_you_mean

COLOURS = {"red": RED, "yellow": "0.98 0.85 0.10 1", "violet": "0.45 0.15 0.75 1"}
_LANES_M = 0.098  # distance of the cubes along y, so that an open hand passes between two


class PickColourEnv(PickPlaceEnv):
    """One scene and three tasks: the pictures of a seed are the same whichever cube is asked for, so that a policy
    which does not read the sentence succeeds once in three.

    Args:
        colour: of the cube that belongs in the tray, one of `COLOURS`.
        arguments: see `sim.interface.CameraEnv`.
    """

    expert: ClassVar[str] = "sim.experts.pick_colour:PickColourExpert"
    max_episode_steps: ClassVar[int] = 120
    expert_steps: ClassVar[int] = 58
    objects: ClassVar[tuple[str, ...]] = (*COLOURS, "tray")

    def __init__(self, colour: str = "red", **arguments: Any) -> None:
        if colour not in COLOURS:
            raise UserError(f"There is no {colour!r} cube.{did_you_mean(colour, COLOURS)}")
        self.cube = colour
        super().__init__(**arguments)

    @property
    def task_description(self) -> str:  # type: ignore[override]
        return f"put the {self.cube} cube into the tray"

    def _cubes_xml(self) -> str:
        return "".join(cube_xml(name, rgba) for name, rgba in COLOURS.items())

    def _place_cubes(self, rng: np.random.Generator, spread: float) -> None:
        for name, lane in zip(COLOURS, rng.permutation(3) - 1, strict=True):
            dx, dy = rng.uniform(-1, 1, 2) * (0.012, 0.010) * spread
            self.place(name, 0.075 + dx, lane * _LANES_M + dy, rng.uniform(-0.3, 0.3) * spread)
