"""LidOnBox: one arm fetches a light, slippery box from where only it can reach; the other seats the lid on it."""

import numpy as np
from numpy.typing import NDArray

from sim.env import TabletopEnv
from sim.experts.base import STRAY_X_M, Expert, Grasp, nearness
from sim.scene import GRIPPER_OPENING_MAX, RED, ArmSpec, box_geom, four_walls, standing_object

BOX_HALF, BOX_HEIGHT = 0.032, 0.046  # m
BASE_HEIGHT, WALL_HALF = 0.028, 0.0035  # m: the box is solid up to here, so that fingers cannot press its walls in
LID_HALF, LID_THICKNESS = 0.035, 0.007  # m
PLUG_HEIGHT = 0.010  # m: the step under the lid that keeps it on the box
KNOB_HALF, KNOB_HEIGHT = 0.012, 0.034  # m
SEATED_GAP = 0.004  # m, what may be left between lid and rim
VIOLET, DARK_VIOLET = "0.45 0.15 0.75 1", "0.25 0.08 0.42 1"
YELLOW, DARK_YELLOW = "0.98 0.85 0.10 1", "0.75 0.60 0.05 1"
OPEN = 0.045  # m, the right gripper must be open this far: the lid lies there by itself
LEFT, RIGHT = 0, 1
BOX = Grasp(height=0.020, width=2 * BOX_HALF, half_length=BOX_HALF)
LID = Grasp(height=0.040, width=2 * KNOB_HALF, half_length=LID_HALF, slack=0.012)
HOVER_M = 0.016  # height of the plug's end above the rim before the lid goes down


class LidOnBoxEnv(TabletopEnv):
    """The box starts beyond the right arm's reach and slides at a touch, so the left arm has to bring and hold it.

    Success is the lid seated on the rim and let go.
    """

    expert = "sim.tasks.lid_on_box:LidOnBoxExpert"
    task_description = "put the lid on the box"
    max_episode_steps = 130
    expert_steps = 60
    arms = (ArmSpec("left", (-0.25, 0.17)), ArmSpec("right", (-0.03, 0.25)))
    home = ((-0.17, 0.0, 0.06), (0.17, 0.0, 0.09))
    objects = ("box", "lid")

    @property
    def clearance(self) -> float:
        """Distance between the lid's plug and each wall of the box, meters."""
        return 0.009 - 0.005 * self.difficulty

    def _bodies_xml(self) -> str:
        slippery, smooth = 'class="object" friction="0.15"', 'class="object" friction="0.3"'
        box = four_walls(BOX_HALF - 2 * WALL_HALF, WALL_HALF, BASE_HEIGHT, BOX_HEIGHT, VIOLET, slippery)
        base = box_geom((BOX_HALF, BOX_HALF, BASE_HEIGHT / 2), (0, 0, BASE_HEIGHT / 2), DARK_VIOLET, slippery)
        plug_half = BOX_HALF - 2 * WALL_HALF - self.clearance
        lid, low = "", 0.0
        for half, height, rgba in (
            (plug_half, PLUG_HEIGHT, DARK_YELLOW),
            (LID_HALF, LID_THICKNESS, YELLOW),
            (KNOB_HALF, KNOB_HEIGHT, RED),
        ):
            lid += box_geom((half, half, height / 2), (0, 0, low + height / 2), rgba, smooth)
            low += height
        return standing_object("box", base + box, 0.06, BOX_HEIGHT, 6e-5) + standing_object(
            "lid", lid, 0.05, 0.02, 4e-5
        )

    def _place_objects(self, rng: np.random.Generator) -> None:
        spread = 0.3 + 0.7 * self.difficulty
        for name, x in (("box", -0.095), ("lid", 0.085)):
            dx, dy = rng.uniform(-1, 1, 2) * (0.025, 0.070) * spread
            self.place(name, x + dx, dy, rng.uniform(-0.15, 0.15) * spread)

    def lid_gap(self) -> float:
        """Height of the lid above its seat, meters; 1 while it is beside the box."""
        x, y, z = self.in_frame_of("box", self.position("lid"))
        if max(abs(x), abs(y)) > 0.015:
            return 1.0
        return z + PLUG_HEIGHT - BOX_HEIGHT

    def is_success(self) -> bool:
        return bool(self.openings()[1] > OPEN and self.lid_gap() < SEATED_GAP)


class LidOnBoxExpert(Expert):
    """The left arm brings the box to the middle and holds it, the right arm lowers the lid onto it and lets go."""

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
