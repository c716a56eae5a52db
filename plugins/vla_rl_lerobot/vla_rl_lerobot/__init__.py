"""``--robot lerobot``: any robot of lerobot, ``robot.type=so101_follower robot.port=/dev/ttyACM0`` as in its config.

``robot.teleop={type: so101_leader, port: /dev/ttyACM1}`` is the teleoperator of ``--takeover`` and ``vla-rl record``;
``robot.task=...`` the task sentence. A leader arm has no switch: the space bar of this terminal takes over and gives
back. The keys s, f and r end an attempt as a success, a failure, or one to be repeated. Devices that give motions
(``spacemouse``, ``gamepad``, ``keyboard_ee``) move robots whose first three actions are the tool's x, y, z, such as
``ee.x``.

``robot.urdf=FILE robot.urdf_units=degrees`` holds the limits to those of the arm's URDF and gives the gate kinematics.
An action ``elbow.pos`` is the joint ``elbow``; ``robot.urdf_joints={gripper.pos: ""}`` says which is another, or none.

The arm stays under torque when the program ends; ``robot.disable_torque_on_disconnect=true`` lets it fall.
"""

import math
import sys
from collections.abc import Mapping
from typing import Any

from robot_io.description import Description, make_gate
from robot_io.limits import RobotLimits
from robot_io.terminal_keys import TerminalKeys
from vla_rl.acting.robots import RobotRequest, RobotSetup, check_fits, check_rate
from vla_rl.core.clock import VirtualClock
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.robot_matching import declared
from vla_rl.core.types import Origin
from vla_rl.data.episode_header import check_camera_names
from vla_rl_lerobot.devices import SpaceMouseTeleoperator, make_device
from vla_rl_lerobot.robot import LerobotRobot, make_lerobot_robot
from vla_rl_lerobot.takeover import LerobotTakeover, cartesian_step

_METRES_PER_TICK = 0.005
_UNITS = {"radians": ("rad", 1.0), "degrees": ("deg", math.pi / 180)}
_RECORDED_HZ = 30.0  # where no policy says at which rate it was trained


def set_up(request: RobotRequest) -> RobotSetup:
    """Return the robot whose config the options are."""
    if isinstance(request.clock, VirtualClock):
        raise UserError("a real robot does not wait for the policy: add --realtime")
    options = dict(request.options)
    teleop, task = options.pop("teleop", None), str(options.pop("task", ""))
    duration_s = float(options.pop("duration_s", 60.0))
    policy = request.policy
    control_hz = float(options.pop("control_hz", _RECORDED_HZ if policy is None else policy.control_hz))
    any_rate = bool(options.pop("any_rate", False))
    if policy is not None:
        check_rate(policy, control_hz, any_rate)
    urdf, urdf_units, urdf_joints = (options.pop(name, None) for name in ("urdf", "urdf_units", "urdf_joints"))
    image_size = None if policy is None else policy.image_size
    steps = request.gate.delta_dims
    robot = make_lerobot_robot(
        options, control_hz, task, image_size=image_size, duration_s=duration_s, clock=request.clock, step_dims=steps
    )
    check_camera_names(robot.cameras, "robot.cameras={front: {type: ...}}")
    if policy is not None:
        check_fits(policy, robot.cameras, len(robot.state_names), len(robot.action_names), declared(robot))
    description = None if urdf is None else _description(str(urdf), urdf_units, urdf_joints, robot.action_dimensions)
    limits = RobotLimits.of(request.gate)
    gate = make_gate(limits, robot.control_hz, 1, robot.action_names, description)
    keys = TerminalKeys(robot.end)
    grippers = request.grippers_of(robot.action_names)
    make_takeover = (lambda: _takeover(teleop, robot, grippers, limits, keys)) if teleop else None
    stop_input = "Ctrl-C at this terminal brakes it within its limits" if sys.stdin.isatty() else ""
    name, wait = str(options["type"]), keys.wait_for_enter
    return RobotSetup(robot, gate, Origin.REAL, name, make_takeover, wait, stop_input, description)


def _description(urdf: str, units: object, named: Mapping[str, str] | None, commands: Dimensions) -> Description:
    """Return the arm's URDF for the actions of its driver.

    Raises:
        UserError: If the driver declares no units or others, or there is no action that is named.
    """
    actions, (unit_name, size) = commands.names, _UNITS.get(str(units), ("", 1.0))
    if units not in _UNITS:
        raise UserError(
            f"robot.urdf_units is {units!r}; say degrees or radians: lerobot does not say what a driver's numbers are"
        )
    for action in named or {}:
        if action not in actions:
            raise UserError(f"robot.urdf_joints names {action!r}.{did_you_mean(action, actions)}")
    joints = [(named or {}).get(action, action.rpartition(".")[0]) for action in actions]
    for action, joint, unit in zip(actions, joints, commands.unit_of_each(), strict=True):
        if joint and unit not in ("", unit_name):
            raise UserError(
                f"robot.urdf_units is {units}, and the driver commands {action} in {unit}. Set robot.use_degrees=true "
                f'and robot.urdf_units=degrees, or leave the action out: robot.urdf_joints={{{action}: ""}}'
            )
    return Description(urdf, joints, [size] * len(joints))


def _takeover(
    options: dict[str, Any],
    robot: LerobotRobot,
    grippers: tuple[int, ...],
    limits: RobotLimits,
    keys: TerminalKeys,
) -> TakeoverSource:
    """Return the teleoperator, connected; the robot is already."""
    device = SpaceMouseTeleoperator() if options.get("type") == "spacemouse" else make_device("teleoperator", options)
    has_events = hasattr(device, "get_teleop_events")
    step = None
    if robot.moves_tool:
        step = cartesian_step(_METRES_PER_TICK, grippers[0] if grippers else None, gripper_per_tick=0.05)
    engaged, steps = None if has_events else lambda: keys.engaged, limits.delta_dims
    takeover = LerobotTakeover(device, robot, engaged, step, grippers, steps, limits.quaternions)
    robot.take_ports(device)
    device.connect()
    if not has_events:
        keys.start()
    return takeover
