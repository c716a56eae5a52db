"""A serial bus of servos that exists only in memory: lerobot's own SO-101 classes run on it unchanged."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

PICTURE = (64, 64, 3)


class MemoryBus:
    """Servos that reach every goal at once. They stand for lerobot's ``FeetechMotorsBus``."""

    is_calibrated = True

    def __init__(self, port: str, motors: dict[str, Any], calibration: dict[str, Any]) -> None:
        self.port, self.motors, self.calibration = port, motors, calibration
        self.is_connected = False
        self.position = dict.fromkeys(motors, 0.0)

    def connect(self) -> None:
        self.is_connected = True

    def disconnect(self, disable_torque: bool = True) -> None:
        self.is_connected = False

    @contextmanager
    def torque_disabled(self) -> Iterator[None]:
        yield

    def enable_torque(self) -> None: ...

    def disable_torque(self) -> None: ...

    def configure_motors(self) -> None: ...

    def write(self, register: str, motor: str, value: Any) -> None: ...

    def sync_read(self, register: str, num_retry: int = 0) -> dict[str, float]:
        return dict(self.position)

    def sync_write(self, register: str, goals: dict[str, float]) -> None:
        self.position |= goals

    def set_half_turn_homings(self) -> dict[str, int]:
        return dict.fromkeys(self.motors, 0)

    def record_ranges_of_motion(self, motors: Sequence[str]) -> tuple[dict[str, int], dict[str, int]]:
        return dict.fromkeys(motors, 0), dict.fromkeys(motors, 4095)

    def write_calibration(self, calibration: dict[str, Any]) -> None:
        self.calibration = calibration


class MemoryCamera:
    """Gives gray pictures that get brighter."""

    height, width = PICTURE[:2]

    def __init__(self) -> None:
        self.is_connected, self._taken = False, 0

    def connect(self) -> None:
        self.is_connected = True

    def disconnect(self) -> None:
        self.is_connected = False

    def read_latest(self) -> np.ndarray:
        self._taken += 1
        return np.full(PICTURE, self._taken % 256, np.uint8)


def put_arm_in_memory(patch: pytest.MonkeyPatch) -> None:
    """Let lerobot's SO-101 follower and leader use a bus and cameras in memory."""
    from lerobot.robots.so_follower import so_follower
    from lerobot.teleoperators.so_leader import so_leader

    for module in (so_follower, so_leader):
        patch.setattr(module, "FeetechMotorsBus", MemoryBus)
    patch.setattr(so_follower, "make_cameras_from_configs", lambda configs: {name: MemoryCamera() for name in configs})
