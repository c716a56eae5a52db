"""PegInsert: one arm picks up a socket, the other a peg, and they bring the two together in the air."""

from typing import ClassVar

import numpy as np

from sim.env import TabletopEnv
from sim.scene import ArmSpec, standing_object

PEG_HALF, PEG_HEIGHT = 0.018, 0.100
WALL_HEIGHT, WALL_HALF, FLARE = 0.050, 0.004, 0.14  # m, m, rad: the walls lean outwards and guide the peg
LEAN = WALL_HEIGHT * np.sin(FLARE)  # m, how much wider the hole is at the rim than at the floor, on each side
FLOOR_HALF = 0.003
INSERTED_DEPTH = 0.030  # m, how far below the rim the peg's end must be
LIFTED_HEIGHT = 0.015  # m, how far off the table the socket must be


class PegInsertEnv(TabletopEnv):
    """The socket is light and slides away from a peg that is pushed at it, so one arm has to hold it: success is the peg well
    inside while the socket hangs in the air.
    """

    task_description: ClassVar[str] = "insert the peg into the socket"
    max_episode_steps: ClassVar[int] = 130
    arms: ClassVar[tuple[ArmSpec, ...]] = (ArmSpec("left", (-0.25, 0.08)), ArmSpec("right", (-0.08, 0.25), z_range=(0.014, 0.24)))
    home: ClassVar[tuple[tuple[float, float, float], ...]] = ((-0.17, 0.0, 0.06), (0.17, 0.0, 0.09))
    objects: ClassVar[tuple[str, ...]] = ("socket", "peg")

    @property
    def clearance(self) -> float:
        """Distance between the peg and each wall at the bottom of the hole, metres."""
        return 0.004 - 0.003 * self.difficulty

    @property
    def socket_width(self) -> float:
        """Outer width of the socket at half its height, metres."""
        return 2 * (PEG_HALF + self.clearance + LEAN / 2 + 2 * WALL_HALF)

    def _bodies_xml(self) -> str:
        inner, half_width = PEG_HALF + self.clearance, self.socket_width / 2
        out = half_width - WALL_HALF
        wall = 'class="object" type="box" rgba="0.05 0.70 0.30 1" friction="0.25"'
        walls = "".join(
            f'<geom {wall} size="{size} {WALL_HEIGHT / 2}" pos="{x * out} {y * out} {WALL_HEIGHT / 2}" euler="{-y * FLARE} {x * FLARE} 0"/>'
            for x, y, size in (
                (1, 0, f"{WALL_HALF} {half_width}"),
                (-1, 0, f"{WALL_HALF} {half_width}"),
                (0, 1, f"{half_width} {WALL_HALF}"),
                (0, -1, f"{half_width} {WALL_HALF}"),
            )
        )
        floor = f'<geom class="object" type="box" size="{inner + WALL_HALF} {inner + WALL_HALF} {FLOOR_HALF}" pos="0 0 {FLOOR_HALF}" rgba="0.02 0.35 0.15 1"/>'
        peg = (
            f'<geom class="object" type="box" size="{PEG_HALF} {PEG_HALF} {PEG_HEIGHT / 2}" pos="0 0 {PEG_HEIGHT / 2}" '
            'rgba="0.92 0.10 0.12 1" friction="0.25"/>'
        )
        return standing_object("socket", floor + walls, 0.08, WALL_HEIGHT, 8e-5) + standing_object("peg", peg, 0.06, PEG_HEIGHT, 6e-5)

    def _place_objects(self, rng: np.random.Generator) -> None:
        spread = 0.3 + 0.7 * self.difficulty
        for name, x in (("socket", -0.075), ("peg", 0.085)):
            dx, dy = rng.uniform(-1, 1, 2) * (0.035, 0.075) * spread
            self.place(name, x + dx, dy, rng.uniform(-0.2, 0.2) * spread)

    def insertion_depth(self) -> float:
        """How far the peg's end is below the rim, metres; negative while it is above the rim or beside the hole."""
        x, y, z = self.in_frame_of("socket", self.position("peg"))
        if max(abs(x), abs(y)) > PEG_HALF:
            return -1.0
        return WALL_HEIGHT - z

    def is_success(self) -> bool:
        return bool(self.insertion_depth() > INSERTED_DEPTH and self.position("socket")[2] > LIFTED_HEIGHT)
