"""How commands leave the node: one table of the kinds of output, and what each makes of the commands.

A kind says which message or action its controller takes, and the name of that unless a parameter gives another one.
Only what passed the gate is sent. A trajectory ends at rest in the newest command; `velocity` and `twist` last until
the next message, so the robot ends an attempt with zeros. Nothing here waits, nor imports ROS before it is used.
"""

import importlib
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from robot_io.limits import RobotLimits
from robot_io.ros2 import messages, qos
from vla_rl.core.errors import ConfigError
from vla_rl.core.types import Float32Array

_log = logging.getLogger(__name__)

_FOLLOW_CLOCK = 0.05
_ANSWER_WITHIN_S = 0.5  # a goal that was not taken by then is sent again, no sooner


@dataclass(frozen=True)
class OutputSettings:
    """One receiver of commands, see `robot_io.ros2.parameters.OUTPUT_PARAMETERS`."""

    name: str
    topic: str
    type: str
    joints: tuple[str, ...]
    points: int = 1
    frame: str = ""
    tolerance: float = 0.0
    max_effort: float = 0.0


class Recent(NamedTuple):
    """The last commands of an output, the newest at the end; before an attempt they are the posture it rests at.

    Attributes:
        commands: float32 [N, A], N = ``points`` + 2.
        times_ns: int64 [N], when they were to be sent: whole periods apart, in the time of message stamps.
        period_ns: between two commands.
        sent: float32 [A], the last one that was sent; infinite if that one was missed.
        number: how many commands the attempt has had.
    """

    commands: Float32Array
    times_ns: NDArray[np.int64]
    period_ns: int
    sent: Float32Array
    number: int


class Curve(NamedTuple):
    """Points of a trajectory: positions float32 [N, A] at N times, and velocities or None.

    With a ``start_ns`` of 0 it begins on its arrival.
    """

    positions: Float32Array
    from_start_ns: Sequence[int]
    velocities: NDArray[np.float64] | None = None
    start_ns: int = 0


def curve(points: int, recent: Recent) -> Curve:
    """Return one point, one period after its arrival, or a smooth curve through the last commands.

    The curve brings every command ``points`` periods after it was sent, and rests in the newest one. It carries the
    clock's time, so the arrival of its message does not matter. For the next ``points`` - 2 periods it equals the
    previous message. Only the first ones of an attempt begin later than now. The controller leads the robot from its
    own last command, which may be elsewhere, to the first command.
    """
    if points == 1:
        return Curve(recent.commands[-1:], [recent.period_ns])
    size = min(recent.number, points + 1)
    times_ns = recent.times_ns[-size:]
    from_start_ns: list[int] = (times_ns - times_ns[0]).tolist()
    velocities = smooth_velocities(recent.commands, (recent.times_ns - times_ns[0]) * 1e-9)[-size:]
    return Curve(recent.commands[-size:], from_start_ns, velocities, int(times_ns[0]) + points * recent.period_ns)


