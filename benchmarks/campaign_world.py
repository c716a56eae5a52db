"""The robot of the campaign over topics, in lockstep with the policy node, and the observer of the commands.

Its time goes on when a command has come, or when the node says that it has stopped. So all times are the robot's. A
busy machine slows the world and causes no fault.
"""

import contextlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.campaign_wave import CAMERA, HORIZON, HZ, JOINTS, WAVE, WHITE
from robot_io.disturbances import Disturbance
from robot_io.faults import Sample, Settings
from robot_io.joint_monitor import JointMonitorConfig
from robot_io.limits import RobotLimits
from robot_io.ros2 import messages, qos
from tests.fakes.ros2_rig import Rig
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array

LIMITS = RobotLimits(
    low=(-1.0,) * len(JOINTS),
    high=(1.0,) * len(JOINTS),
    max_velocity=(2.0,) * len(JOINTS),
    max_observation_age_ms=250.0,
    joint_monitor=JointMonitorConfig(max_effort=(5.0,) * len(JOINTS)),
)
HOLD_TICKS = 20
# What counts in wall time, on a machine that may be busy.
SETTINGS = Settings(LIMITS, HZ, HORIZON, HOLD_TICKS, clock_timeout_s=2.0, deadman_timeout_ms=1000.0)
CONTROLLER = "arm_controller"
NAMESPACE = "/campaign"
PERIOD_NS = round(1e9 / HZ)
_LAG = 0.6  # of the way to its command a joint goes in a tick
_SHOT = 48  # pixels of the camera, each way
TICK_S = 0.004  # wall time of a tick at least, so that a plan takes a few of them at most
_FREE_TICK_S = 0.015  # without a wait for the node, it has to keep up
_HELD_EVERY_S = 0.05
_EVERY_COMMAND = 1000  # depth of the observer's queue
SILENT_S = 20.0  # wall time after which the node is taken for dead


class World:
    """The robot, its emergency stop, dead-man and controller manager, and the observer of its commands.

    Joints come in two messages, of two drivers.
    """

    def __init__(self, rig: Rig) -> None:
        import rclpy
        from controller_manager_msgs.msg import ControllerManagerActivity
        from rosgraph_msgs.msg import Clock
        from sensor_msgs.msg import Image, JointState
        from std_msgs.msg import Bool
        from trajectory_msgs.msg import JointTrajectory

        self._rig, self._random = rig, random.Random(0)
        self._node = rclpy.create_node("robot", namespace=NAMESPACE)
        self._kinds = Clock, Image, JointState, Bool
        self._clock = self._node.create_publisher(Clock, "/clock", qos.clock())
        self._joints = self._node.create_publisher(JointState, "joint_states", qos.sensors())
        self._camera = self._node.create_publisher(Image, f"{CAMERA}/image_raw", qos.sensors())
        self.press_publisher()
        self._activity = ControllerManagerActivity
        self.begin_manager()
        self._deadman = self._node.create_publisher(Bool, "deadman", qos.commands())
        self._held: bool | None = True
        self._hand = rig.node.create_timer(_HELD_EVERY_S, self._hold)
        self._noise = np.random.default_rng(0)
        self._changed = threading.Condition()
        self._now_ns = 1_000_000_000
        self._position = np.zeros(len(JOINTS), np.float32)
        self._command: Any = None
        self._seen = 0
        self.samples: list[Sample] = []
        self.disturbance = Disturbance(self._random, LIMITS)
        self.policy_raves = False
        self.tick_s = TICK_S
        rig.node.create_subscription(
            JointTrajectory, "arm_controller/joint_trajectory", self._on_command, _EVERY_COMMAND
        )

    @property
    def now_ns(self) -> int:
        """The robot's time."""
        return self._now_ns

    @property
    def position(self) -> Float32Array:
        """Where the joints really are, float32 [A]."""
        return self._position.copy()

    def press_publisher(self) -> None:
        """Publish the emergency stop, released."""
        self._estop = self._node.create_publisher(self._kinds[3], "estop", qos.latched())
        self.press(False)

    def no_press_publisher(self) -> None:
        """Remove the publisher of the emergency stop."""
        self._node.destroy_publisher(self._estop)

    def press(self, pressed: bool) -> None:
        """Press the emergency stop, or release it."""
        self._estop.publish(self._kinds[3](data=pressed))

    def hold_deadman(self, held: bool | None) -> None:
        """Hold the dead-man from now on, or let it go; None: it says nothing."""
        self._held = held
        self._hold()

    def _hold(self) -> None:
        if (held := self._held) is not None:
            self._deadman.publish(self._kinds[3](data=held))

    def begin_manager(self) -> None:
        """The controller manager is there, and the controller active."""
        self._manager = self._node.create_publisher(self._activity, "/controller_manager/activity", qos.latched())
        self.tell_controllers("active")

    def end_manager(self) -> None:
        """The controller manager is gone."""
        self._node.destroy_publisher(self._manager)

    def tell_controllers(self, label: str) -> None:
        """The state of the controller."""
        from controller_manager_msgs.msg import NamedLifecycleState
        from lifecycle_msgs.msg import State

        state = NamedLifecycleState(name=CONTROLLER, state=State(label=label))
        self._manager.publish(self._activity(controllers=[state]))

    @contextlib.contextmanager
    def moved_to(self, position: float) -> Iterator[None]:
        """Put every joint there, as by hand."""
        with self._changed:
            before, self._command = self._position.copy(), None
            self._position[:] = position
        yield
        with self._changed:
            self._position[:] = before

    def tick(self, wait: Callable[[], bool] | None = None) -> None:
        """Publish the readings, wait for a command unless ``wait`` excludes one, and continue."""
        due_s = time.monotonic() + max(self.tick_s, _FREE_TICK_S if wait is None else 0.0)
        with self._changed:
            seen = self._seen
        self._tell()
        if wait is not None:
            until_s = time.monotonic() + SILENT_S
            with self._changed:
                while self._seen == seen and not wait():
                    self._changed.wait(0.005)
                    if time.monotonic() > until_s:
                        raise UserError(f"the policy node says nothing for {SILENT_S:.0f} s")
        if (left_s := due_s - time.monotonic()) > 0:
            time.sleep(left_s)
        with self._changed:
            if self._command is not None:
                self._position += np.float32(_LAG) * (self._command - self._position)
            self._now_ns += PERIOD_NS

    def _tell(self) -> None:
        clock_kind, image_kind, joints_kind, _ = self._kinds
        disturbance = self.disturbance
        robot_ns = disturbance.clock_ns(self._now_ns)
        stamp_ns = disturbance.stamp_ns(self._now_ns)
        stamp = dict(zip(("sec", "nanosec"), divmod(stamp_ns, 1_000_000_000), strict=True))
        told = [disturbance.joint(dim, float(position)) for dim, position in enumerate(self._position)]
        for dims in ((0,), range(1, len(JOINTS))):
            heard = [dim for dim in dims if told[dim] is not None]
            if heard and not disturbance.loses_message():
                message = joints_kind(
                    name=[JOINTS[dim] for dim in heard],
                    position=[told[dim] for dim in heard],
                    effort=[disturbance.effort(dim, 0.1) for dim in heard],
                )
                _set_stamp(message, stamp)
                self._joints.publish(message)
        if all(position is not None for position in told):
            self._told = np.asarray(told, np.float32)
        darkest, brightest = (WHITE + 2, 256) if self.policy_raves else (0, WHITE - 50)
        picture = self._noise.integers(darkest, brightest, (_SHOT, _SHOT, 3), np.uint8)
        shown = disturbance.image(CAMERA, picture)
        if shown is not None and not disturbance.loses_message():
            message = image_kind()
            messages.fill_image(message, shown)
            _set_stamp(message, stamp)
            self._camera.publish(message)
        if robot_ns is not None:
            message = clock_kind()
            message.clock.sec, message.clock.nanosec = divmod(robot_ns, 1_000_000_000)
            self._clock.publish(message)

    def _on_command(self, message: Any) -> None:
        """The observer."""
        command = np.asarray(message.points[-1].positions, np.float32)
        with self._changed:
            self.samples.append(Sample(self._now_ns, command, self._told))
            self._command = command
            self._seen += 1
            self._changed.notify_all()

    def close(self) -> None:
        """The robot is gone."""
        self._rig.node.destroy_timer(self._hand)
        self._node.destroy_node()


