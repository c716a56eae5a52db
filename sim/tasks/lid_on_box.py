"""LidOnBox: one arm fetches a light, slippery box from where only it can reach; the other seats the lid on it."""

import numpy as np

from sim.env import TabletopEnv
from sim.scene import RED, ArmSpec, box_geom, four_walls, standing_object

BOX_HALF, BOX_HEIGHT = 0.032, 0.046  # m
BASE_HEIGHT, WALL_HALF = 0.028, 0.0035  # m: the box is solid up to here, so that fingers cannot press its walls in
LID_HALF, LID_THICKNESS = 0.035, 0.007  # m
PLUG_HEIGHT = 0.010  # m: the step under the lid that keeps it on the box
KNOB_HALF, KNOB_HEIGHT = 0.012, 0.034  # m
SEATED_GAP = 0.004  # m, what may be left between lid and rim
VIOLET, DARK_VIOLET = "0.45 0.15 0.75 1", "0.25 0.08 0.42 1"
YELLOW, DARK_YELLOW = "0.98 0.85 0.10 1", "0.75 0.60 0.05 1"
OPEN = 0.045  # m, the right gripper must be open this far: the lid lies there by itself


class LidOnBoxEnv(TabletopEnv):
    """The box starts beyond the right arm's reach and slides at a touch, so the left arm has to bring and hold it.

    Success is the lid seated on the rim and let go.
    """

    expert = "sim.experts.lid_on_box:LidOnBoxExpert"
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
