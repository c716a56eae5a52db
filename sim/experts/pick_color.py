"""Expert of PickColor."""

import numpy as np
from numpy.typing import NDArray

from sim.experts.pick_place import HOVER_M, PickPlaceExpert
from sim.scene import GRIPPER_OPENING_MAX
from sim.tasks.pick_place import TRAY_RIM

_CLEAR_M = TRAY_RIM + HOVER_M - 0.008  # height of the carried cube from which the hand passes over the others


class PickColorExpert(PickPlaceExpert):
    """Lifts a cube over the others and drops it: further down its boom would meet one of them."""

    def carry(
        self, here: NDArray[np.float64], way: NDArray[np.float64], height: float, over: bool
    ) -> NDArray[np.float64]:
        if over:
            return self.move(0, here, GRIPPER_OPENING_MAX)
        way[2] = TRAY_RIM + HOVER_M - height
        if height < _CLEAR_M:
            way[:2] = 0.0
        return self.move(0, here + way, 0.0)
