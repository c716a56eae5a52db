"""Options of the import: which topics of a bag become which parts of an episode."""

from dataclasses import dataclass, field

from vla_rl.core.errors import ConfigError


@dataclass(frozen=True)
class BagMapping:
    """Which topics of a bag become which parts of an episode.

    As YAML::

        cameras: {front: /camera/image_raw}
        state: [/joint_states, /gripper#data]
        joints: [shoulder, elbow]
        action: [/commands]
        intervention: /takeover
        success: /outcome
        episode: /recording
        control_hz: 20
        task: put the peg into the socket

    A topic is written ``/topic`` or ``/topic#field.of.message``. Without a field, a JointState gives its positions.
    Other messages give all their numbers, concatenated (a pose: x y z, then the quaternion x y z w).

    Messages that carry names (JointState, JointTrajectory, MultiDOFJointState ...) are matched by name, message for
    message, and the names become those of the episode's dimensions. Messages of one topic that carry different joints
    are merged: the result is as old as the oldest joint in it.

    Attributes:
        cameras: our camera name -> topic of sensor_msgs Image or CompressedImage.
        state: the topics that make up the state, one behind the other.
        action: the topics of the command that was sent, one behind the other.
        joints: order of the joints in messages that carry names; joints that are not in it are left out. Empty: the
            order of the first message of each topic.
        units: name of a dimension -> its unit (``rad``, ``deg``, ``m`` ...), since a bag declares none.
        intervention: topic of std_msgs Bool, true while a person decides; empty: no takeovers. This and the next
            two may be a threshold on a number: ``/coverage>=0.95``.
        success: topic of std_msgs Bool, the outcome: the last message of an episode; empty: not labeled.
        episode: topic of std_msgs Bool, true begins an episode and false ends it; empty: the bag is one episode.
        control_hz: ticks per second.
        max_gap_s: the farthest that a message may be from its tick, and a stamp behind an earlier one.
        header_stamps: header stamps are capture times; false: the times of recording are.
        image_size: height and width that pictures are scaled to; null: unchanged.
        task: the task sentence.
        env_id: of the episodes.
        episode_prefix: episodes are called PREFIX-000000 and so on; empty: the name of the bag.
        demonstrations: whether a demonstrator acted outside of takeovers (else a policy).
    """

    cameras: dict[str, str] = field(default_factory=dict)
    state: tuple[str, ...] = ("/joint_states",)
    action: tuple[str, ...] = ("/commands",)
    joints: tuple[str, ...] = ()
    units: dict[str, str] = field(default_factory=dict)
    intervention: str = ""
    success: str = ""
    episode: str = ""
    control_hz: float = 20.0
    max_gap_s: float = 0.1
    header_stamps: bool = True
    image_size: tuple[int, int] | None = None
    task: str = ""
    env_id: str = "ros2"
    episode_prefix: str = ""
    demonstrations: bool = True

    def __post_init__(self) -> None:
        if not self.control_hz > 0 or not self.max_gap_s > 0:
            raise ConfigError(f"control_hz is {self.control_hz} and max_gap_s {self.max_gap_s}; both must be positive")
        if not self.state or not self.action:
            raise ConfigError("state and action need at least one topic each")
