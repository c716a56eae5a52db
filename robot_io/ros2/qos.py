"""Quality of service: sensors may lose a message and never wait for one; commands and labels must arrive."""

from typing import Any


def sensors() -> Any:
    """Best effort, the newest few: a late picture is worth less than the next one."""
    return _profile(depth=5, reliable=False)


def joints() -> Any:
    """Best effort, and deep. Joints at 1 kHz continue while a picture is decoded, and a fast driver must not push out
    the readings of a slow one.
    """
    return _profile(depth=100, reliable=False)


def commands() -> Any:
    """Reliable, only the newest: what ros2_control's controllers subscribe with."""
    return _profile(depth=1)


def stops() -> Any:
    """Reliable, and none is overtaken: a press and its release in one turn are two messages."""
    return _profile(depth=100)


def clock() -> Any:
    """Reliable, so that simulated time that waits for its listeners cannot lose one."""
    return _profile(depth=10)


def latched() -> Any:
    """Reliable, and later subscribers get the last message: a description, a state that seldom changes."""
    from rclpy.qos import QoSDurabilityPolicy

    return _profile(depth=1, durability=QoSDurabilityPolicy.TRANSIENT_LOCAL)


def _profile(depth: int, reliable: bool = True, **policies: Any) -> Any:
    from rclpy.qos import QoSProfile, QoSReliabilityPolicy

    reliability = QoSReliabilityPolicy.RELIABLE if reliable else QoSReliabilityPolicy.BEST_EFFORT
    return QoSProfile(depth=depth, reliability=reliability, **policies)
