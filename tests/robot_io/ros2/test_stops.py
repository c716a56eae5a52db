"""The emergency stop and its kin, over real topics: pressed before anybody listened, pressed for a moment, its computer
dead; a stop that outlives a new configuration; two leader arms at once.
"""

from concurrent.futures import Future
from typing import Any

import pytest

from tests.fakes.ros2_rig import RMWS
from tests.fakes.ros2_scripts import begin, begin_on_each, ros_or_skip

pytestmark = pytest.mark.slow  # test_node_refuses runs the same modules

PRESSED = """
import json, time
from std_msgs.msg import Bool
from robot_io.ros2 import qos
from tests.fakes.holding_rig import HoldingRig

rig = HoldingRig(estop_topic="estop")
acting = lambda: rig.node._wiring.robot.acting


def act_anew():
    time.sleep(0.5)
    rig.trigger("rearm")
    assert rig.until(lambda: rig.node._wiring.interlocks.values()["emergency stop"] == "released")
    rig.trigger("start")
    assert rig.until(acting)
    time.sleep(0.5)


button = rig.world.create_publisher(Bool, "estop", qos.latched())  # says what changes, and says it to whoever comes
button.publish(Bool(data=True))
time.sleep(1.0)
assert rig.transition("configure") and rig.transition("activate")
said = {"before": rig.until(lambda: "is pressed" in rig.node._wiring.interlocks.values()["emergency stop"])}
rig.trigger("start")
assert rig.until(rig.stopped)
said["start"] = {"why": rig.why, "acts": acting()}
rig.world.destroy_publisher(button)
assert rig.until(lambda: "is pressed" in rig.node._wiring.interlocks.values()["emergency stop"])
button = rig.world.create_publisher(Bool, "estop", 10)
time.sleep(0.5)
button.publish(Bool(data=False))
time.sleep(0.5)
rig.trigger("rearm")
rig.world.destroy_publisher(button)
said["gone"] = rig.until(lambda: "has no publisher" in rig.node._wiring.interlocks.values()["emergency stop"])
button = rig.world.create_publisher(Bool, "estop", 10)  # it comes back, and says nothing
said["silent"] = rig.until(lambda: "not published" in rig.node._wiring.interlocks.values()["emergency stop"])
button.publish(Bool(data=False))
act_anew()
button.publish(Bool(data=True))
button.publish(Bool(data=False))
said["a moment"] = {"stopped": rig.until(rig.stopped, 3.0), "why": rig.why}
button.publish(Bool(data=False))
act_anew()
second = rig.world.create_publisher(Bool, "estop", 10)
said["two"] = rig.until(lambda: "not published" in rig.node._wiring.interlocks.values()["emergency stop"], 3.0)
button.publish(Bool(data=False))
time.sleep(0.5)
said["vouched"] = rig.node._wiring.interlocks.values()["emergency stop"]
rig.world.destroy_publisher(second)
rig.until(rig.stopped)
act_anew()
rig.world.destroy_publisher(button)
button = rig.world.create_publisher(Bool, "estop", 10)  # sooner than anybody looks, and silent
said["restarted"] = {"stopped": rig.until(rig.stopped, 3.0), "why": rig.why}
button.publish(Bool(data=False))
act_anew()


def blind():
    raise RuntimeError("the graph is not to be had")


rig.node.get_node_names_and_namespaces = blind
said["blind"] = {"stopped": rig.until(rig.stopped, 3.0), "why": rig.why}
button.publish(Bool(data=True))
said["blind and pressed"] = rig.until(lambda: "is pressed" in " ".join(rig.node._wiring.robot.interlocks.values()), 3.0)
print(json.dumps(said), flush=True)
rig.end()
"""

