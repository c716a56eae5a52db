"""A SpaceMouse of 3Dconnexion, read from Linux' hidraw without any library.

Reports of the device are little endian. Report 1: translation x, y, z, each int16 from about -350 to 350. Report 2:
rotation. Report 3: a bit for each button. It sends only while something changes. Read in the control thread; reading
never blocks.
"""

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import override

import numpy as np

from robot_io.motion import MotionSteps
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Float32Array

_VENDORS = ("256F", "046D")
_FULL_SCALE, _DEAD_ZONE = 350.0, 0.08  # the second is a share of the first
_TRANSLATION, _BUTTONS = 1, 3
_LEFT, _RIGHT = 1, 2


class SpaceMouse:
    """Motion of the cap moves the tool; the left button closes the gripper, the right one opens it.

    Args:
        device: such as /dev/hidraw3; None takes the first one of the maker.

    Raises:
        UserError: if there is no such device, or it may not be read.
    """

    def __init__(self, device: Path | None = None) -> None:
        self._path = device or _find()
        self._motion = (0.0, 0.0, 0.0)
        self._buttons = 0
        self._file: int | None = None

    @property
    def moved(self) -> bool:
        """Whether the cap is out of its dead zone or a button is held."""
        return any(self._motion) or bool(self._buttons)

    @property
    def both_buttons(self) -> bool:
        """Whether both buttons are held: the person gives up."""
        return self._buttons & (_LEFT | _RIGHT) == _LEFT | _RIGHT

    def connect(self) -> None:
        """Open the device."""
        try:
            self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise UserError(f"cannot read the SpaceMouse {self._path} ({error.strerror}); a udev rule helps") from error

    def disconnect(self) -> None:
        """Close it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def read(self) -> tuple[Float32Array, float]:
        """Return the motion of the cap and what the gripper does, from all reports that have come.

        The motion is forwards, to the left and upwards, float32 [3], each -1 to 1. The gripper closes at -1, stays at 0
        and opens at 1.

        Raises:
            UserError: The device was unplugged.
        """
        assert self._file is not None, "connect before reading"
        try:
            while report := os.read(self._file, 64):
                self._take(report)
        except BlockingIOError:
            pass
        except OSError as error:
            raise UserError(f"the SpaceMouse is silent ({error.strerror}): plug it in, and start again") from error
        gripper = float(bool(self._buttons & _RIGHT)) - bool(self._buttons & _LEFT)
        right, backwards, down = self._motion
        return np.array([-backwards, -right, -down], np.float32), gripper

    def _take(self, report: bytes) -> None:
        if report[0] == _TRANSLATION and len(report) >= 7:
            raw = (axis / _FULL_SCALE for axis in struct.unpack_from("<hhh", report, 1))
            x, y, z = (0.0 if abs(axis) < _DEAD_ZONE else max(-1.0, min(axis, 1.0)) for axis in raw)
            self._motion = (x, y, z)
        elif report[0] == _BUTTONS and len(report) >= 2:
            self._buttons = report[1]


class SpaceMouseDriver(TakeoverSource):
    """Commands while the person moves a connected SpaceMouse. Both buttons ``end`` the attempt without success."""

    def __init__(self, mouse: SpaceMouse, steps: MotionSteps, end: Callable[[bool | None], None]) -> None:
        self._mouse, self._steps, self._end = mouse, steps, end

    @override
    def reset(self, seed: int) -> None:
        """A person needs no seed."""

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """Return the person's command of this tick, or None; ``proposed`` is the command that holds still."""
        motion, gripper = self._mouse.read()
        if self._mouse.both_buttons:
            self._end(False)
        return self._steps(proposed, motion, gripper) if self._mouse.moved else None


def _find() -> Path:
    for entry in sorted(Path("/sys/class/hidraw").glob("hidraw*")):
        described = (entry / "device" / "uevent").read_text().upper()
        if "SPACE" in described and any(f":0000{vendor}:" in described for vendor in _VENDORS):
            return Path("/dev") / entry.name
    raise UserError("no SpaceMouse was found; plug it in, or name its /dev/hidraw device")
