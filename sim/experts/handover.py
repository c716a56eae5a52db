"""Expert of Handover.

Left brings the bar to the middle by one end, right takes the other end, left lets go, right lays it down.
"""

import numpy as np
from numpy.typing import NDArray

from sim.experts.base import Expert, Grasp, nearness
from sim.scene import GRIPPER_OPENING_MAX
from sim.tasks.handover import BAR_HALF, OPEN, HandoverEnv

LEFT, RIGHT = 0, 1
GRIP_ALONG = 0.037
LEFT_END = Grasp(BAR_HALF[2], 2 * BAR_HALF[1], BAR_HALF[0] - GRIP_ALONG, -GRIP_ALONG)
RIGHT_END = Grasp(BAR_HALF[2], 2 * BAR_HALF[1], BAR_HALF[0] - GRIP_ALONG, GRIP_ALONG)
MEETING_LIFT_M = 0.060
CARRY_M = 0.030  # lowest height over the table on the way to the pad
DROP_M = 0.014  # lowest place at which a bar held by its top can be taken: it is released here
RIGHT_SIDE_M = 0.035  # a bar that lies further right than this is the right arm's


class HandoverExpert(Expert):
    """Expert of Handover."""

    env: HandoverEnv

    def plan(self) -> list[NDArray[np.float64]]:
        return [self._plan_left(), self._plan_right()]

    def progress(self) -> float:
        bar, openings = self.env.position("bar"), self.env.openings()
        if self.env.on_pad():
            return 0.9 + 0.1 * min(openings.min() / OPEN, 1.0)
        if self.holds(RIGHT, "bar", RIGHT_END):
            off = float(np.linalg.norm(bar - self.env.position("pad")))
            return 0.6 + 0.05 * min(openings[LEFT] / OPEN, 1.0) + 0.2 * nearness(off, 0.20)
        done = 0.25 * self.reached(LEFT, "bar", LEFT_END)
        if not self.holds(LEFT, "bar", LEFT_END):
            return done
        done += 0.2 * nearness(float(np.linalg.norm(bar - self._meeting_point())), 0.14)
        return done + 0.15 * self.reached(RIGHT, "bar", RIGHT_END)

    def _meeting_point(self) -> NDArray[np.float64]:
        """Return where the bar's base hangs when it changes hands, [3]."""
        return np.array([0.008, 0.0, MEETING_LIFT_M]) + self.style.meeting_offset

    def _bar_is_right(self) -> bool:
        return bool(self.env.position("bar")[0] > RIGHT_SIDE_M)

    def _plan_left(self) -> NDArray[np.float64]:
        here = self.env.grip_points()[LEFT]
        if self.holds(RIGHT, "bar", RIGHT_END) or self.env.on_pad() or self._bar_is_right():
            if self.env.openings()[LEFT] < OPEN:
                return self.move(LEFT, here, GRIPPER_OPENING_MAX)
            return self.move(LEFT, np.array([-0.14, here[1], here[2]]), GRIPPER_OPENING_MAX)
        if not self.holds(LEFT, "bar", LEFT_END):
            return self.pick(LEFT, "bar", LEFT_END)
        return self.move(LEFT, here + self._meeting_point() - self.env.position("bar"), 0.0)

    def _plan_right(self) -> NDArray[np.float64]:
        here, bar = self.env.grip_points()[RIGHT], self.env.position("bar")
        if self.env.on_pad():
            return self.move(RIGHT, here, GRIPPER_OPENING_MAX)
        if self.holds(RIGHT, "bar", RIGHT_END):
            return self._carry(here, bar)
        meeting = self._meeting_point()
        offered = self.holds(LEFT, "bar", LEFT_END) and np.linalg.norm(bar - meeting) < 0.025
        if offered or self._bar_is_right():
            return self.pick(RIGHT, "bar", RIGHT_END)
        return self.move(RIGHT, meeting + np.array([GRIP_ALONG + 0.095, 0.0, BAR_HALF[2]]), GRIPPER_OPENING_MAX)

    def _carry(self, here: NDArray[np.float64], bar: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take the bar to the pad once the other hand is off it, and lower it there."""
        left_is_off = self.env.openings()[LEFT] > OPEN or self.env.grip_points()[LEFT][0] < bar[0] - 0.12
        if not left_is_off:
            return self.move(RIGHT, here, 0.0)
        way = self.env.position("pad") - bar
        if np.hypot(way[0], way[1]) > 0.6 * self.env.tolerance:
            way[2] = max(CARRY_M - bar[2], 0.0)
        elif bar[2] < DROP_M:
            return self.move(RIGHT, here, GRIPPER_OPENING_MAX)
        return self.move(RIGHT, here + way, 0.0)
