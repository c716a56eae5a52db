"""What every arm of lerobot's has to say of itself, for arms that are only in memory."""

from lerobot.robots import Robot, RobotConfig


class MemoryArm(Robot):
    """Connected when it is told so, and calibrated from the start. Subclasses say what it senses and does."""

    is_calibrated = True

    def __init__(self, config: RobotConfig) -> None:
        super().__init__(config)
        self._connected = False

    @property
    def is_connected(self) -> bool:
        return self._connected

    def connect(self, calibrate: bool = True) -> None:
        self._connected = True

    def calibrate(self) -> None: ...

    def configure(self) -> None: ...

    def disconnect(self) -> None:
        self._connected = False
