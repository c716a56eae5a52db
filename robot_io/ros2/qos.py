"""Quality of service: sensors may lose a message and never wait for one; commands and labels must arrive."""

from typing import Any


def sensors() -> Any:
    """Best effort, the newest few: a late picture is worth less than the next one."""
    from rclpy.qos import QoSProfile, QoSReliabilityPolicy

    return QoSProfile(depth=5, reliability=QoSReliabilityPolicy.BEST_EFFORT)


def joints() -> Any:
    """Best effort, and deep: while a picture is decoded joints at 1 kHz go on, and a fast driver must not push the
    readings of a slow one out.
    """
    from rclpy.qos import QoSProfile, QoSReliabilityPolicy

    return QoSProfile(depth=100, reliability=QoSReliabilityPolicy.BEST_EFFORT)


def commands() -> Any:
    """Reliable, only the newest: what ros2_control's controllers subscribe with."""
    from rclpy.qos import QoSProfile, QoSReliabilityPolicy

    return QoSProfile(depth=1, reliability=QoSReliabilityPolicy.RELIABLE)


def stops() -> Any:
    """Reliable, and none is overtaken: a press and its release in one turn are two messages."""
    from rclpy.qos import QoSProfile, QoSReliabilityPolicy

    return QoSProfile(depth=100, reliability=QoSReliabilityPolicy.RELIABLE)


def clock() -> Any:
    """Reliable, so that simulated time that waits for its listeners cannot lose one."""
    from rclpy.qos import QoSProfile, QoSReliabilityPolicy

    return QoSProfile(depth=10, reliability=QoSReliabilityPolicy.RELIABLE)


def latched() -> Any:
    """Reliable, and the last one comes to whoever subscribes later: a description, a state that seldom changes."""
    from rclpy.qos import QoSDurabilityPolicy, QoSProfile, QoSReliabilityPolicy

    durability, reliability = QoSDurabilityPolicy.TRANSIENT_LOCAL, QoSReliabilityPolicy.RELIABLE
    return QoSProfile(depth=1, reliability=reliability, durability=durability)
