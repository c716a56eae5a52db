"""A robot made of ROS 2 topics, with the interface of every other robot.

The control thread calls `read`, which takes the newest synchronized readings, and `write`, which publishes; neither
waits. The ROS thread calls the callbacks (`on_image`, `on_joints`, `on_interlocks`).
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robot_io.disturbances import Disturbance
from robot_io.faults import Detector
from robot_io.reasons import Reason
from robot_io.ros2 import messages
from robot_io.ros2.clock import RosTime
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.outputs import KINDS, Output, parts_of
from robot_io.ros2.parameters import Settings
from robot_io.ros2.streams import Streams
from robot_io.staleness import StalenessFilter
from vla_rl.core.errors import UserError
from vla_rl.core.pictures import resized
from vla_rl.core.protocols import REST_READINGS, Condition, Subscriber
from vla_rl.core.types import Float32Array, Observation, Uint8Array

_log = logging.getLogger(__name__)

_STATE = "state"
_MOST_INTERLOCKS = 100  # between two ticks
_FLOWING_TICKS = 2  # after a longer pause a person may have moved the robot away from its targets


@dataclass(frozen=True)
class Interface:
    """What the policy requires of the robot, beside the parameters of the node.

    Attributes:
        control_hz: Rate of the loop.
        image_size: [height, width] of its pictures; None takes them as they come.
        silent_after_ms: Age at which a stream counts as silent; the gate's limit.
        gripper_dims: Dimensions of the action that a takeover commands absolutely.
        step_dims: Dimensions of the action that are steps, ``delta_dims`` of the limits: at rest they are 0.
        quaternions: Quaternions of the limits.
    """

    control_hz: float
    image_size: tuple[int, int] | None
    silent_after_ms: float
    gripper_dims: tuple[int, ...] = ()
    step_dims: tuple[int, ...] = ()
    quaternions: tuple[int, ...] = ()


class Ros2Robot:
    """An `EpisodicRobot` (see `vla_rl.execution.loop`) over topics. An attempt ends when the operator labels it.

    The capture time of a faulty stream (silent, frozen, unreadable, a stamp in the future) stands still. The gate's
    watchdog then stops the robot. `why` says what it was.

    Args:
        settings: Settings of the node.
        clock: Time of the loop.
        operator: Requests of the operator.
        interface: Interface of the policy.
        outputs: Receivers of commands, in the order of the action.
        reset_world: Brings the world to the start of an attempt; None if a person does. It gives up on `interrupted`.

    Attributes:
        state_dimensions: Names of the joints, with the units of the robot's description.
        action_dimensions: Names and units of the commands.
        interrupted: The node is being deactivated: nothing may wait any more.
        acting: An attempt is running.
        interlocks: Reason -> sentence, for which the robot must not move, see `robot_io.ros2.interlocks`.
        subscribers: Subscribers of every step of an attempt.
        disturbance: Disturbs the readings, see `robot_io.faults`; None leaves them unchanged.
    """

    detectors = (Detector.AGES, Detector.STALENESS, Detector.JOINTS, Detector.EFFORT, Detector.START, Detector.POLICY)
    disturbance: Disturbance | None = None

    def __init__(
        self,
        settings: Settings,
        clock: RosTime,
        operator: OperatorRequests,
        interface: Interface,
        outputs: Sequence[Output],
        reset_world: Callable[[], None] | None = None,
    ) -> None:
        self.clock = clock
        self.control_hz = interface.control_hz
        self.state_dimensions, self.action_dimensions = settings.dimensions
        self._settings = settings
        self._operator = operator
        self._image_size = interface.image_size
        self._silent_after_ms = interface.silent_after_ms
        self._reset_world = reset_world
        self._outputs = list(zip(outputs, parts_of(settings.outputs), strict=True))
        known = {joint: index for index, joint in enumerate(settings.joints)}
        self._commanded = [known.get(joint, -1) for joint in settings.command_joints]  # axes of a twist are no joints
        self._step_dims = list(interface.step_dims)
        by_rate = {joint for output in settings.outputs if KINDS[output.type].rates for joint in output.joints}
        self._rate_dims = [dim for dim, joint in enumerate(settings.command_joints) if joint in by_rate]
        self._latency_ns = {camera.name: round(camera.latency_ms * 1e6) for camera in settings.cameras}
        self._latency_ns[_STATE] = round(settings["state_latency_ms"] * 1e6)
        self._streams = Streams(list(self._latency_ns), settings["synchronize"])
        self._staleness = StalenessFilter(settings["detect_frozen_images"], interface.image_size)
        self._joints: dict[str, tuple[int, float]] = {}  # joint -> capture time and position, of its newest message
        self._efforts: dict[str, float] = {}
        self._joints_ns: int | None = None  # the capture time that the joints had together
        self._complaints: dict[str, str] = {}
        self._fresh = threading.Condition()
        self._rest: Float32Array = np.empty((0, len(self._commanded)), np.float32)
        self._command: Float32Array | None = None
        self._commanded_ns = self._began_ns = 0
        self._jumped_ns: int | None = None
        self.interrupted = False
        self.acting = False
        self.interlocks: Mapping[Reason, str] = {}
        self._recent_interlocks: deque[Mapping[Reason, str]] = deque(maxlen=_MOST_INTERLOCKS)  # since the last tick
        self.subscribers: Sequence[Subscriber] = ()

    # The ROS thread.

    def on_interlocks(self, interlocks: Mapping[Reason, str]) -> None:
        """Take the open interlocks. The control thread gets each of them, however short."""
        self.interlocks = interlocks
        if interlocks:
            self._recent_interlocks.append(interlocks)

    def on_image(self, camera: str, message: Any) -> None:
        """Take an Image or CompressedImage of a camera."""
        captured_ns = self._captured_ns(camera, message.header)
        if captured_ns is None:
            return
        try:
            to_rgb = messages.image_to_rgb if hasattr(message, "encoding") else messages.compressed_to_rgb
            taken: Uint8Array = to_rgb(message)
            image = taken if self.disturbance is None else self.disturbance.image(camera, taken)
            if image is None:
                return
            image = self._staleness.image(camera, image, captured_ns)
            if self._image_size is not None:
                image = resized(image, self._image_size)
        except UserError as error:
            self._complain(camera, str(error))
            return
        known_ns = self._staleness.captured_ns[camera]
        if known_ns != captured_ns:
            self._complain(camera, "the camera repeats its frame")
        else:
            self._complaints.pop(camera, None)
        self._add(camera, known_ns, image)

    def on_joints(self, message: Any) -> None:
        """Take a JointState; a robot may publish its joints in several messages.

        The state is as old as the oldest joint in it, so a driver that dies shows, however lively the others are.
        Newer joints wait until the oldest have caught up, so all positions are of one time.
        """
        message_ns = self._captured_ns(_STATE, message.header)
        if message_ns is None:
            return
        joints, known = self._settings.joints, self._joints
        if doubled := next((joint for joint in joints if message.name.count(joint) > 1), None):
            self._complain(_STATE, f"joint {doubled!r} stands twice in one message of /joint_states: {message.name}")
            return
        for joint, position in zip(message.name, message.position, strict=False):
            known[joint] = message_ns, position
        for joint, effort in zip(message.name, getattr(message, "effort", ()), strict=False):
            self._efforts[joint] = effort
        if missing := sorted(set(joints) - known.keys()):
            self._complain(_STATE, f"no position of joint {missing[0]!r}; /joint_states has {sorted(known)}")
            return
        captured_ns = min(known[joint][0] for joint in joints)
        if captured_ns == self._joints_ns and message_ns != captured_ns:
            return
        self._joints_ns = captured_ns
        measured = np.array([known[joint][1] for joint in joints], np.float32)
        position = measured if self.disturbance is None else self.disturbance.state(measured)
        if position is None:
            return
        if not np.isfinite(position).all():
            self._complain(_STATE, "the joints read numbers that are not finite")
            return
        self._complaints.pop(_STATE, None)
        self._add(_STATE, captured_ns, position)

    def interrupt(self) -> None:
        """End the attempt at its next tick, and every waiting."""
        self.interrupted = True
        self.clock.interrupt()
        with self._fresh:
            self._fresh.notify_all()

    # The control thread.

    def connect(self) -> None:
        """Ready for attempts again after `interrupt`."""
        self.interrupted = False

    def reset(self, seed: int) -> None:
        """Bring the world to its start and wait for a new reading of every stream, of the joints for several.

        Raises:
            UserError: If the world cannot be reset, a stream stays silent, or an interlock reports a fault.
        """
        del seed  # the reset service counts its own seeds
        self._operator.begin()
        self.clock.begin()
        self._jumped_ns = None
        since_ns = self.clock.now_ns()
        self._refuse_interlocks()
        if self._reset_world is not None:
            self._reset_world()
            self._operator.begin()  # a label that the old world still gave does not count
            # Readings of the old world may be on their way; on /clock they may be a step ahead of it.
            since_ns = self.clock.now_ns() + round(1e9 / self.control_hz)
        with self._fresh:
            self._fresh.wait_for(
                lambda: self.interrupted or not self._silent_since(since_ns), self._settings["stream_timeout_s"]
            )
        if self.interrupted:
            raise Interrupted("the node was deactivated")
        if silent := ", ".join(self._silent_since(since_ns)):
            why = self.why() or "is the driver running, is the topic right?"
            raise UserError(f"no fresh reading of {silent}, of the joints {REST_READINGS}; {why}")
        self._recent_interlocks.clear()
        self._refuse_interlocks()
        self._rest = self._of_command(np.stack(self._streams.since(_STATE, since_ns)[-REST_READINGS:]))
        self._command = self.rest_command()
        for output, part in self._outputs:
            output.begin(self._command[part])
        if self._reset_world is not None:
            self.clock.forget_jump()  # a world that begins anew may begin at time 0
        self._commanded_ns = self._began_ns = self.clock.now_ns()
        self.acting = True

    def _refuse_interlocks(self) -> None:
        if interlocks := self.interlocks:
            raise UserError("; ".join(interlocks.values()))

    def read(self) -> Observation:
        self.clock.watch()
        readings = self._streams.take()
        captured_ns = {name: reading_ns for name, (reading_ns, _) in readings.items()}
        if self.clock.jump_s is not None:  # no capture time can be believed from here on
            if self._jumped_ns is None:
                self._jumped_ns = min(captured_ns.values())
            captured_ns = {name: min(reading_ns, self._jumped_ns) for name, reading_ns in captured_ns.items()}
        images = {name: value for name, (_, value) in readings.items() if name != _STATE}
        return Observation(images, readings[_STATE][1], self._settings["task"], 0, captured_ns)

    def rest_command(self) -> Float32Array:
        """Newest measured positions of the commanded joints, whatever the age of a camera, float32 [A]."""
        _, state = self._streams.newest(_STATE)
        return self._of_command(state)

    def condition(self) -> Condition:
        """Newest condition; with the effort of ``joint_states``, where it has any."""
        captured_ns, state = self._streams.newest(_STATE)
        effort = None
        if self._efforts:
            efforts = [self._efforts.get(joint, np.nan) for joint in self._settings.command_joints]
            if self.disturbance is not None:
                efforts = [self.disturbance.effort(dim, pushed) for dim, pushed in enumerate(efforts)]
            effort = np.array(efforts, np.float32)
        interlocks, command = dict(self.interlocks), self.last_command()
        while self._recent_interlocks:
            interlocks |= self._recent_interlocks.popleft()
        flags, why = int(sum(interlocks)), "; ".join(interlocks.values())
        return Condition(self._of_command(state), command, captured_ns, effort, flags, why, self._rate_dims)

    def rest_readings(self) -> Float32Array:
        return self._rest

    def write(self, action: Float32Array) -> Float32Array:
        """Publish a command to every output, and return it: gate and controllers limit it."""
        for output, part in self._outputs:
            output.send(action[part])
        self._command, self._commanded_ns = action, self.clock.now_ns()
        return action

    def last_command(self) -> Float32Array:
        """Return the command that was sent last, float32 [A]."""
        assert self._command is not None
        return self._command

    def stop(self) -> None:
        """End steps and velocities; after a fault the gate has brought the robot to rest before.

        Targets hold by themselves: sent again after a pause, they could pull the robot back. An output of both is then
        left alone: its steps end with the gate's next command, which knows where the robot is.
        """
        self.acting = False
        if self._command is not None:
            still = self._command.copy()
            still[self._step_dims] = 0.0
            flowing = self.clock.now_ns() - self._commanded_ns <= _FLOWING_TICKS * 1e9 / self.control_hz
            ending = np.zeros(len(still), bool)
            ending[[*self._step_dims, *self._rate_dims]] = True
            for output, part in self._outputs:
                if ending[part].all() or (flowing and ending[part].any()):
                    output.send(still[part])
            self._command = still

    def close(self) -> None:
        """Do nothing: publishers and subscriptions belong to the node."""

    @property
    def terminated(self) -> bool:
        """The operator has labeled the attempt."""
        return self._operator.outcome is not None

    @property
    def truncated(self) -> bool:
        """The time is over, the attempt was discarded, or the node deactivated."""
        over = self.clock.now_ns() - self._began_ns >= self._settings["max_attempt_s"] * 1e9
        return over or self._operator.discarded or self.interrupted

    @property
    def success(self) -> bool | None:
        """The operator's label."""
        return self._operator.outcome

    # Anyone.

    def ages_ms(self) -> Mapping[str, float]:
        """Stream -> age of its newest reading, ms; infinite for a stream without a reading."""
        now_ns, newest = self.clock.now_ns(), self._streams.newest_ns()
        return {name: (now_ns - newest[name]) * 1e-6 if name in newest else np.inf for name in self._latency_ns}

    def why(self) -> str:
        """Return what is wrong with the streams, as a sentence; empty if nothing is."""
        known = self._complaints.copy()
        for stream, age_ms in self.ages_ms().items():
            if age_ms > self._silent_after_ms and stream not in known:
                known[stream] = f"silent for {age_ms:.0f} ms" if np.isfinite(age_ms) else "silent from the start"
                if stream == _STATE:
                    known[stream] += self._late_joints()
        complaints = [f"{stream}: {complaint}" for stream, complaint in sorted(known.items())]
        if self.clock.jump_s is not None:
            complaints.insert(0, f"the clock jumped by {self.clock.jump_s:+.3f} s")
        return "; ".join(complaints)

    def _of_command(self, state: Float32Array) -> Float32Array:
        """Return the commanded dimensions of a state [..., S], float32 [..., A]; steps are not measured: 0."""
        measured = state[..., self._commanded]
        measured[..., self._step_dims] = 0.0
        return measured

    def _late_joints(self) -> str:
        """Return the joints whose driver is late, as the end of a sentence; empty if all are as late."""
        joints, known = self._settings.joints, self._joints
        late = [joint for joint in joints if joint in known and known[joint][0] == self._joints_ns]
        return f": the driver of {', '.join(late)}" if len(late) < len(joints) else ""

    def _silent_since(self, since_ns: int) -> list[str]:
        """Streams without enough readings since a time: one, of the joints several."""
        wanted = {_STATE: REST_READINGS}
        return [name for name in self._latency_ns if len(self._streams.since(name, since_ns)) < wanted.get(name, 1)]

    def _captured_ns(self, stream: str, header: Any) -> int | None:
        """Capture time of a message, in the loop's time; None if its stamp lies in the future."""
        stamp = messages.stamp_ns(header)
        if not self._settings["header_stamps"] or stamp == 0:
            return self.clock.now_ns() - self._latency_ns[stream]
        loop_ns = self.clock.loop_ns(stamp)
        if loop_ns is None:
            self._complain(stream, "its stamps lie in the future: are the clocks of the machines synchronized?")
            return None
        return loop_ns - self._latency_ns[stream]

    def _add(self, stream: str, captured_ns: int, value: Any) -> None:
        self._streams.add(stream, captured_ns, value)
        with self._fresh:
            self._fresh.notify_all()

    def _complain(self, stream: str, complaint: str) -> None:
        if self._complaints.get(stream) != complaint:
            self._complaints[stream] = complaint
            _log.warning("%s: %s", stream, complaint)


class Interrupted(Exception):
    """An attempt did not begin, because the node was deactivated."""