def smooth_velocities(commands: Float32Array, times_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the slopes at all commands [N, A] but the first: cubics are smooth and stay between neighbors; 0 at the
    last one.

    Each is the weighted harmonic mean of the slopes on both sides, 0 where they differ in sign. Source: Fritsch and
    Butland 1984, "A method for constructing local monotone piecewise cubic interpolants".
    """
    lengths = np.diff(times_s)[:, None]
    slopes = np.diff(commands.astype(np.float64), axis=0) / lengths
    before, after = slopes[:-1], slopes[1:]
    weight = (lengths[:-1] + 2 * lengths[1:]) / (3 * (lengths[:-1] + lengths[1:]))
    same = before * after > 0
    mixed = np.where(same, weight * after + (1 - weight) * before, 1.0)
    inner = np.where(same, before * after / mixed, 0.0)
    return np.concatenate([inner, np.zeros_like(slopes[:1])])


def _trajectory(output: OutputSettings, recent: Recent) -> Any:
    return messages.trajectory(output.joints, *curve(output.points, recent))


def _array(_: OutputSettings, recent: Recent) -> Any:
    return messages.array(recent.commands[-1])


def _velocity(_: OutputSettings, recent: Recent) -> Any:
    """What brings the robot from the command before to the newest one within the next period."""
    return messages.array((recent.commands[-1] - recent.commands[-2]) * np.float32(1e9 / recent.period_ns))


def _twist(output: OutputSettings, recent: Recent) -> Any:
    """Return a step of x, y, z (m) and about them (rad) in one period, as velocities."""
    from geometry_msgs.msg import Twist, TwistStamped, Vector3

    linear, angular = (recent.commands[-1].astype(np.float64) * (1e9 / recent.period_ns)).reshape(2, 3).tolist()
    twist = Twist(linear=Vector3(**_xyz(linear)), angular=Vector3(**_xyz(angular)))
    return TwistStamped(header=messages.header(output.frame, int(recent.times_ns[-1])), twist=twist)


def _pose(output: OutputSettings, recent: Recent) -> Any:
    """x, y, z (m) and a quaternion x, y, z, w, whose length is made 1: single numbers are limited by the gate."""
    from geometry_msgs.msg import Point, Pose, PoseStamped, Quaternion

    values = recent.commands[-1].astype(np.float64)
    turned = values[3:] / max(float(np.linalg.norm(values[3:])), 1e-6)
    orientation = Quaternion(**_xyz(turned[:3].tolist()), w=float(turned[3]))
    pose = Pose(position=Point(**_xyz(values[:3].tolist())), orientation=orientation)
    return PoseStamped(header=messages.header(output.frame, int(recent.times_ns[-1])), pose=pose)


def _gripper(output: OutputSettings, recent: Recent) -> Any:
    """Return a goal when the command has changed, or the last one was missed; every goal ends the one before."""
    from control_msgs.action import GripperCommand

    if np.abs(recent.commands[-1] - recent.sent).max() <= output.tolerance:
        return None
    goal = GripperCommand.Goal()
    goal.command.position, goal.command.max_effort = float(recent.commands[-1, 0]), output.max_effort
    return goal


def _follow(output: OutputSettings, recent: Recent) -> Any:
    from control_msgs.action import FollowJointTrajectory

    return FollowJointTrajectory.Goal(trajectory=_trajectory(output, recent))


def _xyz(values: Sequence[float]) -> dict[str, float]:
    return dict(zip("xyz", values, strict=True))


@dataclass(frozen=True)
class Kind:
    """A kind of output.

    Attributes:
        interface: the message or action, ``package.msg.Name``.
        topic: its usual name; {name} is that of the output.
        make: the message or goal of the newest command; None if there is nothing to say.
        size: how many numbers it takes; 0: as many as there are.
        steps: True, its numbers have to be steps (``delta_dims`` of the limits); False, targets; None, either.
        rates: what is sent of targets are velocities.
        units: Of its numbers, where the message fixes them.
    """

    interface: str
    topic: str
    make: Callable[[OutputSettings, Recent], Any]
    size: int = 0
    steps: bool | None = False
    rates: bool = False
    units: tuple[str, ...] = ()

    @property
    def is_action(self) -> bool:
        return ".action." in self.interface


_TWIST = (*("m",) * 3, *("rad",) * 3)
KINDS: Mapping[str, Kind] = {
    "trajectory": Kind("trajectory_msgs.msg.JointTrajectory", "{name}_controller/joint_trajectory", _trajectory),
    "array": Kind("std_msgs.msg.Float64MultiArray", "{name}_controller/commands", _array, steps=None),
    "velocity": Kind("std_msgs.msg.Float64MultiArray", "{name}_controller/commands", _velocity, rates=True),
    "twist": Kind("geometry_msgs.msg.TwistStamped", "servo_node/delta_twist_cmds", _twist, 6, True, units=_TWIST),
    "pose": Kind("geometry_msgs.msg.PoseStamped", "servo_node/pose_target_cmds", _pose, size=7, units=("m",) * 3),
    "gripper": Kind("control_msgs.action.GripperCommand", "{name}_controller/gripper_cmd", _gripper, size=1),
    "follow_joint_trajectory": Kind(
        "control_msgs.action.FollowJointTrajectory", "{name}_controller/follow_joint_trajectory", _follow
    ),
}


def parts_of(outputs: Sequence[OutputSettings]) -> list[slice]:
    """Return the part of the action that goes to each output."""
    ends = itertools.accumulate((len(output.joints) for output in outputs), initial=0)
    return [slice(start, end) for start, end in itertools.pairwise(ends)]


def check_outputs(outputs: Sequence[OutputSettings], step_dims: Sequence[int]) -> None:
    """Refuse outputs, in the order of the action, that would take steps for targets, or targets for steps.

    ``step_dims`` are the dimensions of the action that are steps, ``delta_dims`` of the limits.

    Raises:
        ConfigError: naming the output.
    """
    for output, part in zip(outputs, parts_of(outputs), strict=True):
        kind, dims = KINDS[output.type], set(range(part.start, part.stop))
        steps = dims & set(step_dims)
        if kind.steps is True and steps != dims:
            raise ConfigError(
                f"output {output.name} of type {output.type} takes steps. Name dimensions {sorted(dims)} in delta_dims "
                "of the limits, and use a policy of steps"
            )
        if kind.steps is False and steps:
            raise ConfigError(
                f"output {output.name} of type {output.type} takes targets; dimensions {sorted(steps)} of the limits "
                "are steps (delta_dims). Remove them, so that steps are added up, or use another type"
            )


def with_quaternions(limits: RobotLimits, outputs: Sequence[OutputSettings]) -> RobotLimits:
    """Add the quaternions of pose outputs to the limits."""
    parts = zip(outputs, parts_of(outputs), strict=True)
    of_poses = {part.stop - 4 for output, part in parts if output.type == "pose"}
    return replace(limits, quaternions=tuple(sorted(of_poses.union(limits.quaternions))))


class Sender(Protocol):
    """Where messages go."""

    def send(self, message: Any) -> bool:
        """Send a command without waiting; False if no receiver is there."""
        ...

    def missed(self) -> bool:
        """Return whether the last command was refused, or not answered in time."""
        ...

    def listeners(self) -> int:
        """Return the number of receivers."""
        ...

    def senders(self) -> int:
        """Return the number of senders there, this one included."""
        ...

    def destroy(self) -> None: ...


class Output:
    """The commands of one output, to a sender, at ``period_ns`` in the time of message stamps.

    Called by the control thread.
    """

    def __init__(self, settings: OutputSettings, sender: Sender, period_ns: int, now_ns: Callable[[], int]) -> None:
        self.settings, self.sender = settings, sender
        self._make = KINDS[settings.type].make
        self._period_ns, self._now_ns = period_ns, now_ns
        self._recent: deque[tuple[int, Float32Array]] = deque(maxlen=settings.points + 2)

    def begin(self, rest: Float32Array) -> None:
        """Begin an attempt at a posture, float32 [A]. Commands of the previous one do not count any more."""
        self._recent.extend((0, rest) for _ in range(self.settings.points + 2))
        self._sent = rest
        self._number = 0
        self._asks = False  # something was sent in this attempt, which may have to be sent again

    def send(self, command: Float32Array) -> None:
        """Send a command, float32 [A]. `begin` comes first."""
        if self._asks and self.sender.missed():
            self._sent = np.full_like(command, np.inf)  # no command is like it
        message = self._make(self.settings, self.remember(command))
        if message is not None and self.sender.send(message):
            self._sent, self._asks = command, True

    def remember(self, command: Float32Array) -> Recent:
        """Return the last commands, with this one."""
        now_ns, period_ns = self._now_ns(), self._period_ns
        if not self._number:
            rest, size = self._recent[-1][1], len(self._recent)
            self._recent.extend([(now_ns - age * period_ns, rest) for age in range(size, 0, -1)])
        # Whole periods apart, however late this call is: the pace of the loop, which its clock follows slowly.
        last_ns = self._recent[-1][0]
        periods = max(round((now_ns - last_ns) / period_ns), 1)
        time_ns = last_ns + periods * period_ns
        self._number += 1
        self._recent.append((time_ns + round(_FOLLOW_CLOCK * (now_ns - time_ns)), command))
        times_ns, commands = zip(*self._recent, strict=True)
        return Recent(np.stack(commands), np.array(times_ns), period_ns, self._sent, self._number)


class _Topic:
    def __init__(self, node: Any, interface: Any, topic: str) -> None:
        self._node, self._topic = node, node.resolve_topic_name(topic)
        self._publisher = node.create_publisher(interface, topic, qos.commands())

    def send(self, message: Any) -> bool:
        self._publisher.publish(message)
        return True

    def missed(self) -> bool:
        return False

    def listeners(self) -> int:
        return int(self._node.count_subscribers(self._topic))

    def senders(self) -> int:
        return int(self._node.count_publishers(self._topic))

    def destroy(self) -> None:
        self._node.destroy_publisher(self._publisher)


class _Action:
    """A client of an action. Results are not waited for: what the robot does is measured."""

    def __init__(self, node: Any, interface: Any, name: str) -> None:
        from rclpy.action import ActionClient

        self._node, self._name = node, name
        self._service = node.resolve_topic_name(name) + "/_action/send_goal"
        self._client = ActionClient(node, interface, name)
        self._refused = False
        self._answer: Any = None
        self._sent_s = 0.0

    def send(self, message: Any) -> bool:
        if not self._client.server_is_ready():
            return False
        self._sent_s, self._answer = time.monotonic(), self._client.send_goal_async(message)
        self._answer.add_done_callback(self._on_answer)
        return True

    def missed(self) -> bool:
        if self._answer is None or time.monotonic() - self._sent_s < _ANSWER_WITHIN_S:
            return False
        return not (self._answer.done() and self._answer.result().accepted)

    def listeners(self) -> int:
        return int(self._node.count_services(self._service))

    def senders(self) -> int:
        return int(self._node.count_clients(self._service))

    def destroy(self) -> None:
        self._client.destroy()

    def _on_answer(self, future: Any) -> None:
        refused = not future.result().accepted
        if refused and not self._refused:
            _log.warning("%s refuses goals, they are sent again: see the log of its controller", self._name)
        self._refused = refused


def open_output(node: Any, settings: OutputSettings, period_ns: int) -> Output:
    """Return the output on a node, with `KINDS`' message or action."""
    kind = KINDS[settings.type]
    module, _, name = kind.interface.rpartition(".")
    interface = getattr(importlib.import_module(module), name)
    sender: Sender = (_Action if kind.is_action else _Topic)(node, interface, settings.topic)
    return Output(settings, sender, period_ns, lambda: int(node.get_clock().now().nanoseconds))
