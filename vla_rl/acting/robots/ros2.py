"""``--robot ros2``: a robot of topics, or a simulated one (``ros2 run vla_rl_ros env_robot``). ROS 2 must be sourced.

``robot.joints=[...] robot.cameras=[front]`` and so on are the parameters of the policy node, see docs/ros2.md;
``robot.use_sim_time=true`` lives on /clock. A person labels an attempt through ``/vla_rl_rollout/success``.
"""

import atexit
import functools
import threading
from collections.abc import Mapping
from typing import Any

from robot_io.description import Description, make_gate
from robot_io.limits import RobotLimits
from robot_io.ros2.operator import OperatorRequests
from robot_io.ros2.outputs import check_outputs, with_quaternions
from robot_io.ros2.parameters import Settings, all_parameters
from robot_io.ros2.robot import Interface, Ros2Robot
from robot_io.terminal_keys import wait_for_enter
from vla_rl.acting.robots import RobotRequest, RobotSetup, check_fits, check_rate
from vla_rl.core.clock import VirtualClock
from vla_rl.core.config import flatten
from vla_rl.core.errors import ConfigError, UserError, did_you_mean
from vla_rl.core.types import Origin


def set_up(request: RobotRequest) -> RobotSetup:
    """Return the robot behind the topics that the options name."""
    if isinstance(request.clock, VirtualClock):
        raise UserError("a robot of topics does not wait for the policy: add --realtime")
    try:
        import rclpy
        from rclpy.signals import SignalHandlerOptions

        from robot_io.ros2.spinning import spin
        from robot_io.ros2.wiring import Wiring, add_label_services, add_trigger, read_description
    except ImportError as error:
        raise UserError(f"there is no ROS 2 in this terminal ({error}); source it first") from error
    options, spec = dict(request.options), request.policy
    if spec is None:
        raise UserError("a robot of topics is recorded as a bag (ros2 bag record), which vla-rl finetune reads")
    sim_time = bool(options.pop("use_sim_time", False))
    settings = settings_from(options)
    cameras = [camera.name for camera in settings.cameras]
    check_fits(spec, cameras, len(settings.joints), len(settings.command_joints))
    control_hz = settings["control_hz"] or spec.control_hz
    check_rate(spec, control_hz, settings["any_rate"])
    check_outputs(settings.outputs, request.gate.delta_dims)
    if not rclpy.ok():
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("vla_rl_rollout", parameter_overrides=[rclpy.Parameter("use_sim_time", value=sim_time)])
    settings.description, joints = read_description(node, settings), settings.command_joints
    check_fits(spec, cameras, len(settings.joints), len(joints), settings.dimensions)
    description = Description(settings.description, joints) if settings.description else None
    limits = with_quaternions(RobotLimits.of(request.gate), settings.outputs)
    gate = make_gate(limits, control_hz, settings["commands_per_tick"], joints, description)
    operator = OperatorRequests()
    interface = Interface(
        control_hz=control_hz,
        image_size=spec.image_size,
        gripper_dims=request.grippers_of(settings.command_joints),
        silent_after_ms=gate.config.max_observation_age_ms,
        step_dims=gate.config.delta_dims,
        quaternions=limits.quaternions,
    )
    wiring = Wiring(node, settings, interface, operator)
    labeling = (functools.partial(act, operator, wiring.robot) for act in (_label, _discard))
    add_label_services(node, *labeling)
    add_trigger(node, "estop", functools.partial(_estop, wiring))
    spinning = threading.Thread(target=spin, args=(node,), name="ros", daemon=True)
    spinning.start()
    atexit.register(_end_ros, spinning)
    name, simulated = settings["robot_name"], settings["simulated"]
    origin = Origin.SIM if simulated else Origin.REAL
    wait_for_person = None if simulated or settings["reset_service"] else wait_for_enter
    wiring.interlocks.check_alone()
    return RobotSetup(
        wiring.robot,
        gate,
        origin,
        name,
        lambda: wiring.takeover,
        wait_for_person,
        wiring.interlocks.stop_input(),
        description,
        wiring.robot.subscribers,
    )


def _end_ros(spinning: threading.Thread) -> None:
    """Before the interpreter ends: it must not be taken from under ROS' thread."""
    import rclpy

    rclpy.try_shutdown()
    spinning.join()


def settings_from(options: Mapping[str, Any]) -> Settings:
    """Return the node's settings from nested options; ConfigError for one that is unknown or does not fit."""
    given = flatten(options)
    cameras, outputs = given.get("cameras", []), given.get("outputs", ["arm"])
    values = {parameter.name: parameter.default for parameter in all_parameters(cameras, outputs)}
    for name, value in given.items():
        if name not in values:
            raise ConfigError(f"robot: unknown option {name!r}.{did_you_mean(name, values)}")
        values[name] = float(value) if isinstance(values[name], float) else value
    return Settings({**values, "policy": "the verb's"})


def _estop(wiring: Any) -> str:
    wiring.interlocks.press()
    return "stopped; the program has to be started again"


def _label(operator: OperatorRequests, robot: Ros2Robot, success: bool) -> str:
    _check_acting(robot)
    operator.label(success)
    return "labeled"


def _discard(operator: OperatorRequests, robot: Ros2Robot) -> str:
    _check_acting(robot)
    operator.discard()
    return "the attempt ends"


def _check_acting(robot: Ros2Robot) -> None:
    if not robot.acting:
        raise UserError("no attempt is running")
