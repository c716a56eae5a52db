"""Handover: one arm picks up a bar, hands it over in the air, and the other arm lays it on a pad."""

import numpy as np
from numpy.typing import NDArray

from sim.env import TabletopEnv
from sim.experts.base import Expert, Grasp, nearness
from sim.scene import GREEN, GRIPPER_OPENING_MAX, RED, ArmSpec, box_geom, flat_marker, standing_object

BAR_HALF = (0.065, 0.012, 0.013)  # m
PAD_HALF = (0.050, 0.032)  # m
OPEN = 0.045  # m, both grippers must be open this far: the bar lies there by itself
ON_TABLE = 0.005  # m
WHITE = "0.98 0.95 0.90 1"
LEFT, RIGHT = 0, 1
GRIP_ALONG = 0.037
LEFT_END = Grasp(BAR_HALF[2], 2 * BAR_HALF[1], BAR_HALF[0] - GRIP_ALONG, -GRIP_ALONG)
RIGHT_END = Grasp(BAR_HALF[2], 2 * BAR_HALF[1], BAR_HALF[0] - GRIP_ALONG, GRIP_ALONG)
MEETING_LIFT_M = 0.060
CARRY_M = 0.030  # lowest height over the table on the way to the pad
DROP_M = 0.014  # lowest place at which a bar held by its top can be taken: it is released here
RIGHT_SIDE_M = 0.035  # a bar that lies further right than this is the right arm's


class HandoverEnv(TabletopEnv):
    """The bar starts where the right arm cannot take it, and the left arm's reach ends before the pad."""

    expert = "sim.tasks.handover:HandoverExpert"
    task_description = "hand the bar over and lay it on the pad"
    max_episode_steps = 150
    expert_steps = 70
    arms = (ArmSpec("left", (-0.25, 0.00)), ArmSpec("right", (0.015, 0.25)))
    home = ((-0.175, 0.0, 0.06), (0.16, 0.0, 0.09))
    objects = ("bar", "pad")

    @property
    def tolerance(self) -> float:
        """How far from the pad's middle the bar may lie, meters."""
        return 0.032 - 0.016 * self.difficulty

    def _bodies_xml(self) -> str:
        x, y, z = BAR_HALF
        bar = box_geom((x, y, z), (0, 0, z), RED, 'class="object" friction="0.3"')
        bar += box_geom((0.012, y + 0.0006, z + 0.0006), (0, 0, z), WHITE, 'contype="0" conaffinity="0"')
        return standing_object("bar", bar, 0.06, 2 * z, 8e-5) + flat_marker("pad", PAD_HALF, GREEN)

    def _place_objects(self, rng: np.random.Generator) -> None:
        spread = 0.3 + 0.7 * self.difficulty
        dx, dy = rng.uniform(-1, 1, 2) * (0.012, 0.070) * spread
        self.place("bar", -0.090 + dx, dy, rng.uniform(-0.15, 0.15) * spread)
        dx, dy = rng.uniform(-1, 1, 2) * (0.012, 0.070) * spread
        self.place("pad", 0.080 + dx, dy)

    def on_pad(self) -> bool:
        """Return whether the bar lies on the pad."""
        off = self.position("bar") - self.position("pad")
        return bool(np.hypot(off[0], off[1]) < self.tolerance and off[2] < ON_TABLE)

    def is_success(self) -> bool:
        return bool(self.on_pad() and self.openings().min() > OPEN)


class HandoverExpert(Expert):
    """Left brings the bar to the middle by one end, right takes the other end, left lets go, right lays it down."""

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
