"""Which pictures are pictures of the camera that the policy knows."""

import numpy as np
import pytest

from robot_io.staleness import StalenessFilter
from vla_rl.core.errors import UserError


@pytest.mark.parametrize("shape", [(0, 0), (1, 1), (40, 64), (64, 300), (2, 64)])
def test_a_picture_without_the_detail_or_the_cut_of_the_policys_is_refused(shape: tuple[int, int]) -> None:
    freshness = StalenessFilter(detect_frozen=True, size=(64, 64))
    with pytest.raises(UserError, match=rf"'front' gives pictures of {shape[0]} x {shape[1]}"):
        freshness.image("front", np.zeros((*shape, 3), np.uint8), 1)
    assert "front" not in freshness.captured_ns
    freshness.image("front", np.zeros((480, 640, 3), np.uint8), 2)
    assert freshness.captured_ns["front"] == 2


def test_a_camera_that_turns_on_its_side_is_noticed() -> None:
    freshness = StalenessFilter(detect_frozen=False)
    freshness.image("front", np.zeros((480, 640, 3), np.uint8), 1)
    with pytest.raises(UserError, match="640 x 480; its first one was 480 x 640"):
        freshness.image("front", np.zeros((640, 480, 3), np.uint8), 2)
    assert freshness.captured_ns["front"] == 1
