"""Publishers of the joint states. Two drivers may publish different joints. If two publish the same joint, as a
simulator that was left running does, its readings jump between two arms.

A message does not name its publisher. But a driver names the same joints in every message. There must be as many kinds
of message as publishers, and no two kinds may share a joint. A driver that was killed and is back has two publishers
until the middleware gives up the dead one. Until then it looks like a duplicate.
"""

import itertools
from collections.abc import Sequence
from typing import Any

_PUBLISHES_WITHIN_S = 1.0


class JointPublishers:
    """Finds out whether two publishers share a joint of the robot. Called by the ROS thread only."""

    def __init__(self, joints: Sequence[str], topic: str) -> None:
        self._joints, self._topic = frozenset(joints), topic
        self._publishers: set[bytes] = set()
        self._since_s = 0.0
        self._messages: set[tuple[frozenset[str], bool]] = set()  # names, and whether positions came with them

    def add(self, message: Any) -> None:
        """Take a sensor_msgs/JointState."""
        if len(self._publishers) > 1:
            self._messages.add((frozenset(message.name), bool(message.position)))

    def objection(self, infos: Sequence[Any], now_s: float) -> str:
        """Return what is wrong with the publishers, as a sentence; empty if nothing is.

        ``infos`` is the result of `rclpy.node.Node.get_publishers_info_by_topic`, ``now_s`` a time of any steady clock.
        """
        publishers = {bytes(info.endpoint_gid) for info in infos}
        if publishers != self._publishers:  # all have to publish anew
            self._publishers, self._since_s = publishers, now_s
            self._messages.clear()
        if len(publishers) < 2:
            return ""
        names = sorted(f"{info.node_namespace.rstrip('/')}/{info.node_name}" for info in infos)
        several = f"{len(publishers)} publish {self._topic} ({', '.join(names)})"
        positions = [joints & self._joints for joints, have_positions in self._messages if have_positions]
        for one, another in itertools.combinations(positions, 2):
            if twice := sorted(one & another):
                return f"{several}, and two of them publish joint {twice[0]}: end all but its driver"
        if len(self._messages) < len(publishers) and now_s - self._since_s > _PUBLISHES_WITHIN_S:
            return (
                f"{several}, and do not publish different joints. End all programs that are no driver of this robot: a "
                "simulator, joint_state_publisher_gui, ros2 bag play. A killed one disappears after some 20 s"
            )
        return ""
