"""Any robot of lerobot as a robot of ours.

The control thread calls lerobot's drivers: `get_observation` reads the bus and takes the newest picture of every
camera's own thread.

A driver that fails raises what its libraries raise: TimeoutError, ConnectionError, RuntimeError, but also termios.error
or can.CanError, which share no base below Exception. None of them may end the control loop while the robot moves: only
the gate brings it to rest.
"""

import functools
import logging
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robot_io.disturbances import Disturbance
from robot_io.faults import Detector
from robot_io.staleness import StalenessFilter
from vla_rl.core.clock import Clock, MonotonicClock
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.pictures import resized
from vla_rl.core.protocols import REST_READINGS, Condition
from vla_rl.core.types import Float32Array, Observation, Uint8Array
from vla_rl_lerobot.devices import holds_near, lock_ports, make_device, unit_of_each

_log = logging.getLogger(__name__)
_FLOWING_TICKS = 2  # a longer pause after a command and the robot may have been moved


class LerobotRobot:
    """An `EpisodicRobot` (see `vla_rl.execution.loop`) around a lerobot robot. A person labels the outcome.

    State and action hold the numbers of lerobot's observation and action, in its order (``shoulder_pan.pos``, ...).
    What has three dimensions is a camera.

    If the driver fails, capture times stand still, and the gate's watchdog stops the robot. After a failed command, the
    last successful one is repeated until the next `reset`. The gate's commands have moved on meanwhile, and the robot
    must not jump after them. A step is not repeated: it would move on.

    Args:
        device: A `lerobot.robots.Robot`; `make_lerobot_robot` makes one from a config.
        control_hz: Rate of the control loop.
        task: The task sentence.
        image_size: [height, width] that every picture is brought to; None leaves them as they come.
        duration_s: Time limit of an attempt.
        detect_frozen: A camera that repeats its frame counts as silent.
        clock: Time of the loop; default: the machine's.
        step_dims: Dimensions of the action that are steps, ``delta_dims`` of the limits: at rest they are 0.

    Raises:
        UserError: A number of the action is not measured, so the robot's rest is unknown.

    Attributes:
        state_dimensions: lerobot's names of the numbers of the state, with the units of the driver.
        action_dimensions: Names and units of the action.
        disturbance: Disturbs the readings, see `robot_io.faults`; None leaves them unchanged.
    """

    detectors = (Detector.AGES, Detector.STALENESS, Detector.JOINTS, Detector.START, Detector.POLICY)
    disturbance: Disturbance | None = None

    def __init__(
        self,
        device: Any,
        control_hz: float,
        task: str,
        image_size: tuple[int, int] | None = None,
        duration_s: float = 60.0,
        detect_frozen: bool = True,
        clock: Clock | None = None,
        step_dims: Sequence[int] = (),
    ) -> None:
        self.device = device
        self._step_dims = list(step_dims)
        self.control_hz = control_hz
        self.clock = clock or MonotonicClock()
        self._task, self._duration_ns = task, round(duration_s * 1e9)
        self._image_size = image_size
        features = device.observation_features
        self.cameras = tuple(name for name, kind in features.items() if isinstance(kind, tuple))
        self.state_names = tuple(name for name in features if name not in self.cameras)
        self.action_names = tuple(device.action_features)
        self.state_dimensions = Dimensions(self.state_names, unit_of_each(device, self.state_names))
        self.action_dimensions = Dimensions(self.action_names, unit_of_each(device, self.action_names))
        for name in self.action_names:
            if name not in self.state_names:
                raise UserError(f"{device.name} measures no {name!r}.{did_you_mean(name, self.state_names)}")
        self._holds_near = holds_near(getattr(device, "config", None))
        self._measured = [self.state_names.index(name) for name in self.action_names]
        self._new_staleness = functools.partial(StalenessFilter, detect_frozen, image_size)
        self._staleness = self._new_staleness()
        self._rest: list[Float32Array] = []
        self._command: Float32Array | None = None
        self._commanded_ns = 0  # when it was sent
        self._wanted: Float32Array = np.zeros(len(self.action_names), np.float32)  # `reset` says what
        self._state: Float32Array = np.zeros(len(self.state_names), np.float32)
        self.success: bool | None = None
        self._start_ns = 0
        self._ended = False
        self._observation: Observation | None = None
        self._unreadable = self._deaf = False
        self._ports: list[int] = []

    def connect(self) -> None:
        """Connect, and calibrate if the robot asks for it.

        Raises:
            UserError: if another program of ours drives it.
        """
        if not self.device.is_connected:
            self.take_ports(self.device)
            self.device.connect()

    def take_ports(self, device: Any) -> None:
        """Lock the serial ports of this robot or of its teleoperator until `close`, see `lock_ports`."""
        self._ports += lock_ports(getattr(device, "config", None))

    def reset(self, seed: int) -> None:
        """Begin an attempt in the scene as a person has prepared it; a real world has no seed.

        Raises:
            UserError: if the robot cannot be read.
        """
        del seed
        self.success, self._ended = None, False
        self._unreadable = self._deaf = False
        self._staleness = self._new_staleness()  # no reading of the attempt before may stand in for one of this
        self._rest.clear()
        for _ in range(REST_READINGS):
            self._observation = None  # so that a reading that fails is not replaced by the one before
            self.read()
            self._rest.append(self.rest_command())
            self.clock.sleep_until_ns(self.clock.now_ns() + round(1e9 / self.control_hz))
        self._command = self._wanted = self.rest_command()
        self._start_ns = self.clock.now_ns()

    def read(self) -> Observation:
        """Read the robot; repeat the last observation if it cannot be read or commanded.

        lerobot gives no capture times: a stream has the time of this call, and a picture may be one frame older.

        Raises:
            UserError: The first reading of an attempt fails, or has a picture of another size than the driver declares.
        """
        if self._deaf and self._observation is not None:
            return self._observation
        now_ns = self.clock.now_ns()
        try:
            raw = self._raw()
            images = {camera: self._staleness.image(camera, np.asarray(raw[camera]), now_ns) for camera in self.cameras}
            state = np.array([raw[name] for name in self.state_names], np.float32)
        except Exception as error:  # see the module
            if self._observation is None:
                raise UserError(f"{self.device.name} cannot be read: {_line(error)}; look at its cables") from error
            if not self._unreadable:
                _log.warning("%s cannot be read (%s); its last reading counts", self.device.name, _line(error))
            self._unreadable = True
            return self._observation
        if self._observation is None:
            self._check_sizes(images)
        if self._unreadable:
            _log.warning("%s can be read again", self.device.name)
        self._unreadable = False
        self._state = self._staleness.state(state, now_ns)
        if self._image_size is not None:
            images = {camera: resized(image, self._image_size) for camera, image in images.items()}
        self._observation = Observation(images, self._state, self._task, 0, dict(self._staleness.captured_ns))
        return self._observation

    def _raw(self) -> Mapping[str, Any]:
        """What the driver says. Its readings come together: if one is missing, it has failed."""
        raw: Mapping[str, Any] = self.device.get_observation()
        if self.disturbance is None:
            return raw
        images = {camera: self.disturbance.image(camera, np.asarray(raw[camera])) for camera in self.cameras}
        joints = {name: self.disturbance.joint(dim, float(raw[name])) for dim, name in enumerate(self.state_names)}
        if silent := [name for name, value in {**images, **joints}.items() if value is None]:
            raise TimeoutError(f"{silent[0]} says nothing")
        return {**images, **joints}

    def _check_sizes(self, images: Mapping[str, Uint8Array]) -> None:
        """Compare the pictures with the sizes that the driver declares, where it declares any."""
        for camera, image in images.items():
            size = self.device.observation_features[camera][:2]
            if None not in size and image.shape[:2] != tuple(size):
                raise UserError(
                    f"camera {camera!r} gives pictures of {image.shape[0]} x {image.shape[1]}, {self.device.name} "
                    f"declares {size[0]} x {size[1]}; correct height and width in robot.cameras"
                )

    @property
    def moves_tool(self) -> bool:
        """Whether the action begins with the tool's x, y, z (``ee.x``, ...)."""
        return [name.rpartition(".")[2] for name in self.action_names[:3]] == ["x", "y", "z"]

    def rest_command(self) -> Float32Array:
        """Return the measured positions of the commanded joints; steps, which are not measured, are 0."""
        return self._without_steps(self._state[self._measured])

    def rest_readings(self) -> Float32Array:
        return np.stack(self._rest)

    def condition(self) -> Condition:
        """Newest condition, without effort, which lerobot does not measure.

        A driver that keeps its goals near the joints would hide an obstacle: the command that it was given counts.
        """
        command = self._wanted if self._holds_near else self.last_command()
        return Condition(self.rest_command(), command, self._staleness.captured_ns["state"])

    def write(self, action: Float32Array) -> Float32Array:
        """Send the action; return it after the driver's limits, or the last that succeeded, without its steps."""
        if self._deaf:
            action = self._without_steps(self.last_command())
        wanted = dict(zip(self.action_names, action.tolist(), strict=True))
        try:
            sent = self.device.send_action(wanted) or wanted
            command = np.array([sent[name] for name in self.action_names], np.float32)
        except Exception as error:  # see the module
            if not self._deaf:
                _log.warning("%s takes no commands (%s); it keeps its last one", self.device.name, _line(error))
            self._deaf = True
            return self._without_steps(self.last_command())
        self._wanted, self._command, self._commanded_ns = action, command, self.clock.now_ns()
        return command

    def last_command(self) -> Float32Array:
        """Return the command that was sent last, float32 [A]."""
        return self.rest_command() if self._command is None else self._command

    def end(self, success: bool | None) -> None:
        """End the attempt, with or without an outcome, for the person."""
        self.success, self._ended = success, True

    def stop(self) -> None:
        """End steps. The motors hold goals by themselves. Sent again after a pause, goals could pull the arm back. A
        robot that takes both is then left alone: its steps end with the gate's next command, which knows where it is.
        """
        if self._command is None or not self._step_dims:
            return
        flowing = self.clock.now_ns() - self._commanded_ns <= _FLOWING_TICKS * 1e9 / self.control_hz
        if flowing or len(self._step_dims) == len(self._command):
            self.write(self._without_steps(self._command))

    def close(self) -> None:
        """Disconnect. Motors that hold go on holding, see `make_lerobot_robot`."""
        try:
            if self.device.is_connected:
                self.device.disconnect()
        except Exception as error:  # the error that ended the program is raised, not this
            _log.warning("%s could not be disconnected: %s", self.device.name, _line(error))
        while self._ports:
            os.close(self._ports.pop())

    def _without_steps(self, command: Float32Array) -> Float32Array:
        still = command.copy()
        still[self._step_dims] = 0.0
        return still

    @property
    def terminated(self) -> bool:
        """The person has called the outcome."""
        return self._ended and self.success is not None

    @property
    def truncated(self) -> bool:
        """The time is over, or the person ended the attempt without an outcome."""
        return self._ended or self.clock.now_ns() - self._start_ns >= self._duration_ns


def make_lerobot_robot(options: Mapping[str, Any], control_hz: float, task: str, **keywords: Any) -> LerobotRobot:
    """Return a robot from the fields of any lerobot `RobotConfig`, third-party plug-ins included.

    lerobot switches the torque off at disconnect, so that an arm falls when the program ends, also after a fault. Here
    ``disable_torque_on_disconnect`` is false unless the options say otherwise. Other arguments as of `LerobotRobot`.

    Args:
        options: ``type`` (``so101_follower``, ...) and the fields of that config (``port``, ``cameras``, ...).

    Raises:
        UserError: if there is no such type, or the options do not fit the config.
    """
    return LerobotRobot(make_device("robot", options), control_hz, task, **keywords)


def _line(error: Exception) -> str:
    """Return an error on one line, with its kind: some drivers say nothing else."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"
