"""A SpaceMouse of 3Dconnexion as a teleoperator with lerobot's interface, read from Linux' hidraw without any library.

Reports of the device are little endian. Report 1: translation x, y, z, each int16 from about -350 to 350. Report 2:
rotation. Report 3: a bit for each button. It sends only while something changes. Read in the control thread; reading
never blocks.
"""

import os
import struct
from pathlib import Path
from typing import Any

from vla_rl.core.errors import UserError

_VENDORS = ("256F", "046D")
_FULL_SCALE = 350.0
_TRANSLATION, _BUTTONS = 1, 3
_LEFT, _RIGHT = 1, 2


class SpaceMouse:
    """Motion of the cap moves the tool; the left button closes the gripper, the right one opens it.

    The person intervenes while the cap is out of its dead zone or a button is held. Both buttons at once end the
    attempt without success.

    Args:
        device: such as /dev/hidraw3; None takes the first one of the maker.
        dead_zone: part of the full scale that does not count.

    Raises:
        UserError: if there is no such device, or it may not be read.
    """

    name = "spacemouse"

    def __init__(self, device: Path | None = None, dead_zone: float = 0.08) -> None:
        self._path = device or _find()
        self._dead_zone = dead_zone
        self._motion = (0.0, 0.0, 0.0)
        self._buttons = 0
        self._file: int | None = None

    @property
    def action_features(self) -> dict[str, Any]:
        """As lerobot's gamepad has them."""
        names = {"delta_x": 0, "delta_y": 1, "delta_z": 2, "gripper": 3}
        return {"dtype": "float32", "shape": (4,), "names": names}

    @property
    def is_connected(self) -> bool:
        return self._file is not None

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

    def get_action(self) -> dict[str, float]:
        """Read the cap and the buttons; an unplugged device raises OSError.

        ``delta_x`` is forwards, ``delta_y`` to the left, ``delta_z`` upwards, each -1 to 1; ``gripper`` 0 closes, 1
        stays, 2 opens.
        """
        self._read_reports()
        right, backwards, down = self._motion
        gripper = 1.0 - bool(self._buttons & _LEFT) + bool(self._buttons & _RIGHT)
        return {"delta_x": -backwards, "delta_y": -right, "delta_z": -down, "gripper": gripper}

    def get_teleop_events(self) -> dict[Any, bool]:
        """Return lerobot's events of the newest reports; call `get_action` before."""
        from lerobot.teleoperators.utils import TeleopEvents

        both = self._buttons & (_LEFT | _RIGHT) == _LEFT | _RIGHT
        return {
            TeleopEvents.IS_INTERVENTION: any(self._motion) or bool(self._buttons),
            TeleopEvents.TERMINATE_EPISODE: both,
            TeleopEvents.SUCCESS: False,
            TeleopEvents.RERECORD_EPISODE: False,
        }

    def _read_reports(self) -> None:
        assert self._file is not None, "connect before reading"
        while True:
            try:
                report = os.read(self._file, 64)
            except BlockingIOError:
                return
            if not report:
                return
            self._take(report)

    def _take(self, report: bytes) -> None:
        if report[0] == _TRANSLATION and len(report) >= 7:
            raw = (axis / _FULL_SCALE for axis in struct.unpack_from("<hhh", report, 1))
            x, y, z = (0.0 if abs(axis) < self._dead_zone else max(-1.0, min(axis, 1.0)) for axis in raw)
            self._motion = (x, y, z)
        elif report[0] == _BUTTONS and len(report) >= 2:
            self._buttons = report[1]


def _find() -> Path:
    for entry in sorted(Path("/sys/class/hidraw").glob("hidraw*")):
        described = (entry / "device" / "uevent").read_text().upper()
        if "SPACE" in described and any(f":0000{vendor}:" in described for vendor in _VENDORS):
            return Path("/dev") / entry.name
    raise UserError("no SpaceMouse was found; plug it in, or name its /dev/hidraw device")
