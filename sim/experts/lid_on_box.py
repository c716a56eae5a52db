"""Expert of LidOnBox.

The left arm brings the box to the middle and holds it, the right arm lowers the lid onto it and lets go.
"""

import numpy as np
from numpy.typing import NDArray

from sim.experts.base import STRAY_X_M, Expert, Grasp, nearness
from sim.scene import GRIPPER_OPENING_MAX
from sim.tasks.lid_on_box import BOX_HALF, BOX_HEIGHT, KNOB_HALF, LID_HALF, PLUG_HEIGHT, SEATED_GAP, LidOnBoxEnv

LEFT, RIGHT = 0, 1
BOX = Grasp(height=0.020, width=2 * BOX_HALF, half_length=BOX_HALF)
LID = Grasp(height=0.040, width=2 * KNOB_HALF, half_length=LID_HALF, slack=0.012)
HOVER_M = 0.016  # height of the plug's end above the rim before the lid goes down


class LidOnBoxExpert(Expert):
    """Expert of LidOnBox."""

    env: LidOnBoxEnv

    def plan(self) -> list[NDArray[np.float64]]:
        return [self._plan_left(), self._plan_right()]

    def progress(self) -> float:
        done = 0.2 * self.reached(LEFT, "box", BOX)
        lid, box, meeting = self.env.position("lid"), self.env.position("box"), self._meeting_point()
        gap = self.env.lid_gap()
        if gap < SEATED_GAP:
            return done + 0.7 + 0.1 * min(self.env.openings()[RIGHT] / GRIPPER_OPENING_MAX, 1.0)
        done += 0.2 * self.reached(RIGHT, "lid", LID) + 0.15 * nearness(
            float(np.linalg.norm((box - meeting)[:2])), 0.12
        )
        if not self.holds(RIGHT, "lid", LID):
            return done
        return done + 0.3 * nearness(float(np.linalg.norm(lid - box - (0.0, 0.0, BOX_HEIGHT - PLUG_HEIGHT))), 0.22)

    def _meeting_point(self) -> NDArray[np.float64]:
        """Return where the box stands while the lid is put on, [3]."""
        return np.array([0.008, 0.0, 0.0]) + self.style.meeting_offset * (1.0, 1.0, 0.0)

    def _plan_left(self) -> NDArray[np.float64]:
        if not self.holds(LEFT, "box", BOX):
            return self.pick(LEFT, "box", BOX)
        here, lid, goal = self.env.grip_points()[LEFT], self.env.position("lid"), self._meeting_point()
        stray = lid[0] < STRAY_X_M and self.env.lid_gap() > SEATED_GAP
        if stray and not self.holds(RIGHT, "lid", LID):
            goal = self.out_of_the_way(lid, 0.0)
        return self.move(LEFT, here + goal - self.env.position("box"), 0.0)

    def _plan_right(self) -> NDArray[np.float64]:
        here, lid, box = self.env.grip_points()[RIGHT], self.env.position("lid"), self.env.position("box")
        if self.env.lid_gap() < SEATED_GAP:
            return self.move(RIGHT, here, GRIPPER_OPENING_MAX)
        if not self.holds(RIGHT, "lid", LID):
            return self.pick(RIGHT, "lid", LID)
        meeting = self._meeting_point()
        hover = BOX_HEIGHT + HOVER_M
        if not (self.holds(LEFT, "box", BOX) and np.linalg.norm((box - meeting)[:2]) < 0.025):
            # Wait beside the middle, high enough to come in from there.
            return self.move(RIGHT, here + np.array([meeting[0] + 0.085, meeting[1], hover]) - lid, 0.0)
        x, y, z = self.env.in_frame_of("box", lid)
        off = max(abs(x), abs(y))
        if off < (0.8 * self.env.clearance + 0.0015 if z > BOX_HEIGHT + 0.006 else 0.012):
            return self.move(RIGHT, here + box + (0.0, 0.0, BOX_HEIGHT - PLUG_HEIGHT - 0.002) - lid, 0.0, pace=0.8)
        if z < BOX_HEIGHT + 0.006 and off < 0.080:
            return self.move(RIGHT, here + np.array([0.0, 0.0, hover - lid[2]]), 0.0)
        return self.move(RIGHT, here + np.array([box[0], box[1], hover]) - lid, 0.0)
