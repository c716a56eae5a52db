"""An arm behind ros2_control, its controllers, and the policy node that drives it.

Example: ros2 launch ros2_control_arm arm.launch.py policy:=/runs/peg
"""

from pathlib import Path

from ament_index_python.packages import get_package_share_directory
from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, IncludeLaunchDescription, RegisterEventHandler
from launch.event_handlers import OnProcessExit
from launch.launch_description_sources import PythonLaunchDescriptionSource
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import Node
from launch_ros.substitutions import FindPackageShare


def generate_launch_description() -> LaunchDescription:
    """Robot and controllers first: the policy node is started when they are active."""
    share = Path(get_package_share_directory("ros2_control_arm"))
    controllers = share / "config" / "controllers.yaml"
    arguments = [
        DeclareLaunchArgument("policy", description="folder of a run, of a policy version, or of a deployment"),
        DeclareLaunchArgument("arm_controller", default_value="arm_controller", description="which one drives the arm"),
        DeclareLaunchArgument("params", default_value=str(share / "config" / "policy.yaml")),
        DeclareLaunchArgument("limits", default_value=str(share / "config" / "limits.yaml")),
    ]
    description = {"robot_description": (share / "urdf" / "arm.urdf").read_text()}
    robot = Node(package="robot_state_publisher", executable="robot_state_publisher", parameters=[description])
    manager = Node(package="controller_manager", executable="ros2_control_node", parameters=[str(controllers)])
    spawner = Node(
        package="controller_manager",
        executable="spawner",
        arguments=["joint_state_broadcaster", LaunchConfiguration("arm_controller"), "gripper_controller"],
    )
    policy = IncludeLaunchDescription(
        PythonLaunchDescriptionSource(
            PathJoinSubstitution([FindPackageShare("vla_rl_ros"), "launch", "policy.launch.py"])
        ),
        launch_arguments=[(name, LaunchConfiguration(name)) for name in ("policy", "params", "limits")],
    )
    started = RegisterEventHandler(OnProcessExit(target_action=spawner, on_exit=[policy]))
    return LaunchDescription([*arguments, robot, manager, spawner, started])
