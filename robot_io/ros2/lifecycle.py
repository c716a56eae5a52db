"""Lifecycle requests that the present state does not allow, answered.

rclpy lets the service's callback raise for them, and whoever asked waits for an answer that never comes.
"""

from typing import Any

from lifecycle_msgs.srv import ChangeState
from rclpy.impl.implementation_singleton import rclpy_implementation

_REFUSED = rclpy_implementation.RCLError


def answer_every_request(node: Any) -> None:
    """Give the service ``change_state`` of a lifecycle node a callback that says no where rclpy's own would raise.

    It uses what rclpy declares public (`Node.services`, the callback of a service), and looks whether it is there.

    Raises:
        RuntimeError: if this rclpy has it no more: invalid requests would go unanswered.
    """
    services = [service for service in node.services if getattr(service, "srv_type", None) is ChangeState]
    if len(services) != 1 or not callable(getattr(services[0], "callback", None)):
        raise RuntimeError(
            f"this rclpy shows {len(services)} services of lifecycle transitions, expected one with a callback: "
            "robot_io/ros2/lifecycle.py was written for ROS 2 Jazzy"
        )
    (service,) = services
    original = service.callback

    def change_state(request: Any, response: Any) -> Any:
        try:
            return original(request, response)
        except _REFUSED as error:
            node.get_logger().error(f"the transition was refused: {error}")
            response.success = False
            return response

    service.callback = change_state
