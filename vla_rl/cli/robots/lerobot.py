"""``--robot lerobot``: any robot of lerobot, ``robot.type=so101_follower robot.port=/dev/ttyACM0`` as in its config.

``robot.teleop={type: gamepad}`` is the teleoperator of ``--takeover`` (``spacemouse`` too); ``robot.task=...`` the task
sentence. A leader arm has no switch: the space bar of this terminal takes over and gives back, and the keys s, f
and r end an attempt as a success, a failure, or one to be repeated.
"""

from dataclasses import replace
from typing import Any

from robot_io.gate import SafetyGate
from robot_io.lerobot_robot import (
    LerobotRobot,
    LerobotTakeover,
    cartesian_step,
    make_lerobot_robot,
    make_lerobot_teleoperator,
)
from robot_io.spacemouse import SpaceMouse
from robot_io.terminal_keys import TerminalKeys
from vla_rl.cli.robots import RobotRequest, RobotSetup
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Origin

_METRES_PER_TICK = 0.005


def set_up(request: RobotRequest) -> RobotSetup:
    """The robot whose config the options are."""
    if isinstance(request.clock, VirtualClock):
        raise UserError("a real robot does not wait for the policy: add --realtime")
    options = dict(request.options)
    teleop, task = options.pop("teleop", None), str(options.pop("task", ""))
    duration_s = float(options.pop("duration_s", 60.0))
    robot = make_lerobot_robot(options, request.policy.control_hz, task, duration_s=duration_s, clock=request.clock)
    gate = SafetyGate(
        replace(request.gate, delta_dims=request.gate.delta_dims or request.policy.delta_dims), robot.control_hz
    )
    make_takeover = (lambda: _takeover(teleop, robot, gate)) if teleop else None
    return RobotSetup(robot, gate, Origin.REAL, str(options["type"]), make_takeover)


def _takeover(options: dict[str, Any], robot: LerobotRobot, gate: SafetyGate) -> TakeoverSource:
    """The teleoperator, connected. Devices that give motions move a robot whose first commands are x, y, z."""
    device: Any = SpaceMouse() if options.get("type") == "spacemouse" else make_lerobot_teleoperator(options)
    device.connect()
    grippers = gate.config.discrete_dims
    step = cartesian_step(_METRES_PER_TICK, grippers[0] if grippers else None, gripper_per_tick=0.05)
    if hasattr(device, "get_teleop_events"):
        return LerobotTakeover(device, robot, None, step, grippers)
    keys = TerminalKeys(robot.end)
    keys.start()
    return LerobotTakeover(device, robot, lambda: keys.engaged, step, grippers)
