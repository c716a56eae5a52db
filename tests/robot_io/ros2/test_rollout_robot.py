"""``vla-rl rollout --robot ros2``: the robot is set up with the real rclpy, in a process of its own."""

import json
from typing import Any

import pytest

from tests.fakes.ros2_scripts import ros_or_skip, said_by

SET_UP = """
import itertools, json, os, sys
import rclpy
from robot_io.gate import GateConfig
from vla_rl.acting.robots import RobotRequest, set_up_robot
from vla_rl.core.clock import MonotonicClock
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec

domains = itertools.count(int(os.environ["ROS_DOMAIN_ID"]))


def set_up(**options):
    os.environ["ROS_DOMAIN_ID"] = str(1 + next(domains) % 100)  # the node of the one before is not found there
    size = 7 if "output" in options else 2
    spec = PolicySpec("arm", ("front",), (8, 8), size, size)
    gate = GateConfig(low=(-1.0,) * size, high=(1.0,) * size, max_velocity=(1.0,) * size)
    robot = {"joints": ["pan", "gripper"], "cameras": ["front"], **options}
    try:
        setup = set_up_robot("ros2", RobotRequest(spec, MonotonicClock(), gate, (1,), options=robot))
    except UserError as error:
        return str(error)
    clutch = setup.make_takeover()._clutch
    answer = {"asks": setup.wait_for_person is not None, "grippers": clutch._absolute}
    answer["quaternions"] = [part.start for part in clutch._rotations]
    rclpy.shutdown()
    return answer

print(json.dumps([set_up(**options) for options in json.loads(sys.argv[1])]))
"""


@pytest.mark.slow
def test_a_real_robot_asks_unless_a_service_prepares_the_scene_and_must_fit_the_policy() -> None:
    environment = ros_or_skip()
    options = [{}, {"reset_service": "/reset"}, {"simulated": True}, {"cameras": ["top"]}, {"joints": ["pan"]}]
    options += [{"joints": list("xyzabcd"), "output": {"arm": {"type": "pose"}}}]
    real, prepared, simulated, blind, small, pose = said_by(SET_UP, json.dumps(options), environment=environment)
    answers: list[Any] = [answer["asks"] for answer in (real, prepared, simulated)]
    assert answers == [True, False, False]
    assert real["grippers"] == [1], "the policy's, whatever the gate's limits say"
    assert "needs a camera 'front', the robot has none" in blind
    assert "the robot has 1 numbers of state and 1 of action" in small
    assert (real["quaternions"], pose["quaternions"]) == ([], [3])