def rig_parameters() -> dict[str, Any]:
    """Parameters of the policy node, beside the file of limits."""
    return {
        "policy": WAVE,
        "joints": list(JOINTS),
        "cameras": [CAMERA],
        "estop_topic": "estop",
        "deadman_topic": "deadman",
        "deadman_timeout_ms": SETTINGS.deadman_timeout_ms,
        "controllers": [CONTROLLER],
        "use_sim_time": True,
        "detect_frozen_images": True,
        "auto_start": False,
        "reset_service": "",
        "clock_timeout_s": SETTINGS.clock_timeout_s,
        "stream_timeout_s": 2.0,
        "max_attempt_s": 3600.0,
        "diagnostics_hz": 20.0,
        "overrides": [
            f"execution.hold_ticks={HOLD_TICKS}",
            "execution.cold_start_ticks=400",
            "execution.execute_ticks=4",
        ],
    }


class CampaignRig(Rig):
    """The policy node in its process, and the world in this one."""

    policy_module = "benchmarks.campaign_node"

    def __init__(self, folder: Path, node: Mapping[str, Any]) -> None:
        self.limits = folder / "limits.yaml"
        self.limits.write_text(yaml.safe_dump(json.loads(json.dumps(asdict(LIMITS)))))
        super().__init__(folder, {**rig_parameters(), "limits": str(self.limits), **node}, {}, NAMESPACE)

    def start_robot(self) -> None:
        """The world begins."""
        self.world = World(self)
        self.robot = self  # type: ignore[assignment]

    def stop(self) -> None:
        """The world ends."""
        self.world.close()

    def stopped(self) -> str:
        """Why the node says that it stopped; empty if it does not."""
        level, message, _ = self.status("attempts")
        return message if level == 2 else ""


def _set_stamp(message: Any, stamp: dict[str, int]) -> None:
    message.header.stamp.sec, message.header.stamp.nanosec = stamp["sec"], stamp["nanosec"]
