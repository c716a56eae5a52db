"""What a node answers to requests at the wrong moment, and to others who could command its robot: with the real rclpy,
a real robot of topics and gate, and a session that only holds.
"""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.fakes.ros2_rig import RMWS, ros_environment
from vla_rl.core.errors import UserError

SCRIPT = """
import json, sys, threading, time
import numpy as np
import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory
from robot_io.gate import GateConfig, SafetyGate
from robot_io.ros2 import qos
from robot_io.ros2.diagnostics import Health
from robot_io.ros2.node import PolicyNode
from robot_io.ros2.spinning import spin
from robot_io.ros2.wiring import Interface
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator

LIMITS = GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2, max_observation_age_ms=2000.0,
                    max_gap_ms=5000.0)


class Holds:
    interface = Interface(20.0, None, (), 50_000_000, 2000.0)

    def __init__(self):
        self.gate = SafetyGate(LIMITS, 20.0)

    def connect(self, robot, takeover):
        self.robot = robot

    def attempt(self, seed, wait_for_label):
        rest = np.zeros(2, np.float32)
        source = Demonstrator(lambda: (rest, rest))
        summary = run_episode(self.robot, source, self.gate, seed=seed)
        if summary.success is None:
            wait_for_label()
        return self.gate.why if self.gate.latched else ""

    def checklist(self):
        return ["yes  it holds"]

    def rearm(self):
        self.gate.rearm()

    def health(self):
        return Health()

    def close(self):
        pass


rclpy.init(args=["--ros-args", *[item for name, value in {
    "policy": "p", "joints": "[a, b]", "label_timeout_s": "1.5", "estop_topic": "estop"}.items()
    for item in ("-p", f"{name}:={value}")]])
node = PolicyNode(lambda settings, desk: Holds())
threading.Thread(target=spin, args=(node,), daemon=True).start()
world = rclpy.create_node("world")
joints = world.create_publisher(JointState, "joint_states", qos.sensors())
estop = world.create_publisher(Bool, "estop", 1)


def speak():
    stamp = world.get_clock().now().to_msg()
    message = JointState(name=["a", "b"], position=[0.0, 0.0])
    message.header.stamp = stamp
    joints.publish(message)


world.create_timer(0.02, speak)
executor = SingleThreadedExecutor()
executor.add_node(world)
threading.Thread(target=executor.spin, daemon=True).start()
clients = {}


def call(kind, name, request, within_s=15.0):
    client = clients.setdefault(name, world.create_client(kind, f"policy_node/{name}"))
    assert client.wait_for_service(20.0), name
    done = threading.Event()
    future = client.call_async(request)
    future.add_done_callback(lambda _: done.set())
    return future.result() if done.wait(within_s) else None


def trigger(name):
    answer = call(Trigger, name, Trigger.Request())
    return answer and [answer.success, answer.message]


def transition(name):
    wanted = Transition(id=getattr(Transition, f"TRANSITION_{name.upper()}"))
    answer = call(ChangeState, "change_state", ChangeState.Request(transition=wanted))
    return None if answer is None else answer.success


def until(condition, within_s=10.0):
    end_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < end_s:
        time.sleep(0.02)
    return bool(condition())


said = {"invalid": transition("activate")}
rival = rclpy.create_node("rival")
commands = rival.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", qos.commands())
said["configure beside a rival"] = transition("configure")
rival.destroy_publisher(commands)
twin = rclpy.create_node("policy_node")
time.sleep(1.0)
said["configure beside a twin"] = transition("configure")
twin.destroy_node()
time.sleep(1.0)
said["configure"] = transition("configure")
said["activate"] = transition("activate")
said["success before"], said["discard before"] = trigger("success"), trigger("discard")
said["start"] = trigger("start")
assert until(lambda: node._standing_by == "")
time.sleep(0.5)
said["start during"] = trigger("start")
said["success"] = trigger("success")
assert until(lambda: node._standing_by == "waiting for ~/start")
time.sleep(0.7)
said["attempts after success"] = node._attempts
said["success after"] = trigger("success")
said["start 2"] = trigger("start")
time.sleep(0.5)
said["discard"] = trigger("discard")
assert until(lambda: node._attempts == 2)
trigger("start")
time.sleep(0.5)
commands = rival.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", qos.commands())
assert until(lambda: "re-armed" in node._standing_by)
said["stopped by a rival"] = node._stopped_because
said["rearm beside it"] = trigger("rearm")
said["start beside it"] = trigger("start")
assert until(lambda: "re-armed" in node._standing_by)
said["why not"] = node._stopped_because
rival.destroy_publisher(commands)
time.sleep(1.0)
trigger("rearm")
said["start again"] = trigger("start")
time.sleep(0.5)
estop.publish(Bool(data=True))
assert until(lambda: node._stopped_because)
said["stopped by hand"] = node._stopped_because
print(json.dumps(said), flush=True)
import os
os._exit(0)
"""


@pytest.fixture(scope="module")
def said() -> dict[str, Any]:
    try:
        environment = ros_environment(RMWS[0], 47)
    except UserError as missing:
        pytest.skip(str(missing))
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_an_invalid_lifecycle_request_is_answered(said: dict[str, Any]) -> None:
    assert said["invalid"] is False


def test_a_start_during_an_attempt_is_refused_and_never_queued(said: dict[str, Any]) -> None:
    assert said["start"][0]
    accepted, why = said["start during"]
    assert not accepted
    assert "an attempt is running" in why
    assert said["success"][0]
    assert said["attempts after success"] == 1, "the robot does not move again unasked"


def test_an_outcome_needs_an_attempt(said: dict[str, Any]) -> None:
    for moment in ("success before", "discard before", "success after"):
        accepted, why = said[moment]
        assert not accepted, moment
        assert "there is no attempt" in why
    assert said["discard"][0]


def test_others_who_could_command_the_robot_are_seen_at_configure(said: dict[str, Any]) -> None:
    assert said["configure beside a rival"] is False
    assert said["configure beside a twin"] is False
    assert said["configure"] is True


def test_a_second_commander_stops_the_robot_and_keeps_it_stopped(said: dict[str, Any]) -> None:
    assert "/rival also publishes on /arm_controller/joint_trajectory" in said["stopped by a rival"]
    assert "/rival also publishes" in said["why not"], "rearming alone begins no attempt beside it"
    assert said["start again"][0]


def test_the_emergency_stop_is_an_input(said: dict[str, Any]) -> None:
    assert "emergency stop" in said["stopped by hand"]
