"""PegInsert: one arm picks up a socket, the other a peg, and they bring the two together in the air."""

import numpy as np
from numpy.typing import NDArray

from sim.env import TabletopEnv
from sim.experts.base import STRAY_X_M, Expert, Grasp, nearness
from sim.scene import DARK_GREEN, GREEN, RED, ArmSpec, box_geom, four_walls, standing_object

PEG_HALF, PEG_HEIGHT = 0.018, 0.100  # m
# The socket is a block to hold it by, and four walls around the hole on top of it.
BLOCK_HEIGHT, WALL_HEIGHT = 0.028, 0.040  # m
WALL_HALF, FLARE = 0.004, 0.18  # m, rad: the walls lean outwards and guide the peg
RIM_HEIGHT = BLOCK_HEIGHT + WALL_HEIGHT  # m
INSERTED_DEPTH = 0.028  # m, how far below the rim the peg's end must be
LIFTED_HEIGHT = 0.015  # m, how far off the table the socket must be
LEFT, RIGHT = 0, 1
PEG = Grasp(height=0.075, width=2 * PEG_HALF, half_length=PEG_HALF)
HOVER_M = 0.016  # height of the peg's end above the rim before it goes down
MEETING_LIFT_M = 0.032


class PegInsertEnv(TabletopEnv):
    """The socket is light and slides away from a peg that is pushed at it, so one arm has to hold it.

    Success is the peg well inside while the socket hangs in the air.
    """

    expert = "sim.tasks.peg_insert:PegInsertExpert"
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


class PegInsertExpert(Expert):
    """Both arms pick up their object at once and meet in the middle, where the peg goes down into the socket."""

    env: PegInsertEnv

    def plan(self) -> list[NDArray[np.float64]]:
        return [self._plan_left(), self._plan_right()]

    def progress(self) -> float:
        done = 0.2 * self.reached(LEFT, "socket", self._socket) + 0.2 * self.reached(RIGHT, "peg", PEG)
        peg, socket, meeting = (self.env.position("peg"), self.env.position("socket"), self._meeting_point())
        if not self.holds(LEFT, "socket", self._socket):
            return done
        done += 0.1 * nearness(float(np.linalg.norm(socket - meeting)), 0.12)
        if not self.holds(RIGHT, "peg", PEG):
            return done
        depth = self.env.insertion_depth()
        if depth > 0:
            return done + 0.25 + 0.25 * min(depth / INSERTED_DEPTH, 1.0)
        return done + 0.25 * nearness(float(np.linalg.norm(peg - socket - (0.0, 0.0, RIM_HEIGHT))), 0.20)

    @property
    def _socket(self) -> Grasp:
        width = self.env.socket_width
        return Grasp(height=0.017, width=width, half_length=width / 2)

    def _meeting_point(self) -> NDArray[np.float64]:
        """Return where the socket's base hangs while the peg goes in, [3]."""
        return np.array([0.0, 0.0, MEETING_LIFT_M]) + self.style.meeting_offset

    def _plan_left(self) -> NDArray[np.float64]:
        if not self.holds(LEFT, "socket", self._socket):
            return self.pick(LEFT, "socket", self._socket)
        here, peg, goal = self.env.grip_points()[LEFT], self.env.position("peg"), self._meeting_point()
        if peg[0] < STRAY_X_M and not self.holds(RIGHT, "peg", PEG):
            goal = self.out_of_the_way(peg, MEETING_LIFT_M)
        return self.move(LEFT, here + goal - self.env.position("socket"), 0.0)

    def _plan_right(self) -> NDArray[np.float64]:
        if not self.holds(RIGHT, "peg", PEG):
            return self.pick(RIGHT, "peg", PEG)
        here, peg, socket = self.env.grip_points()[RIGHT], self.env.position("peg"), self.env.position("socket")
        meeting = self._meeting_point()
        hover = meeting[2] + RIM_HEIGHT + HOVER_M
        if not (self.holds(LEFT, "socket", self._socket) and np.linalg.norm(socket - meeting) < 0.03):
            # Wait beside the middle, high enough to come in from there.
            return self.move(RIGHT, here + np.array([meeting[0] + 0.075, meeting[1], hover]) - peg, 0.0)
        x, y, z = self.env.in_frame_of("socket", peg)
        off = max(abs(x), abs(y))
        if off < (0.008 if z > RIM_HEIGHT + 0.006 else PEG_HALF - 0.004):
            return self.move(RIGHT, here + socket + (0.0, 0.0, BLOCK_HEIGHT) - peg, 0.0, pace=0.8)
        if z < RIM_HEIGHT + 0.006 and off < 0.085:
            return self.move(RIGHT, here + np.array([0.0, 0.0, hover - peg[2]]), 0.0)
        return self.move(RIGHT, here + np.array([socket[0], socket[1], hover]) - peg, 0.0)
