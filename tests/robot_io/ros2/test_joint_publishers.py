"""Two who tell the same joints, as a simulator that was left running beside the driver: without ROS, and over real
topics.
"""

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from robot_io.ros2.joint_publishers import JointPublishers
from tests.fakes.ros2_rig import RMWS
from tests.fakes.ros2_scripts import begin_on_each


class Graph:
    """Publishers of joint states by name, and what they have said."""

    def __init__(self) -> None:
        self.tellers = JointPublishers(("a", "b"), "/joint_states")

    def look(self, *names: str, now_s: float) -> str:
        """As the graph is: publishers by the names of their nodes; one with a ' is another of the same name."""
        infos = [
            SimpleNamespace(endpoint_gid=list(name.encode()), node_namespace="/", node_name=name.rstrip("'"))
            for name in names
        ]
        return self.tellers.objection(infos, now_s)

    def say(self, joints: str, with_positions: bool = True) -> None:
        names = joints.split()
        self.tellers.add(SimpleNamespace(name=names, position=[0.0] * len(names) if with_positions else []))


def test_one_who_tells_and_two_who_tell_different_joints_are_well() -> None:
    graph = Graph()
    assert graph.look("arm", now_s=0.0) == ""
    assert graph.look("arm", now_s=99.0) == ""
    assert graph.look("arm", "hand", now_s=100.0) == ""
    for joints in ("a b", "c", "a b"):
        graph.say(joints)
    graph.say("a b", with_positions=False)  # velocities alone
    assert graph.look("arm", "hand", now_s=102.0) == ""


def test_a_joint_that_two_tell_is_an_objection_at_once() -> None:
    graph = Graph()
    graph.look("arm", "sim", now_s=0.0)
    graph.say("a b")
    graph.say("b c")
    why = graph.look("arm", "sim", now_s=0.1)
    assert "2 publish /joint_states (/arm, /sim), and two of them publish joint b" in why
    assert "end all but its driver" in why
    assert graph.look("arm", now_s=0.2) == "", "one has gone"


def test_two_who_tell_the_same_joints_cannot_be_told_apart_and_are_an_objection_soon() -> None:
    graph = Graph()
    graph.look("arm", "sim", now_s=0.0)
    for _ in range(50):
        graph.say("a b")
    assert graph.look("arm", "sim", now_s=0.9) == "", "the other one may say something yet"
    assert "do not publish different joints" in graph.look("arm", "sim", now_s=1.1)


def test_who_comes_in_place_of_another_has_to_be_heard_anew() -> None:
    graph = Graph()
    graph.look("arm", "hand", now_s=0.0)
    graph.say("a b")
    graph.say("c")
    graph.look("arm", "sim", now_s=5.0)
    graph.say("a b")
    assert graph.look("arm", "sim", now_s=6.1)


def test_two_of_one_name_are_two_as_soon() -> None:
    """Whether twins, or a driver that was killed and is back: a message does not say whose it is."""
    graph = Graph()
    graph.look("arm", "arm'", now_s=0.0)
    graph.say("a b")
    assert graph.look("arm", "arm'", now_s=0.9) == ""
    why = graph.look("arm", "arm'", now_s=1.1)
    assert "(/arm, /arm)" in why
    assert "A killed one disappears after some 20 s" in why
    assert graph.look("arm'", now_s=20.0) == "", "it is gone"


SCRIPT = """
import json, time
import rclpy
from sensor_msgs.msg import JointState
from robot_io.ros2 import qos
from tests.fakes.holding_rig import HoldingRig

rig = HoldingRig()


def driver(node, *names):
    publisher = rclpy.create_node(node).create_publisher(JointState, "joint_states", qos.sensors())

    def speak():
        message = JointState(name=list(names), position=[0.0] * len(names))
        message.header.stamp = rig.world.get_clock().now().to_msg()
        publisher.publish(message)

    timer = rig.world.create_timer(0.02, speak)

    def end():
        rig.world.destroy_timer(timer)
        publisher.destroy()

    return end


def stopped_by(node, prefix=""):
    end, began_s = driver(node, "a", "b"), time.monotonic()
    said[prefix + "stopped"] = rig.until(rig.stopped, 5.0)
    said[prefix + "after_s"] = time.monotonic() - began_s
    return end


assert rig.transition("configure") and rig.transition("activate")
driver("hand", "c")
time.sleep(0.5)
said = {"start": rig.trigger("start")}
time.sleep(2.0)
said["beside another driver"] = rig.why
end = stopped_by("sim")
said["why"] = rig.why
rig.trigger("rearm")
rig.trigger("start")
assert rig.until(rig.stopped)
said["start beside it"] = rig.why
end()
time.sleep(0.5)
rig.trigger("rearm")
said["start again"] = rig.trigger("start")
time.sleep(1.5)
said["again"] = rig.why
end = stopped_by("world", "twin ")
said["twin"] = rig.why
print(json.dumps(said), flush=True)
rig.end()
"""


@pytest.fixture(scope="module")
def begun() -> dict[str, Future[Any]]:
    return begin_on_each(SCRIPT)


@pytest.fixture(scope="module", params=RMWS)
def said(begun: dict[str, Future[Any]], request: pytest.FixtureRequest) -> Any:
    return begun[request.param].result()


@pytest.mark.slow
def test_drivers_of_different_joints_do_not_stop_the_robot(said: dict[str, Any]) -> None:
    assert said["start"][0]
    assert said["beside another driver"] == ""


@pytest.mark.slow
def test_a_second_driver_of_its_joints_stops_the_robot_and_keeps_it_stopped(said: dict[str, Any]) -> None:
    assert said["stopped"]
    assert said["after_s"] < 4.0
    assert "3 publish /joint_states (/hand, /sim, /world)" in said["why"]
    assert "3 publish /joint_states" in said["start beside it"]
    assert said["start again"][0]
    assert said["again"] == ""


@pytest.mark.slow
def test_a_twin_of_its_driver_stops_the_robot_as_soon(said: dict[str, Any]) -> None:
    assert said["twin stopped"]
    assert said["twin after_s"] < 4.0  # 1.5 s of them for a label
    assert "3 publish /joint_states (/hand, /world, /world)" in said["twin"]
