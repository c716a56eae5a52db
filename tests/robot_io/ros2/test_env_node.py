"""The simulated robot's own watchdog, and faults on request: with the real rclpy, in a process of its own."""

import json
import subprocess
import sys

import pytest

from tests.fakes.ros2_scripts import ros_or_skip, said_by

SCRIPT = """
import json, os, sys, threading, time
import rclpy
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory
from robot_io.ros2 import messages, qos
from robot_io.ros2.env_node import EnvNode
import numpy as np

rclpy.init(args=["--ros-args", "-p", "command_timeout_ms:=200.0", "-p", "env_options:='{\\"image_size\\": 16}'",
                 "-p", "realtime_factor:=0.5"])
env = EnvNode()
client = rclpy.create_node("client")
seen = []
client.create_subscription(JointState, "joint_states", lambda m: seen.append(np.array(m.position)), qos.joints())
commands = client.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", qos.commands())
executor = SingleThreadedExecutor()
executor.add_node(env)
executor.add_node(client)
threading.Thread(target=executor.spin, daemon=True).start()
while len(seen) < 3 or commands.get_subscription_count() == 0:
    time.sleep(0.02)
start = seen[-1]
far = start.copy()
far[2] += 1.0  # out of its reach
reached = []
joints = [f"{side}_{channel}" for side in ("left", "right") for channel in ("x", "y", "z", "grip")]
commands.publish(messages.trajectory(joints, far[None].astype(np.float32), [50_000_000]))
time.sleep(3.0)
held = env._target.copy()
from std_msgs.msg import String
faults = client.create_publisher(String, "env_robot/fault", 1)
while faults.get_subscription_count() == 0:
    time.sleep(0.02)
told = []
for name in ("joints_silent", "no_such_fault", ""):
    faults.publish(String(data=name))
    time.sleep(0.5)
    before = len(seen)
    time.sleep(1.0)
    told.append(len(seen) - before)
print(json.dumps({"told": told, "away": float(abs(far[2] - start[2])), "held": float(abs(held[2] - seen[-1][2])),
                  "target": float(abs(held[2] - far[2]))}), flush=True)
os._exit(0)
"""


NAMES = """
import json
from types import SimpleNamespace
from robot_io.ros2.env_node import joint_names
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError

reader, actions = SimpleNamespace(state_dim=3), SimpleNamespace(size=2)
silent = SimpleNamespace(reader=reader, actions=actions, state_dimensions=Dimensions(), action_dimensions=Dimensions())
named = SimpleNamespace(reader=reader, actions=actions, state_dimensions=Dimensions(("a", "b", "c")),
                        action_dimensions=Dimensions(("c", "a")))


def said(robot, joints):
    try:
        return joint_names(robot, joints)
    except UserError as error:
        return str(error)


cases = [(silent, []), (silent, ["x", "y", "z"]), (named, []), (named, ["x", "y", "z"]), (named, ["b", "a", "c"]),
         (named, ["x"])]
print(json.dumps([said(*case) for case in cases]))
"""


@pytest.mark.slow
def test_topics_carry_the_environments_own_names() -> None:
    found = said_by(NAMES, environment=ros_or_skip())
    assert found[0] == [["joint_1", "joint_2", "joint_3"], ["joint_1", "joint_2"]]
    assert found[1] == [["x", "y", "z"], ["x", "y"]]
    assert found[2] == [["a", "b", "c"], ["c", "a"]], "commands are taken in the order of the action"
    assert found[3] == [["x", "y", "z"], ["z", "x"]]
    assert "['b', 'a', 'c'], the environment's own order is ['a', 'b', 'c']" in found[4]
    assert "names 1 joints, the state has 3 numbers" in found[5]


@pytest.mark.slow
def test_without_commands_for_too_long_the_simulated_robot_holds_where_it_is() -> None:
    environment = ros_or_skip()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, timeout=90, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["held"] < 0.005, found
    assert found["told"][:2] == [0, 0], "a name that is unknown mends nothing"
    assert found["told"][2] > 2
    assert "there is no fault of sensors 'no_such_fault'" in done.stdout + done.stderr
    assert found["target"] > 0.02, "the target of the last command was given up"
