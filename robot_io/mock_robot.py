"""A robot without hardware: joints with lag, a noisy camera and a command watchdog.

For trying out configurations, operators' screens and, with a disturbance of its sensors, failures before a real arm
moves. Lives on any clock.
"""

import contextlib
from dataclasses import dataclass

import numpy as np

from robot_io.disturbances import Disturbance
from robot_io.faults import Detector
from robot_io.staleness import StalenessFilter
from vla_rl.core.clock import Clock, VirtualClock
from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Condition
from vla_rl.core.types import Float32Array, Observation, Uint8Array


@dataclass(frozen=True)
class MockRobotConfig:
    """The mock's body.

    Attributes:
        joints: A.
        state_size: S; the state is the joints' positions, then zeros. 0: as many as joints. A state that names the
            joints has each position under its name.
        control_hz: rate of the control loop.
        lag_s: time constant with which joints follow their commands.
        cameras: names; all of them show the same.
        image_size: height of the pictures, pixels.
        image_width: 0: as the height.
        command_timeout_ms: without a command for so long the robot stops by itself, as real controllers do.
        duration_s: the attempt is truncated then.
        task: the task sentence.
        state_dimensions: Names and units of the state; undeclared: those of the joints, then ``unused_1`` and so on.
        action_dimensions: Names and units of the joints; undeclared: ``joint_1`` and so on, in radians.
    """

    joints: int = 6
    state_size: int = 0
    control_hz: float = 30.0
    lag_s: float = 0.05
    cameras: tuple[str, ...] = ("front",)
    image_size: int = 48
    image_width: int = 0
    command_timeout_ms: float = 500.0
    duration_s: float = 5.0
    task: str = "follow the commands"
    state_dimensions: Dimensions = UNDECLARED
    action_dimensions: Dimensions = UNDECLARED


class MockRobot:
    """An `EpisodicRobot` (see `vla_rl.execution.loop`) in memory.

    Attributes:
        stopped_ns: when `stop` or its own watchdog brought it to rest; commands do nothing until the next `reset`.
        commands: how many commands were obeyed in the attempt.
        writes: every command of the attempt, obeyed or not: (when, float32 [A]).
        stopped_after: how many of them came before the first `stop`; None before it.
        disturbance: what the sensors say goes through it, see `robot_io.faults`; None: they are sound.
    """

    detectors = (Detector.AGES, Detector.STALENESS, Detector.JOINTS, Detector.POLICY)
    disturbance: Disturbance | None = None
    terminated = False
    success: bool | None = None

    def __init__(self, config: MockRobotConfig | None = None, clock: Clock | None = None) -> None:
        self.config = config or MockRobotConfig()
        self.clock = clock or VirtualClock()
        self.control_hz = self.config.control_hz
        self.state_dimensions, self.action_dimensions = self._dimensions()
        measured, joints = self.state_dimensions.names, self.action_dimensions.names
        named = set(joints) <= set(measured)
        self._places = [measured.index(joint) for joint in joints] if named else list(range(len(joints)))
        self.reset(0)

    def connect(self) -> None:
        """Do nothing: a mock is always there."""

    def reset(self, seed: int) -> None:
        """Return to a random posture that the seed gives."""
        self._random = np.random.Generator(np.random.Philox(key=seed))
        self._position = self._random.uniform(-0.3, 0.3, self.config.joints).astype(np.float32)
        self._command = self._position.copy()
        self._staleness = StalenessFilter(detect_frozen=True)
        image = self._picture()
        self._start_ns = self._moved_ns = self._commanded_ns = self.clock.now_ns()
        self._images = dict.fromkeys(self.config.cameras, image)
        self._measured: Float32Array = np.zeros(self.config.state_size or self.config.joints, np.float32)
        self.stopped_ns: int | None = None
        self.commands = 0
        self.writes: list[tuple[int, Float32Array]] = []
        self.stopped_after: int | None = None

    @property
    def truncated(self) -> bool:
        """The time is over, or the robot stopped itself."""
        elapsed_s = (self.clock.now_ns() - self._start_ns) * 1e-9
        return self.stopped_ns is not None or elapsed_s >= self.config.duration_s

    def read(self) -> Observation:
        self._advance()
        now_ns = self.clock.now_ns()
        image = self._picture()
        state: Float32Array = np.zeros(self.config.state_size or self.config.joints, np.float32)
        state[self._places] = self._position
        measured = state if self.disturbance is None else self.disturbance.state(state)
        if measured is not None:
            self._measured = self._staleness.state(measured, now_ns)
        for camera in self.config.cameras:
            taken = image if self.disturbance is None else self.disturbance.image(camera, image)
            if taken is not None:
                with contextlib.suppress(UserError):
                    self._images[camera] = self._staleness.image(camera, taken, now_ns)
        return Observation(dict(self._images), self._measured, self.config.task, 0, dict(self._staleness.captured_ns))

    def rest_command(self) -> Float32Array:
        return self._position.copy()

    def condition(self) -> Condition:
        return Condition(self._measured[self._places], self._command, self._staleness.captured_ns["state"])

    def write(self, action: Float32Array) -> Float32Array:
        """Take a command over, unless the robot has stopped."""
        self._advance()
        self.writes.append((self.clock.now_ns(), action.copy()))
        if self.stopped_ns is None:
            self._command = action.copy()
            self._commanded_ns = self.clock.now_ns()
            self.commands += 1
        return self._command.copy()

    def stop(self) -> None:
        """Hold the present position."""
        if self.stopped_after is None:
            self.stopped_after = len(self.writes)
        self._advance()
        self._rest(self.clock.now_ns())

    def close(self) -> None:
        """Nothing to release."""

    def _dimensions(self) -> tuple[Dimensions, Dimensions]:
        joints, size = self.config.joints, self.config.state_size or self.config.joints
        names = [f"joint_{joint + 1}" for joint in range(joints)]
        action = self.config.action_dimensions or Dimensions(tuple(names), ("rad",) * joints)
        unused = Dimensions(tuple(f"unused_{number + 1}" for number in range(size - joints)))
        state = self.config.state_dimensions or action.take(range(joints)) + unused
        return state.check_size(size, "robot.state_dimensions"), action.check_size(joints, "robot.action_dimensions")

    def _advance(self) -> None:
        """Move the joints up to the present, or to the moment at which the command watchdog bit."""
        now_ns = self.clock.now_ns()
        timeout_ns = self._commanded_ns + round(self.config.command_timeout_ms * 1e6)
        moving_s = (min(now_ns, timeout_ns) - self._moved_ns) * 1e-9
        if moving_s > 0:
            self._position += (self._command - self._position) * np.float32(1 - np.exp(-moving_s / self.config.lag_s))
        self._moved_ns = now_ns
        if now_ns > timeout_ns:
            self._rest(timeout_ns)

    def _rest(self, now_ns: int) -> None:
        self._command = self._position.copy()
        if self.stopped_ns is None:
            self.stopped_ns = now_ns

    def _picture(self) -> Uint8Array:
        """Noise, and a bright square at the place of the first joint: uint8 [H, W, 3]."""
        height, width = self.config.image_size, self.config.image_width or self.config.image_size
        picture = self._random.integers(0, 40, (height, width, 3), dtype=np.uint8)
        left = int(np.clip((self._position[0] + 1) / 2, 0, 0.85) * width)
        picture[height // 3 : height // 2, left : left + width // 6] = (240, 160, 40)
        return picture
