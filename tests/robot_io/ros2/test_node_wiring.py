"""Around the node, with the real rclpy: a reset service whose node restarts, a description that is published, an rclpy
that would leave requests unanswered.
"""

from typing import Any

import pytest

from tests.fakes.ros2_scripts import ros_or_skip, said_by
from tests.robot_io.test_description import URDF

SCRIPT = """
import json, sys, threading, time
from types import SimpleNamespace
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from std_msgs.msg import String
from std_srvs.srv import Trigger
from robot_io.ros2 import qos, wiring as module
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.spinning import answer_every_request, spin
from robot_io.ros2.robot import Interface
from robot_io.ros2.wiring import Wiring, read_description
from vla_rl.core.errors import UserError
from vla_rl.acting.robots.ros2 import settings_from

rclpy.init()
said = {}
try:
    answer_every_request(Node("no_lifecycle"))
except RuntimeError as error:
    said["other rclpy"] = str(error)
odd = SimpleNamespace(services=[])
try:
    answer_every_request(odd)
except RuntimeError as error:
    said["no services"] = str(error)

publisher_node = rclpy.create_node("robot_state_publisher")
published = publisher_node.create_publisher(String, "robot_description", qos.latched())
published.publish(String(data=sys.argv[1]))
node = rclpy.create_node("robot")
base = {"joints": ["a"], "cameras": [], "stream_timeout_s": 5.0}
said["description"] = read_description(node, settings_from({**base, "robot_description_topic": "robot_description"}))
for name, options in {
    "silent": {"robot_description_topic": "elsewhere", "stream_timeout_s": 0.5},
    "both": {"robot_description_topic": "robot_description", "robot_description": "x.urdf"},
}.items():
    try:
        said[name] = read_description(node, settings_from({**base, **options}))
    except UserError as error:
        said[name] = str(error)

guarded = settings_from({**base, "estop_topic": "estop", "deadman_topic": "deadman"})
guarded = Wiring(node, guarded, Interface(20.0, None, 1e4), OperatorRequests())
said["before the first timer"] = sorted(reason.name for reason in guarded.robot.interlocks)
guarded.close()
settings = settings_from({**base, "reset_service": "reset", "reset_timeout_s": 40.0})
wiring = Wiring(node, settings, Interface(20.0, None, 1e4), OperatorRequests())
threading.Thread(target=spin, args=(node,), daemon=True).start()
asked = []


def serve(name, dies):
    # A node of the robot in a thread of its own; one that dies has heard the request and never answers it.
    server, done = rclpy.create_node(name), threading.Event()

    def reset(_, response):
        asked.append(name)
        if dies:
            raise RuntimeError("the robot's program ends here")
        response.success = True
        return response

    server.create_service(Trigger, "reset", reset)
    executor = SingleThreadedExecutor()
    executor.add_node(server)

    def run():
        try:
            while not done.is_set():
                executor.spin_once(0.1)
        except RuntimeError:
            executor.remove_node(server)
            server.destroy_node()
            if dies:
                time.sleep(1.0)
                serve("restarted", False)

    threading.Thread(target=run, daemon=True).start()
    return done


first = serve("first", True)
began_s = time.monotonic()
wiring._reset_world()
said["asked"], said["reset_s"] = list(asked), time.monotonic() - began_s

module._ASK_AGAIN_S = 1.0
slow = rclpy.create_node("slow")
wiring._resetting = node.create_client(Trigger, "slow_reset")
homed = []


def home(_, response):
    time.sleep(1.5)
    homed.append(time.monotonic())
    response.success = True
    return response


slow.create_service(Trigger, "slow_reset", home)
executor = SingleThreadedExecutor()
executor.add_node(slow)
threading.Thread(target=executor.spin, daemon=True).start()
try:
    wiring._reset_world()
    said["slow"] = ""
except UserError as error:
    said["slow"] = str(error)
returned = len(homed)
time.sleep(2.5)
said["moved after"] = len(homed) - returned
print(json.dumps(said), flush=True)
import os
os._exit(0)
"""


@pytest.fixture(scope="module")
def said() -> Any:
    return said_by(SCRIPT, URDF, environment=ros_or_skip())


@pytest.mark.slow
def test_a_robot_that_restarts_during_a_reset_is_asked_again(said: dict[str, Any]) -> None:
    assert said["asked"] == ["first", "restarted"]
    assert said["reset_s"] < 20.0


@pytest.mark.slow
def test_a_reset_that_takes_its_time_is_waited_for_and_nothing_moves_after_it(said: dict[str, Any]) -> None:
    assert said["slow"] == ""
    assert said["moved after"] == 0


@pytest.mark.slow
def test_the_description_is_taken_from_its_topic_or_asked_for(said: dict[str, Any]) -> None:
    assert said["description"] == URDF
    assert "does robot_state_publisher run?" in said["silent"]
    assert "both set" in said["both"]


@pytest.mark.slow
def test_an_rclpy_without_what_is_relied_on_fails_at_the_start(said: dict[str, Any]) -> None:
    for case in ("other rclpy", "no services"):
        assert "written for ROS 2 Jazzy" in said[case]


@pytest.mark.slow
def test_interlocks_are_open_until_they_were_checked(said: dict[str, Any]) -> None:
    assert said["before the first timer"] == ["DEAD_MAN", "E_STOP"]
