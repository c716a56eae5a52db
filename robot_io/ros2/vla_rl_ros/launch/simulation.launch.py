"""A simulated robot and a policy node that drives it: everything over topics, no hardware.

Example: ros2 launch vla_rl_ros simulation.launch.py limits:=configs/robots/tabletop.yaml
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare


def generate_launch_description() -> LaunchDescription:
    """Launch the task's environment as a robot with /clock, and the named policy or the scripted expert."""
    share = FindPackageShare("vla_rl_ros")
    arguments = [
        DeclareLaunchArgument("env", default_value="sim:vla_rl/PegInsert-v0", description="gymnasium id"),
        DeclareLaunchArgument("env_options", default_value='{"difficulty": 0.3}', description="JSON"),
        DeclareLaunchArgument("policy", default_value="expert:sim:vla_rl/PegInsert-v0?difficulty=0.3"),
        DeclareLaunchArgument("limits", description="YAML file of the safety gate's limits"),
        DeclareLaunchArgument("params", default_value=PathJoinSubstitution([share, "config", "simulation.yaml"])),
    ]
    robot = Node(
        package="vla_rl_ros",
        executable="env_robot",
        name="env_robot",
        parameters=[
            {name: ParameterValue(LaunchConfiguration(name), value_type=str) for name in ("env", "env_options")},
            {"lockstep": True, "operator": "/policy_node"},
        ],
        output="screen",
    )
    names = ("policy", "limits", "params")
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(PathJoinSubstitution([share, "launch", "policy.launch.py"])),
        launch_arguments=[*((name, LaunchConfiguration(name)) for name in names), ("use_sim_time", "true")],
    )
    return LaunchDescription([*arguments, robot, policy])
