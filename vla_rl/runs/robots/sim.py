"""``--robot sim``: the environment of the task, on the machine's clock or on a virtual one."""

import functools

from robot_io.env_robot import EnvRobot
from sim.correctors import Corrector
from vla_rl.core.config import config_from_dict
from vla_rl.core.types import Origin
from vla_rl.runs.config import TaskConfig
from vla_rl.runs.robots import RobotRequest, RobotSetup
from vla_rl.runs.simulator import make_env, make_gate


def set_up(request: RobotRequest) -> RobotSetup:
    """The environment that the policy was trained on; ``robot.env=...``, ``robot.difficulty=...`` choose another."""
    spec = request.policy
    defaults = {"env": spec.env_id.split()[0], "image_size": spec.image_size[0], **request.task}
    task = config_from_dict(TaskConfig, {**defaults, **request.options}, where="robot")
    env = make_env(task)
    robot, gate = EnvRobot(env, request.clock), make_gate(env, request.gate)
    return RobotSetup(
        robot, gate, Origin.SIM, task.env, make_takeover=functools.partial(Corrector, env), stop_input="a simulation"
    )
