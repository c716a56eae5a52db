"""A mock robot whose sensors fail, or whose reading blocks, from a time of the attempt on."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_io.disturbances import Disturbance
from robot_io.mock_robot import MockRobot
from vla_rl.core.types import Float32Array, Observation, Uint8Array


@dataclass(frozen=True)
class MockFaults:
    """Times of faults, seconds since the start of the attempt; ``inf`` for never.

    Attributes:
        camera_freezes_s: The camera repeats its frame, with new time stamps.
        camera_dies_s: The camera gives no new frames.
        state_nan_s: The joints read NaN.
        stall_s: One reading blocks ...
        stall_duration_s: ... for this long.
    """

    camera_freezes_s: float = np.inf
    camera_dies_s: float = np.inf
    state_nan_s: float = np.inf
    stall_s: float = np.inf
    stall_duration_s: float = 0.0


class FailingRobot(MockRobot):
    """Arguments as of `MockRobot`, and the faults."""

    def __init__(self, faults: MockFaults, *arguments: Any, **keywords: Any) -> None:
        self.faults = faults
        super().__init__(*arguments, **keywords)
        self.disturbance = _Failing(self)

    def reset(self, seed: int) -> None:
        self._stalled = False
        super().reset(seed)

    def elapsed_s(self) -> float:
        return (self.clock.now_ns() - self._start_ns) * 1e-9

    def read(self) -> Observation:
        if self.elapsed_s() >= self.faults.stall_s and not self._stalled:
            self._stalled = True
            self.clock.sleep_until_ns(self.clock.now_ns() + round(self.faults.stall_duration_s * 1e9))
        return super().read()


class _Failing(Disturbance):
    def __init__(self, robot: FailingRobot) -> None:
        self._robot = robot
        self._last: dict[str, Uint8Array] = {}

    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        elapsed_s, faults = self._robot.elapsed_s(), self._robot.faults
        if elapsed_s >= faults.camera_dies_s:
            return None
        if elapsed_s >= faults.camera_freezes_s:
            return self._last[camera]
        self._last[camera] = image
        return image

    def state(self, state: Float32Array) -> Float32Array:
        return state * np.nan if self._robot.elapsed_s() >= self._robot.faults.state_nan_s else state
