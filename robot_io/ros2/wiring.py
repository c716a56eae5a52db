"""A node's topics, services and clock made into a robot, its takeover and its operator: for any node that drives it."""

import functools
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.wait_for_message import wait_for_message
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Bool, Float64MultiArray, String
from std_srvs.srv import Trigger

from robot_io.ros2 import messages, qos
from robot_io.ros2.clock import RosTime
from robot_io.ros2.interlocks import CHECK_PERIOD_S, Heartbeat, Interlocks
from robot_io.ros2.operator import OperatorRequests, TopicTakeover
from robot_io.ros2.outputs import open_output
from robot_io.ros2.parameters import Settings
from robot_io.ros2.robot import Interface, Interrupted, Ros2Robot
from robot_io.takeover import Clutch
from vla_rl.core.errors import ConfigError, UserError

_SLICE_S = 0.05
_ASK_AGAIN_S = 5.0


class Wiring:
    """Subscribes and publishes for one robot until `close`.

    Args:
        node: An rclpy node that spins.
        settings: Settings of the robot.
        interface: Interface of the policy.
        operator: Requests of the operator.

    Attributes:
        robot: The robot behind the topics.
        takeover: Takeover by the topic ``~/takeover_command``; the node's service engages it.
        interlocks: What other topics say against the robot's motion.
    """

    def __init__(self, node: Any, settings: Settings, interface: Interface, operator: OperatorRequests) -> None:
        self._node, self._settings = node, settings
        self._entities: list[tuple[Callable[[Any], object], Any]] = []
        simulated = bool(node.get_parameter("use_sim_time").value)
        clock = RosTime(
            simulated,
            settings["max_clock_jump_ms"],
            settings["max_future_ms"],
            settings["clock_timeout_s"],
            lambda: int(node.get_clock().now().nanoseconds),
        )
        if settings["reset_service"]:
            self._resetting = node.create_client(Trigger, settings["reset_service"])
            self._entities.append((node.destroy_client, self._resetting))
        period_ns = round(1e9 / interface.control_hz / settings["commands_per_tick"])
        self._outputs = [open_output(node, output, period_ns) for output in settings.outputs]
        reset_world = self._reset_world if settings["reset_service"] else None
        self.robot = Ros2Robot(settings, clock, operator, interface, self._outputs, reset_world)
        relative = settings["takeover_mode"] == "relative"
        self.takeover = TopicTakeover(
            self.robot.last_command,
            clock.now_ns,
            relative,
            Clutch(interface.gripper_dims, interface.step_dims, interface.quaternions),
            settings["takeover_timeout_ms"],
        )
        self.interlocks = Interlocks(
            node, settings, self._outputs, self._subscribe, lambda: self.takeover.engaged, self.robot.on_interlocks
        )
        steady = Clock(clock_type=ClockType.STEADY_TIME)  # goes on when simulated time stands still
        timer = node.create_timer(CHECK_PERIOD_S, self.interlocks.check, clock=steady)
        self._entities.append((node.destroy_timer, timer))
        if topic := settings["heartbeat_topic"]:
            publisher = node.create_publisher(Bool, topic, qos.commands())
            self._entities.append((node.destroy_publisher, publisher))
            self.robot.subscribers = [Heartbeat(publisher.publish)]
        for camera in settings.cameras:
            kind = Image if camera.type == "raw" else CompressedImage
            self._subscribe(kind, camera.topic, functools.partial(self.robot.on_image, camera.name))
        self._subscribe(JointState, "joint_states", self._on_joints, qos.joints())
        self._subscribe(Float64MultiArray, "~/takeover_command", lambda sent: self.takeover.move(messages.vector(sent)))
        if simulated:
            # After the streams: a picture that arrives together with its moment is seen first.
            self._subscribe(ClockMessage, "/clock", functools.partial(_on_clock, clock), qos.clock())
        self.interlocks.check()  # so that no attempt begins before the first check

    def listeners(self) -> Mapping[str, int]:
        """Output -> how many subscribe to its commands."""
        return {output.settings.name: output.sender.listeners() for output in self._outputs}

    def close(self) -> None:
        """Let go of topics and clients."""
        for output in self._outputs:
            output.sender.destroy()
        self._outputs.clear()
        for destroy, entity in self._entities:
            destroy(entity)
        self._entities.clear()

    def _subscribe(
        self, kind: Any, topic: str, callback: Callable[[Any], None], profile: Any = None, optional: bool = False
    ) -> None:
        """``optional``: a publisher who does not offer this quality of service is not warned of."""
        callbacks = SubscriptionEventCallbacks(use_default_callbacks=not optional)
        wanted = profile or qos.sensors()
        subscription = self._node.create_subscription(kind, topic, callback, wanted, event_callbacks=callbacks)
        self._entities.append((self._node.destroy_subscription, subscription))

    def _on_joints(self, message: Any) -> None:
        self.interlocks.joints.add(message)
        self.robot.on_joints(message)

    def _reset_world(self) -> None:
        """Call the reset service from the control thread; the ROS thread brings the answer."""
        name, timeout_s = self._settings["reset_service"], self._settings["reset_timeout_s"]
        until_s = time.monotonic() + timeout_s
        if not self._wait(self._resetting.wait_for_service, until_s):
            raise UserError(f"there is no service {name!r} (parameter reset_service)")
        answered, asked, again_s = threading.Event(), list[Any](), _ASK_AGAIN_S
        while not asked or (not answered.is_set() and time.monotonic() < until_s):
            # A request that reaches a server which has just come up may be lost, and its answer too: ask again.
            asked.append(self._resetting.call_async(Trigger.Request()))
            asked[-1].add_done_callback(lambda _: answered.set())
            self._wait(answered.wait, min(until_s, time.monotonic() + again_s))
            again_s *= 2
        if answered.is_set():  # it was only slow, and goes on with what it was asked since, one after the other
            until_s += (len(asked) - 1) * timeout_s
        while not asked[-1].done() and self._wait(answered.wait, until_s):
            answered.clear()
        for future in asked:
            self._resetting.remove_pending_request(future)
        if not asked[-1].done() or not asked[-1].result().success:
            raise UserError(f"the service {name!r} did not reset the world within {timeout_s:g} s")

    def _wait(self, wait: Callable[[float], bool], until_s: float) -> bool:
        """Wait in slices: a node that is being deactivated has no thread left that could bring an answer."""
        while not self.robot.interrupted:
            if wait(_SLICE_S):
                return True
            if time.monotonic() > until_s:
                return False
        raise Interrupted("the node was deactivated")


