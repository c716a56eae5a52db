"""PegInsert: one arm picks up a socket, the other a peg, and they bring the two together in the air."""

import numpy as np

from sim.env import TabletopEnv
from sim.scene import DARK_GREEN, GREEN, RED, ArmSpec, box_geom, four_walls, standing_object

PEG_HALF, PEG_HEIGHT = 0.018, 0.100  # m
BLOCK_HEIGHT, WALL_HEIGHT = (
    0.028,
    0.040,
)  # m: the socket is a block to hold it by, and four walls around the hole on top of it
WALL_HALF, FLARE = 0.004, 0.18  # m, rad: the walls lean outwards and guide the peg
RIM_HEIGHT = BLOCK_HEIGHT + WALL_HEIGHT  # m
INSERTED_DEPTH = 0.028  # m, how far below the rim the peg's end must be
LIFTED_HEIGHT = 0.015  # m, how far off the table the socket must be


class PegInsertEnv(TabletopEnv):
    """The socket is light and slides away from a peg that is pushed at it, so one arm has to hold it.

    Success is the peg well inside while the socket hangs in the air.
    """

    expert = "sim.experts.peg_insert:PegInsertExpert"
    task_description = "insert the peg into the socket"
    max_episode_steps = 120
    expert_steps = 50
    arms = (
        ArmSpec("left", (-0.25, 0.17)),
        ArmSpec("right", (-0.17, 0.25), z_range=(0.014, 0.24)),
    )
    home = ((-0.17, 0.0, 0.06), (0.17, 0.0, 0.09))
    objects = ("socket", "peg")

    @property
    def clearance(self) -> float:
        """Distance between the peg and each wall at the bottom of the hole, meters."""
        return 0.004 - 0.003 * self.difficulty

    @property
    def socket_width(self) -> float:
        """Width of the block that the socket is held by, meters."""
        return 2 * (PEG_HALF + self.clearance + 2 * WALL_HALF)

    def _bodies_xml(self) -> str:
        smooth = 'class="object" friction="0.25"'
        block_half, inside = self.socket_width / 2, PEG_HALF + self.clearance
        socket = box_geom((block_half, block_half, BLOCK_HEIGHT / 2), (0, 0, BLOCK_HEIGHT / 2), DARK_GREEN, smooth)
        socket += four_walls(inside, WALL_HALF, BLOCK_HEIGHT, RIM_HEIGHT, GREEN, smooth, FLARE)
        peg = box_geom((PEG_HALF, PEG_HALF, PEG_HEIGHT / 2), (0, 0, PEG_HEIGHT / 2), RED, smooth)
        return standing_object("socket", socket, 0.08, RIM_HEIGHT, 8e-5) + standing_object(
            "peg", peg, 0.06, PEG_HEIGHT, 6e-5
        )

    def _place_objects(self, rng: np.random.Generator) -> None:
        spread = 0.3 + 0.7 * self.difficulty
        for name, x in (("socket", -0.075), ("peg", 0.085)):
            dx, dy = rng.uniform(-1, 1, 2) * (0.035, 0.075) * spread
            self.place(name, x + dx, dy, rng.uniform(-0.2, 0.2) * spread)

    def insertion_depth(self) -> float:
        """Return the depth of the peg's end below the rim, meters; negative above the rim or beside the hole."""
        x, y, z = self.in_frame_of("socket", self.position("peg"))
        if max(abs(x), abs(y)) > PEG_HALF:
            return -1.0
        return RIM_HEIGHT - z

    def is_success(self) -> bool:
        return bool(self.position("socket")[2] > LIFTED_HEIGHT and self.insertion_depth() > INSERTED_DEPTH)
