"""``--robot sim``: the environment of the task, on the machine's clock or on a virtual one."""

import functools

from vla_rl.acting.robots import RobotRequest, RobotSetup
from vla_rl.acting.task import make_gate, make_supervisor, open_robot
from vla_rl.acting.task_config import TakeoverConfig, TaskConfig
from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import UserError
from vla_rl.core.types import Origin


def set_up(request: RobotRequest) -> RobotSetup:
    """Return the environment of the policy's training; ``robot.env=...``, ``robot.difficulty=...`` choose another."""
    spec = request.policy
    if spec is None:
        raise UserError("a simulated task is recorded by its name: vla-rl record TASK")
    defaults = {"env": spec.env_id.split()[0], "image_size": max(spec.image_size), **request.task}
    task = config_from_dict(TaskConfig, {**defaults, **request.options}, where="robot")
    takeover = config_from_dict(TakeoverConfig, dict(request.takeover), where="takeover")
    robot = open_robot(task, clock=request.clock)
    gate = make_gate(robot, request.gate)
    make_takeover = functools.partial(make_supervisor, task.env, robot.env, takeover)
    return RobotSetup(robot, gate, Origin.SIM, task.env, make_takeover, stop_input="a simulation")
