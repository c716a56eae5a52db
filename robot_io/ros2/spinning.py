"""Run a node until a signal ends it, so that it can still send its last messages.

rclpy's own signal handlers would shut ROS down first, and no command could bring the robot to rest. Here the main
thread waits for signals, another one calls the node's callbacks, and ROS is shut down last.
"""

import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import rclpy
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.signals import SignalHandlerOptions

from vla_rl.core.errors import UserError

_CHECK_PERIOD_S = 0.5


def run_ros(make_node: Callable[[], Any], name: str, arguments: list[str] | None = None) -> int:
    """Run a node until SIGINT, SIGTERM or the end of ROS; returns the exit code.

    ``make_node`` makes the node; its method `close` is called while ROS still works. Arguments of ROS are those of the
    command line unless given.
    """
    ending = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup
            signal.signal(number, lambda *_: ending.set())
    rclpy.init(args=arguments, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make_node()
    except UserError as error:
        print(f"{name}: error: {error}", file=sys.stderr)
        rclpy.try_shutdown()
        return 2
    spinning = threading.Thread(target=spin, args=(node,), name="ros", daemon=True)
    spinning.start()
    while not ending.wait(_CHECK_PERIOD_S) and rclpy.ok():
        pass
    node.close()
    rclpy.try_shutdown()
    spinning.join(2.0)
    return 0


def spin(node: Any) -> None:
    """Call the node's callbacks until ROS ends. One that raises must not take a running robot its ears (rclpy itself
    raises for a transition that the present state does not have).
    """
    try:  # the one in C++, three to four times faster for small messages, where there is one
        from rclpy.experimental import EventsExecutor as Executor
    except ImportError:
        Executor = SingleThreadedExecutor
    executor = Executor()
    executor.add_node(node)
    while rclpy.ok():
        try:
            executor.spin()
        except ExternalShutdownException:
            return
        except Exception:
            node.get_logger().error(traceback.format_exc())


def answer_every_request(node: Any) -> None:
    """Answer requests for lifecycle transitions that the present state does not allow.

    rclpy's own callback of ``change_state`` raises for them, and the caller waits for an answer that never comes.
    It uses what rclpy declares public (`Node.services`, the callback of a service), and looks whether it is there.

    Raises:
        RuntimeError: if this rclpy has it no more: invalid requests would go unanswered.
    """
    services = [service for service in node.services if getattr(service, "srv_type", None) is ChangeState]
    if len(services) != 1 or not callable(getattr(services[0], "callback", None)):
        raise RuntimeError(
            f"this rclpy shows {len(services)} services of lifecycle transitions, expected one with a callback: "
            "robot_io/ros2/spinning.py was written for ROS 2 Jazzy"
        )
    (service,) = services
    original = service.callback

    def change_state(request: Any, response: Any) -> Any:
        try:
            return original(request, response)
        except rclpy_implementation.RCLError as error:
            node.get_logger().error(f"the transition was refused: {error}")
            response.success = False
            return response

    service.callback = change_state
