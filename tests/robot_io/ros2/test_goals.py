"""Goals of a gripper that its controller refuses or never answers, over the real rclpy."""

from typing import Any

import pytest

from tests.fakes.ros2_scripts import ros_or_skip, said_by

SCRIPT = """
import json, os, threading, time
import numpy as np
import rclpy
from control_msgs.action import GripperCommand
from rclpy.action import ActionServer, GoalResponse
from rclpy.executors import MultiThreadedExecutor
from robot_io.ros2.outputs import OutputSettings, open_output

rclpy.init()
node, world, deaf = (rclpy.create_node(name) for name in ("policy_node", "world", "deaf"))
executor = MultiThreadedExecutor(4)
executor.add_node(node)
executor.add_node(world)
threading.Thread(target=executor.spin, daemon=True).start()
said = {}


def serve(on, name, asked, refused):
    def answer(goal):
        asked.append((time.monotonic(), goal.command.position))
        return GoalResponse.REJECT if len(asked) <= refused else GoalResponse.ACCEPT

    def execute(goal):
        goal.succeed()
        return GripperCommand.Result()

    return ActionServer(on, GripperCommand, name, execute, goal_callback=answer)


def command(output, value, for_s):
    end_s = time.monotonic() + for_s
    while time.monotonic() < end_s:
        output.send(np.float32([value]))
        time.sleep(0.02)


def opened(name):
    output = open_output(node, OutputSettings("hand", name, "gripper", ("a",)), 20_000_000)
    output.begin(np.zeros(1, np.float32))
    end_s = time.monotonic() + 10.0
    while not output.sender._client.server_is_ready() and time.monotonic() < end_s:
        time.sleep(0.01)
    return output


asked = []
server = serve(world, "refusing", asked, refused=2)
output = opened("refusing")
command(output, 0.3, 3.0)
said["refused"] = [position for _, position in asked]
said["apart_s"] = [after[0] - before[0] for before, after in zip(asked, asked[1:])]

asked = []
server = serve(world, "stubborn", asked, refused=99)
output = opened("stubborn")
command(output, 0.3, 0.2)
output.begin(np.full(1, 0.1, np.float32))
command(output, 0.1, 1.5)
said["next attempt"] = [position for _, position in asked]

asked = []
lost = serve(deaf, "silent", [], refused=0)  # nobody spins it
output = opened("silent")
command(output, 0.3, 0.2)
lost.destroy()
deaf.destroy_node()
server = serve(world, "silent", asked, refused=0)
command(output, 0.3, 5.0)
said["lost"] = [position for _, position in asked]
print(json.dumps(said), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def said() -> Any:
    return said_by(SCRIPT, environment=ros_or_skip())


@pytest.mark.slow
def test_a_refused_goal_is_asked_again_without_haste_until_it_is_taken(said: dict[str, Any]) -> None:
    assert said["refused"] == [pytest.approx(0.3)] * 3
    assert min(said["apart_s"]) > 0.4, "not at every tick"


@pytest.mark.slow
def test_a_goal_that_nobody_answered_is_asked_again(said: dict[str, Any]) -> None:
    assert said["lost"] == [pytest.approx(0.3)]


@pytest.mark.slow
def test_a_goal_of_one_attempt_is_not_asked_again_in_the_next(said: dict[str, Any]) -> None:
    """It would open a hand that holds something: an attempt begins with the measured posture as its command."""
    assert said["next attempt"] == [pytest.approx(0.3)]
