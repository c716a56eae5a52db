"""The policy node for one robot; another namespace is another robot.

Example: ros2 launch vla_rl_ros policy.launch.py namespace:=left_robot params:=/robots/left.yaml policy:=/runs/peg
"""

from launch import LaunchDescription
from launch.actions import DeclareLaunchArgument, EmitEvent, RegisterEventHandler
from launch.conditions import IfCondition
from launch.events import matches_action
from launch.substitutions import LaunchConfiguration, PathJoinSubstitution
from launch_ros.actions import LifecycleNode
from launch_ros.event_handlers import OnStateTransition
from launch_ros.events.lifecycle import ChangeState
from launch_ros.parameter_descriptions import ParameterValue
from launch_ros.substitutions import FindPackageShare
from lifecycle_msgs.msg import Transition


def generate_launch_description() -> LaunchDescription:
    """Launch the node, configured and activated unless ``autostart:=false``."""
    example = PathJoinSubstitution([FindPackageShare("vla_rl_ros"), "config", "example.yaml"])
    arguments = [
        DeclareLaunchArgument("namespace", default_value="", description="of this robot"),
        DeclareLaunchArgument("params", default_value=example, description="YAML file of the node's parameters"),
        DeclareLaunchArgument("policy", description="folder of a run, of a policy version, or of a deployment"),
        DeclareLaunchArgument("limits", description="YAML file of the safety gate's limits"),
        DeclareLaunchArgument("use_sim_time", default_value="false", description="live on /clock"),
        DeclareLaunchArgument("autostart", default_value="true", description="configure and activate the node"),
    ]
    named = {name: ParameterValue(LaunchConfiguration(name), value_type=str) for name in ("policy", "limits")}
    node = LifecycleNode(
        package="vla_rl_ros",
        executable="policy_node",
        name="policy_node",
        namespace=LaunchConfiguration("namespace"),
        parameters=[LaunchConfiguration("params"), named, {"use_sim_time": LaunchConfiguration("use_sim_time")}],
        output="screen",
    )
    autostart = IfCondition(LaunchConfiguration("autostart"))
    configure = _transition(node, Transition.TRANSITION_CONFIGURE, autostart)
    activate = RegisterEventHandler(
        OnStateTransition(
            target_lifecycle_node=node,
            start_state="configuring",
            goal_state="inactive",
            entities=[_transition(node, Transition.TRANSITION_ACTIVATE, autostart)],
        )
    )
    return LaunchDescription([*arguments, node, activate, configure])


def _transition(node: LifecycleNode, transition: int, condition: IfCondition) -> EmitEvent:
    event = ChangeState(lifecycle_node_matcher=matches_action(node), transition_id=transition)
    return EmitEvent(event=event, condition=condition)
