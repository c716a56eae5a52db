"""Safety interlocks: what the topics around a robot say against its motion.

Others who could command the robot or publish its joints, the emergency stop, a dead-man that was released, controllers
that do not run. The ROS thread checks them ten times a second in wall time: neither simulated time nor the policy has a
part in it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from std_msgs.msg import Bool

from robot_io.reasons import Reason
from robot_io.ros2 import qos
from robot_io.ros2.joint_publishers import JointPublishers
from robot_io.ros2.outputs import Output
from robot_io.ros2.parameters import Settings
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.protocols import Subscriber

CHECK_PERIOD_S = 0.1
_DISCOVERED_WITHIN_S = 1.0
_SLICE_S = 0.05


class Interlocks:
    """Checks everything that must stop or hold the robot. See the module.

    Args:
        node: An rclpy node that spins.
        settings: Settings of the robot.
        outputs: Its receivers of commands.
        subscribe: Called with type, topic, callback, quality of service, and ``optional``.
        taken_over: Whether a person commands: the dead-man is for autonomous motion.
        changed: Called with the open interlocks, reason -> sentence, after every check.

    Attributes:
        joints: Publishers of the joints; gets every message of theirs.
        called: What called for a stop that was not released since; empty if nothing.

    Raises:
        ConfigError: Controllers are named, but ROS has no controller_manager_msgs.
    """

    def __init__(
        self,
        node: Any,
        settings: Settings,
        outputs: Sequence[Output],
        subscribe: Callable[..., None],
        taken_over: Callable[[], bool],
        changed: Callable[[Mapping[Reason, str]], None],
    ) -> None:
        self._node, self._settings, self._outputs = node, settings, outputs
        self._taken_over, self._changed = taken_over, changed
        self._joint_topic = node.resolve_topic_name("joint_states")
        self.joints = JointPublishers(settings.joints, self._joint_topic)
        self.called = ""
        self._pressed = False
        self._confirmed: set[bytes] = set()  # publishers of the emergency stop at its last message
        self._estop_s = -float("inf")
        self._held_s = -float("inf")  # time of the last message that the dead-man is held
        self._controllers: Mapping[str, str] = {}
        if topic := settings["estop_topic"]:
            subscribe(Bool, topic, self._on_estop, qos.stops())
            subscribe(Bool, topic, self._on_estop, qos.latched(), optional=True)  # a message from before
        if topic := settings["deadman_topic"]:
            subscribe(Bool, topic, self._on_deadman, qos.sensors())
        if settings["controllers"]:
            subscribe(_activity_type(), self._activity, self._on_activity, qos.latched())

    def press(self) -> None:
        """Stop the robot until `release`."""
        self.called = "the service ~/estop was called"
        self.check()

    def release(self) -> None:
        """Release a stop: a person has looked. What topics still say goes on counting."""
        self.called = ""
        self.check()

    def check(self) -> None:
        """Check all interlocks, and report the open ones."""
        checks = {
            Reason.OTHER_PUBLISHER: lambda: self.other_commander() or self._other_driver(),
            Reason.E_STOP: self._emergency_stop,
            Reason.DEAD_MAN: lambda: "" if self._taken_over() else self._dead_man(),
            Reason.CONTROLLERS: self._inactive_controllers,
        }
        objections = {reason: _objection(check) for reason, check in checks.items()}
        self._changed({reason: why for reason, why in objections.items() if why})

    def other_commander(self) -> str:
        """Return which other node could command this robot, as a sentence; empty if none could."""
        node = self._node
        ours = f"{node.get_namespace().rstrip('/')}/{node.get_name()}"
        known = [f"{space.rstrip('/')}/{name}" for name, space in node.get_node_names_and_namespaces()]
        if known.count(ours) > 1:
            return f"there is another node {ours}; one that was killed is gone after some 20 s"
        takeover = node.resolve_topic_name("~/takeover_command")
        if node.count_publishers(takeover) > 1:
            return f"{node.count_publishers(takeover)} publish on {takeover}: end all but one"
        for output in self._outputs:
            if output.sender.senders() > 1:
                topic = node.resolve_topic_name(output.settings.topic)
                infos = node.get_publishers_info_by_topic(topic)
                names = sorted({f"{info.node_namespace.rstrip('/')}/{info.node_name}" for info in infos} - {ours})
                return f"{', '.join(names) or 'another node'} also publishes on {topic}: end it, one may command"
        return ""

    def check_alone(self) -> None:
        """Raise UserError if another node may command the robot. Discovery of others takes a moment."""
        until_s = time.monotonic() + _DISCOVERED_WITHIN_S
        while time.monotonic() < until_s:
            if other := self.other_commander():
                raise UserError(other)
            time.sleep(_SLICE_S)

    def stop_input(self) -> str:
        """Return the published topics that can stop the robot, for the checklist; empty if there is none."""
        topics = [self._settings[name] for name in ("estop_topic", "deadman_topic")]
        inputs = [f"topic {topic}" for topic in topics if topic and self._is_published(topic)]
        if inputs and topics[0] and not self._settings["estop_timeout_ms"]:
            inputs.append("without estop_timeout_ms a dead emergency stop is noticed late")
        return ", ".join(inputs)

    def values(self) -> Mapping[str, str]:
        """Return the state of each input, for /diagnostics."""
        settings, values = self._settings, {"stop called": str(bool(self.called))}
        if settings["estop_topic"]:
            values["emergency stop"] = self._emergency_stop() or "released"
        if settings["deadman_topic"]:
            values["dead-man"] = self._dead_man() or "held"
        return values | {name: self._controllers.get(name, "unknown") for name in settings["controllers"]}

    @property
    def _activity(self) -> str:
        return f"{self._settings['controller_manager']}/activity"

    def _other_driver(self) -> str:
        return self.joints.objection(self._node.get_publishers_info_by_topic(self._joint_topic), time.monotonic())

    def _emergency_stop(self) -> str:
        topic, timeout_ms = self._settings["estop_topic"], self._settings["estop_timeout_ms"]
        if self._pressed:
            return f"the emergency stop on {topic} is pressed"
        if self.called or not topic:
            return self.called
        publishers = self._publishers(topic)
        if not publishers:
            self._confirmed = set()
            return f"the emergency stop on {topic} has no publisher"
        if publishers - self._confirmed:  # a new publisher has to say so itself, however soon
            return f"the emergency stop on {topic} has not published its release yet"
        if len(publishers) > 1:
            several = f"{len(publishers)} publish the emergency stop on {topic}"
            return f"{several}, and a message does not name its publisher: end all but one"
        if timeout_ms and time.monotonic() - self._estop_s > timeout_ms * 1e-3:
            return f"the emergency stop on {topic} has been silent for more than {timeout_ms:g} ms"
        return ""

    def _dead_man(self) -> str:
        topic, timeout_ms = self._settings["deadman_topic"], self._settings["deadman_timeout_ms"]
        if not topic or time.monotonic() - self._held_s <= timeout_ms * 1e-3:
            return ""
        return f"the dead-man on {topic} was not held within {timeout_ms:g} ms"

    def _inactive_controllers(self) -> str:
        wanted = self._settings["controllers"]
        if wanted and not self._is_published(self._activity):
            return f"{self._activity} has no publisher: start the controller manager"
        states = {name: self._controllers.get(name, "not known to it") for name in wanted}
        idle = [f"{name} is {state}" for name, state in states.items() if state != "active"]
        return f"the controller manager reports that {', '.join(idle)}" if idle else ""

    def _is_published(self, topic: str) -> bool:
        return bool(self._node.count_publishers(self._node.resolve_topic_name(topic)))

    def _publishers(self, topic: str) -> set[bytes]:
        infos = self._node.get_publishers_info_by_topic(self._node.resolve_topic_name(topic))
        return {bytes(info.endpoint_gid) for info in infos}

    def _on_estop(self, message: Any) -> None:
        self._pressed, self._estop_s = bool(message.data), time.monotonic()
        if self._pressed:  # however short: the control thread checks once a tick
            self.called = f"the emergency stop on {self._settings['estop_topic']} was pressed"
        try:
            self._confirmed = self._publishers(self._settings["estop_topic"])
        finally:
            self.check()

    def _on_deadman(self, message: Any) -> None:
        self._held_s = time.monotonic() if message.data else -float("inf")
        if not message.data:
            self.check()

    def _on_activity(self, message: Any) -> None:
        self._controllers = {
            item.name: item.state.label for item in (*message.hardware_components, *message.controllers)
        }
        self.check()


def _objection(check: Callable[[], str]) -> str:
    """Return what a check objects to. A check that fails (rclpy raises its own errors) must not count as passed."""
    try:
        return check()
    except Exception as error:
        return f"the topics around the robot cannot be looked at ({type(error).__name__}: {error})"


def _activity_type() -> Any:
    try:
        from controller_manager_msgs.msg import ControllerManagerActivity
    except ImportError as error:
        raise ConfigError(
            f"parameter controllers needs controller_manager_msgs of a recent ros2_control ({error}); "
            "install it, or leave the parameter empty"
        ) from error
    return ControllerManagerActivity


class Heartbeat(Subscriber):
    """Publishes a std_msgs/Bool that changes with every control tick, for a watchdog in hardware. It stands still when
    the loop does, when the gate's stop has latched, and between attempts.
    """

    def __init__(self, publish: Callable[[Any], None]) -> None:
        self._publish = publish
        self._beat = False

    def on_step(self, step: Any) -> None:
        if not int(step.extras["gate_reasons"]) & Reason.LATCHED:
            self._beat = not self._beat
            self._publish(Bool(data=self._beat))