KILLED = """
import json, signal, subprocess, sys, time
from tests.fakes.holding_rig import HoldingRig

BUTTON = '''
import time, rclpy
from std_msgs.msg import Bool
rclpy.init()
node = rclpy.create_node("button")
publisher = node.create_publisher(Bool, "estop", 1)
while True:
    publisher.publish(Bool(data=False))
    time.sleep(0.1)
'''
button = subprocess.Popen([sys.executable, "-c", BUTTON], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
rig = HoldingRig(estop_topic="estop", estop_timeout_ms="500.0")
assert rig.transition("configure")
assert rig.until(lambda: not rig.node._wiring.robot.interlocks, 30.0)
assert rig.transition("activate") and rig.trigger("start")[0]
assert rig.until(lambda: rig.node._wiring.robot.acting)
time.sleep(0.5)
button.send_signal(signal.SIGKILL)  # no goodbye to the middleware
button.wait()
began_s = time.monotonic()
latched = rig.until(lambda: rig.session.gate.latched, 30.0)
after_ms = (time.monotonic() - began_s) * 1e3
rig.until(rig.stopped)
print(json.dumps({"latched": latched, "after_ms": after_ms, "why": rig.why}), flush=True)
rig.end()
"""

ANEW = """
import json, time
import numpy as np
from std_msgs.msg import Float64MultiArray
from tests.fakes.holding_rig import HoldingRig

rig = HoldingRig(auto_start="true", attempts="1000")
assert rig.transition("configure")
said = {"estop": rig.trigger("estop")}
for name in ("cleanup", "configure", "activate"):
    assert rig.transition(name)
time.sleep(1.5)
said["acts"], said["why"] = bool(rig.node._wiring.robot.acting), rig.why
leaders = [rig.world.create_publisher(Float64MultiArray, "policy_node/takeover_command", 5) for _ in range(2)]
rig.until(lambda: rig.node._wiring.robot.interlocks)
said["two leaders"] = list(rig.node._wiring.robot.interlocks.values())
print(json.dumps(said), flush=True)
rig.end()
"""

LATE_MS = 500.0  # of a busy machine


@pytest.fixture(scope="module")
def begun() -> dict[str, Future[Any]]:
    single = {"pressed": PRESSED, "anew": ANEW}
    return begin_on_each(KILLED) | {name: begin(script, environment=ros_or_skip()) for name, script in single.items()}


@pytest.fixture(scope="module")
def pressed(begun: dict[str, Future[Any]]) -> Any:
    return begun["pressed"].result()


def test_an_emergency_stop_that_was_pressed_before_the_node_came_counts(pressed: dict[str, Any]) -> None:
    assert pressed["before"]
    assert not pressed["start"]["acts"]
    assert "the emergency stop on estop is pressed" in pressed["start"]["why"]


def test_one_who_comes_back_has_to_say_anew_that_it_is_released(pressed: dict[str, Any]) -> None:
    assert pressed["gone"]
    assert pressed["silent"]


def test_of_two_emergency_stops_nobody_can_tell_which_one_is_released(pressed: dict[str, Any]) -> None:
    """A message does not say who sent it."""
    assert pressed["two"]
    words = "2 publish the emergency stop on estop, and a message does not name its publisher: end all but one"
    assert pressed["vouched"] == words


def test_one_who_restarts_before_anybody_looks_has_to_say_so_too(pressed: dict[str, Any]) -> None:
    assert pressed["restarted"]["stopped"]
    assert "the emergency stop on estop has not published its release" in pressed["restarted"]["why"]


def test_a_look_around_that_fails_does_not_pass_for_nobody(pressed: dict[str, Any]) -> None:
    assert pressed["blind"]["stopped"]
    assert "the graph is not to be had" in pressed["blind"]["why"]
    assert pressed["blind and pressed"], "and does not hide the other interlocks"


def test_a_press_of_a_moment_stops_until_a_person_has_looked(pressed: dict[str, Any]) -> None:
    assert pressed["a moment"]["stopped"]
    assert "the emergency stop on estop was pressed" in pressed["a moment"]["why"]


@pytest.mark.parametrize("rmw", RMWS)
def test_a_dead_emergency_stop_stops_the_robot_as_soon_as_declared(begun: dict[str, Future[Any]], rmw: str) -> None:
    said = begun[rmw].result()
    assert said["latched"]
    assert said["after_ms"] <= 500.0 + 100.0 + 100.0 + LATE_MS
    assert "silent for more than 500 ms" in said["why"]


def test_a_stop_outlives_a_new_configuration_and_two_leaders_are_one_too_many(begun: dict[str, Future[Any]]) -> None:
    said = begun["anew"].result()
    assert said["estop"][0]
    assert not said["acts"]
    assert "~/estop was called" in said["why"]
    assert "2 publish on /policy_node/takeover_command: end all but one" in " ".join(said["two leaders"])
