"""Record what a policy node hears and says as a bag (MCAP), for `vla-rl finetune`, for Foxglove and to look at faults.

Example: ros2 launch vla_rl_ros record.launch.py params:=/robots/left.yaml out:=/bags/monday namespace:=left_robot
"""

from pathlib import Path
from typing import Any

import yaml
from launch import LaunchContext, LaunchDescription
from launch.actions import DeclareLaunchArgument, ExecuteProcess, OpaqueFunction
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.substitutions import FindPackageShare

_INPUTS = ("estop_topic", "deadman_topic", "heartbeat_topic")
_ALWAYS = ("joint_states", "policy_node/takeover_command", "robot_description", "/diagnostics", "/clock", "/rosout")


def topics_of(params: Path, namespace: str) -> list[str]:
    """Return the topics of a node with that file of parameters, with the namespace before those that are relative."""
    (content,) = yaml.safe_load(params.read_text()).values()
    values: dict[str, Any] = content["ros__parameters"]
    cameras, outputs = values.get("camera", {}), values.get("output", {})
    found = [cameras.get(name, {}).get("topic", f"{name}/image_raw") for name in values.get("cameras", [])]
    outputs = {name: outputs.get(name, {}) for name in values.get("outputs", ["arm"])}
    found += [output.get("topic", f"{name}_controller/joint_trajectory") for name, output in outputs.items()]
    found += [values[name] for name in _INPUTS if values.get(name)]
    prefix = f"/{namespace.strip('/')}" if namespace.strip("/") else ""
    return [topic if topic.startswith("/") else f"{prefix}/{topic}" for topic in (*found, *_ALWAYS)]


def generate_launch_description() -> LaunchDescription:
    """``ros2 bag record`` of these topics, until Ctrl-C."""
    example = PathJoinSubstitution([FindPackageShare("vla_rl_ros"), "config", "example.yaml"])
    arguments = [
        DeclareLaunchArgument("params", default_value=example, description="YAML file of the node's parameters"),
        DeclareLaunchArgument("namespace", default_value="", description="of the robot"),
        DeclareLaunchArgument("out", description="folder of the bag; it must not exist"),
    ]
    return LaunchDescription([*arguments, OpaqueFunction(function=_record)])


def _record(context: LaunchContext) -> list[ExecuteProcess]:
    params, namespace, out = (LaunchConfiguration(name).perform(context) for name in ("params", "namespace", "out"))
    topics = topics_of(Path(params).expanduser(), namespace)
    return [ExecuteProcess(cmd=["ros2", "bag", "record", "-s", "mcap", "-o", out, *topics], output="screen")]
