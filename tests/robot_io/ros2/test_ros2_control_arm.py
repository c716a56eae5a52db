"""The example of a ros2_control robot: its files name the same robot, its limits lie within those of its description.

That the real controller manager takes description and controllers is tested in `test_jtc.py`.
"""

import os
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import yaml

from robot_io.gate import SafetyGate
from robot_io.limits import RobotLimits
from robot_io.ros2.outputs import KINDS, check_outputs
from robot_io.ros2.parameters import Settings
from tests.fakes.ros2_control import ARM
from tests.fakes.ros2_scripts import ros_or_skip, said_by
from vla_rl.acting.robots.ros2 import settings_from
from vla_rl.core.config import load_config

DESCRIPTION = ElementTree.parse(ARM / "urdf" / "arm.urdf").getroot()
CONTROLLERS = yaml.safe_load((ARM / "config" / "controllers.yaml").read_text())
LIMITS = load_config(RobotLimits, ARM / "config" / "limits.yaml")


def parameters(controller: str) -> dict[str, Any]:
    found: dict[str, Any] = CONTROLLERS[controller]["ros__parameters"]
    return found


def node_settings() -> Settings:
    (content,) = yaml.safe_load((ARM / "config" / "policy.yaml").read_text()).values()
    return settings_from(content["ros__parameters"])


def test_every_file_names_the_same_joints() -> None:
    moving = {joint.get("name"): joint for joint in DESCRIPTION.findall("joint") if joint.get("type") != "fixed"}
    driven = {joint.get("name"): joint for joint in DESCRIPTION.findall("ros2_control/joint")}
    settings = node_settings()
    assert set(settings.joints) == set(moving) == set(driven)
    assert DESCRIPTION.findtext("ros2_control/hardware/plugin") == "mock_components/GenericSystem"
    types = {name: spec["type"] for name, spec in parameters("controller_manager").items() if isinstance(spec, dict)}
    arm, gripper = settings.outputs
    for name in ("arm_controller", "arm_position_controller", "arm_velocity_controller"):
        assert tuple(parameters(name)["joints"]) == arm.joints, name
    assert tuple(parameters("gripper_controller")["joints"]) == gripper.joints
    for name, kind in types.items():
        interfaces = parameters(name).get("command_interfaces", []) if name in CONTROLLERS else []
        interfaces += ["velocity"] if kind.startswith("velocity") else []
        for joint in parameters(name)["joints"] if name in CONTROLLERS else []:
            offered = {interface.get("name") for interface in driven[joint].findall("command_interface")}
            assert set(interfaces) <= offered, (name, joint)


def test_the_outputs_reach_controllers_of_their_kind() -> None:
    types = {name: spec["type"] for name, spec in parameters("controller_manager").items() if isinstance(spec, dict)}
    takes = {"trajectory": "joint_trajectory_controller/", "array": "position_controllers/"}
    for output in node_settings().outputs:
        controller, _, topic = output.topic.partition("/")
        assert types[controller].startswith(takes[output.type])
        assert topic == KINDS[output.type].topic.partition("/")[2]


def test_the_limits_lie_within_the_description_and_fit_the_node() -> None:
    settings = node_settings()
    bounds = {joint.get("name"): joint.find("limit") for joint in DESCRIPTION.findall("joint")}
    for dim, name in enumerate(settings.command_joints):
        bound = bounds[name]
        assert bound is not None
        assert (
            float(bound.get("lower", "nan")) <= LIMITS.low[dim] < LIMITS.high[dim] <= float(bound.get("upper", "nan"))
        )
        assert LIMITS.max_velocity[dim] <= float(bound.get("velocity", "nan"))
        start = DESCRIPTION.findtext(f"ros2_control/joint[@name='{name}']/state_interface/param")
        assert start is not None
        assert LIMITS.low[dim] <= float(start) <= LIMITS.high[dim], "the robot wakes up inside its limits"
    check_outputs(settings.outputs, LIMITS.delta_dims)
    SafetyGate(LIMITS, 20.0, settings["commands_per_tick"], names=settings.command_joints)


def test_the_controller_holds_after_the_last_point_and_before_the_driver_would() -> None:
    arm, settings = parameters("arm_controller"), node_settings()
    assert arm["interpolate_from_desired_state"] is True
    assert arm["cmd_timeout"] > arm["constraints"]["goal_time"], "or the controller ignores it"
    rate_hz = parameters("controller_manager")["update_rate"]
    assert rate_hz >= 2 * 20.0 * settings["commands_per_tick"], "several cycles for every command"


LAUNCH = """
import importlib.util, json, sys
from launch import LaunchContext
from launch.utilities import perform_substitutions
spec = importlib.util.spec_from_file_location("arm", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
description = module.generate_launch_description()
context = LaunchContext()
named = {}
for entity in description.entities:
    if hasattr(entity, "default_value"):
        default = entity.default_value
        named[entity.name] = perform_substitutions(context, default) if default else None
nodes = [[e.node_package, e.node_executable] for e in description.entities if hasattr(e, "node_package")]
print(json.dumps([named, nodes]))
"""


def test_the_launch_file_starts_robot_and_controllers(tmp_path: Path) -> None:
    environment = ros_or_skip()
    (tmp_path / "share" / "ament_index" / "resource_index" / "packages").mkdir(parents=True)
    (tmp_path / "share" / "ament_index" / "resource_index" / "packages" / "ros2_control_arm").touch()
    (tmp_path / "share" / "ros2_control_arm").symlink_to(ARM)
    environment["AMENT_PREFIX_PATH"] = f"{tmp_path}{os.pathsep}{environment.get('AMENT_PREFIX_PATH', '')}"
    named, nodes = said_by(LAUNCH, str(ARM / "launch" / "arm.launch.py"), environment=environment)
    assert named["policy"] is None
    assert named["arm_controller"] == "arm_controller"
    assert all(Path(named[name]).is_file() for name in ("params", "limits"))
    packages = [package for package, _ in nodes]
    assert packages == ["robot_state_publisher", "controller_manager", "controller_manager"]
    needed = {element.text for element in ElementTree.parse(ARM / "package.xml").getroot().iter("exec_depend")}
    assert {*packages, "vla_rl_ros"} <= needed


def test_the_package_installs_every_file() -> None:
    setup = (ARM / "setup.py").read_text()
    folders = {path.name for path in ARM.iterdir() if path.is_dir() and path.name not in ("resource", "__pycache__")}
    assert all(f'"{folder}"' in setup for folder in folders)
    kinds = {
        spec["type"].partition("/")[0] for spec in parameters("controller_manager").values() if isinstance(spec, dict)
    }
    needed = {element.text for element in ElementTree.parse(ARM / "package.xml").getroot().iter("exec_depend")}
    assert kinds <= needed
