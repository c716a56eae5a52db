"""The robot's URDF, from a parameter or from where robot_state_publisher publishes it."""

from typing import Any

from robot_io.ros2 import qos
from robot_io.ros2.parameters import Settings
from vla_rl.core.errors import ConfigError, UserError


def read_description(node: Any, settings: Settings) -> str:
    """XML, or the path of a file; empty if the parameters name none. Waits for a topic, whoever spins the node.

    Raises:
        UserError: if both parameters are set, or nothing comes on the topic within ``stream_timeout_s``.
    """
    from rclpy.wait_for_message import wait_for_message
    from std_msgs.msg import String

    given: str = settings["robot_description"]
    topic, timeout_s = settings["robot_description_topic"], settings["stream_timeout_s"]
    if not topic:
        return given
    if given:
        raise ConfigError("robot_description and robot_description_topic are both set; one says what the robot is")
    heard, message = wait_for_message(String, node, topic, qos_profile=qos.latched(), time_to_wait=timeout_s)
    if not heard:
        raise UserError(f"no robot description came on {topic} within {timeout_s:g} s: does robot_state_publisher run?")
    return str(message.data)
