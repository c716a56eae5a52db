"""Expert of PegInsert.

Both arms pick up their object at once and meet in the middle, where the peg goes down into the socket.
"""

import numpy as np
from numpy.typing import NDArray

from sim.experts.base import STRAY_X_M, Expert, Grasp, nearness
from sim.tasks.peg_insert import BLOCK_HEIGHT, INSERTED_DEPTH, PEG_HALF, RIM_HEIGHT, PegInsertEnv

LEFT, RIGHT = 0, 1
PEG = Grasp(height=0.075, width=2 * PEG_HALF, half_length=PEG_HALF)
HOVER_M = 0.016  # height of the peg's end above the rim before it goes down
MEETING_LIFT_M = 0.032


class PegInsertExpert(Expert):
    """Expert of PegInsert."""

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
