"""Handover: one arm picks up a bar, hands it over in the air, and the other arm lays it on a pad."""

import numpy as np

from sim.env import TabletopEnv
from sim.scene import GREEN, RED, ArmSpec, box_geom, flat_marker, standing_object

BAR_HALF = (0.065, 0.012, 0.013)  # m
PAD_HALF = (0.050, 0.032)  # m
OPEN = 0.045  # m, both grippers must be open this far: the bar lies there by itself
ON_TABLE = 0.005  # m
WHITE = "0.98 0.95 0.90 1"


class HandoverEnv(TabletopEnv):
    """The bar starts where the right arm cannot take it, and the left arm's reach ends before the pad."""

    expert = "sim.experts.handover:HandoverExpert"
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