def read_description(node: Any, settings: Settings) -> str:
    """XML, or the path of a file; empty if the parameters name none. Waits for a topic, with any spinning of the node.

    Raises:
        UserError: if both parameters are set, or nothing comes on the topic within ``stream_timeout_s``.
    """
    given: str = settings["robot_description"]
    topic, timeout_s = settings["robot_description_topic"], settings["stream_timeout_s"]
    if not topic:
        return given
    if given:
        raise ConfigError("robot_description and robot_description_topic are both set; one says what the robot is")
    received, message = wait_for_message(String, node, topic, qos_profile=qos.latched(), time_to_wait=timeout_s)
    if not received:
        raise UserError(f"no robot description came on {topic} within {timeout_s:g} s: does robot_state_publisher run?")
    return str(message.data)


def add_label_services(node: Any, label: Callable[[bool], str], discard: Callable[[], str]) -> None:
    """``~/success``, ``~/failure`` and ``~/discard``, each a std_srvs/Trigger."""
    acts = {"success": lambda: label(True), "failure": lambda: label(False), "discard": discard}
    for name, act in acts.items():
        add_trigger(node, name, act)


def add_trigger(node: Any, name: str, act: Callable[[], str]) -> None:
    """Offer a std_srvs/Trigger ``~/name``; a UserError of ``act`` becomes its refusal."""
    node.create_service(Trigger, f"~/{name}", lambda _, response: answer(response, act))


def answer(response: Any, act: Callable[[], str]) -> Any:
    """Fill the response of a service with what ``act`` says, or with why it would not."""
    try:
        response.message, response.success = act(), True
    except UserError as error:
        response.message, response.success = str(error), False
    return response


def _on_clock(clock: RosTime, message: Any) -> None:
    clock.on_clock(message.clock.sec * 1_000_000_000 + message.clock.nanosec)
