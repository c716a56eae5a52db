"""What a node answers to requests at the wrong moment, and to others who could command its robot: with the real rclpy,
a real robot of topics and gate, and a session that only holds.
"""

from typing import Any

import pytest

from tests.fakes.ros2_scripts import ros_or_skip, said_by

SCRIPT = """
import json, time
import rclpy
from std_msgs.msg import Bool
from trajectory_msgs.msg import JointTrajectory
from robot_io.ros2 import qos
from tests.fakes.holding_rig import HoldingRig

rig = HoldingRig(estop_topic="estop")
estop = rig.world.create_publisher(Bool, "estop", 1)
said = {"invalid": rig.transition("activate")}
rival = rclpy.create_node("rival")
commands = rival.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", qos.commands())
said["configure beside a rival"] = rig.transition("configure")
rival.destroy_publisher(commands)
twin = rclpy.create_node("policy_node")
time.sleep(1.0)
said["configure beside a twin"] = rig.transition("configure")
twin.destroy_node()
time.sleep(1.0)
said["configure"] = rig.transition("configure")
said["activate"] = rig.transition("activate")
estop.publish(Bool(data=False))
assert rig.until(lambda: not rig.node._wiring.robot.interlocks)
said["success before"], said["discard before"] = rig.trigger("success"), rig.trigger("discard")
said["start"] = rig.trigger("start")
assert rig.until(lambda: rig.node._standing_by == "")
time.sleep(0.5)
said["start during"] = rig.trigger("start")
said["success"] = rig.trigger("success")
assert rig.until(lambda: rig.node._standing_by == "waiting for ~/start")
time.sleep(0.7)
said["attempts after success"] = rig.node._attempts
said["success after"] = rig.trigger("success")
said["start 2"] = rig.trigger("start")
time.sleep(0.5)
said["discard"] = rig.trigger("discard")
assert rig.until(lambda: rig.node._attempts == 2)
rig.trigger("start")
time.sleep(0.5)
commands = rival.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", qos.commands())
assert rig.until(lambda: "re-armed" in rig.node._standing_by)
said["stopped by a rival"] = rig.node._stopped_because
said["rearm beside it"] = rig.trigger("rearm")
said["start beside it"] = rig.trigger("start")
assert rig.until(lambda: "re-armed" in rig.node._standing_by)
said["why not"] = rig.node._stopped_because
rival.destroy_publisher(commands)
time.sleep(1.0)
rig.trigger("rearm")
said["start again"] = rig.trigger("start")
time.sleep(0.5)
estop.publish(Bool(data=True))
assert rig.until(lambda: rig.node._stopped_because)
said["stopped by hand"] = rig.node._stopped_because
print(json.dumps(said), flush=True)
rig.end()
"""


@pytest.fixture(scope="module")
def said() -> Any:
    return said_by(SCRIPT, environment=ros_or_skip())


@pytest.mark.slow
def test_an_invalid_lifecycle_request_is_answered(said: dict[str, Any]) -> None:
    assert said["invalid"] is False


@pytest.mark.slow
def test_a_start_during_an_attempt_is_refused_and_never_queued(said: dict[str, Any]) -> None:
    assert said["start"][0]
    accepted, why = said["start during"]
    assert not accepted
    assert "an attempt is running" in why
    assert said["success"][0]
    assert said["attempts after success"] == 1, "the robot does not move again unasked"


@pytest.mark.slow
def test_an_outcome_needs_an_attempt(said: dict[str, Any]) -> None:
    for moment in ("success before", "discard before", "success after"):
        accepted, why = said[moment]
        assert not accepted, moment
        assert "there is no attempt" in why
    assert said["discard"][0]


@pytest.mark.slow
def test_others_who_could_command_the_robot_are_seen_at_configure(said: dict[str, Any]) -> None:
    assert said["configure beside a rival"] is False
    assert said["configure beside a twin"] is False
    assert said["configure"] is True


@pytest.mark.slow
def test_a_second_commander_stops_the_robot_and_keeps_it_stopped(said: dict[str, Any]) -> None:
    assert "/rival also publishes on /arm_controller/joint_trajectory" in said["stopped by a rival"]
    assert "/rival also publishes" in said["why not"], "rearming alone begins no attempt beside it"
    assert said["start again"][0]


@pytest.mark.slow
def test_the_emergency_stop_is_an_input(said: dict[str, Any]) -> None:
    assert "emergency stop" in said["stopped by hand"]
