"""The real controllers of ros2_control on mock hardware, in a time of their own, cycle by cycle.

The controller manager is a process that `stepped_controllers.cpp` makes of the libraries of the group ros-test; g++ is
needed. Robot description and parameters are those of `examples/ros2_control_arm`, so these files run too.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from robot_io.ros2.outputs import Output, OutputSettings, curve
from tests.fakes.jtc import JointTrajectoryController, Point, Settings
from vla_rl.core.errors import UserError

ARM = Path(__file__).parents[2] / "examples" / "ros2_control_arm"
JOINTS = tuple(f"joint_{index}" for index in range(1, 8))
UPDATE_HZ = 500
_SOURCE = Path(__file__).with_name("stepped_controllers.cpp")
_KNOWN_WITHIN_S = 0.3
_LIBRARIES = ("controller_manager", "rclcpp", "rcutils", "pthread")


def build(folder: Path, environment: Mapping[str, str]) -> Path:
    """The program, built in a folder.

    Raises:
        UserError: without g++ or without the libraries of the controllers.
    """
    library = Path(environment.get("AMENT_PREFIX_PATH", "").partition(":")[0]) / "lib"
    if shutil.which("g++") is None or not (library / "libjoint_trajectory_controller.so").exists():
        raise UserError("the real controllers need g++ and the libraries of the group ros-test")
    program = folder / "stepped_controllers"
    command = ["g++", "-std=c++17", str(_SOURCE), "-o", str(program), f"-L{library}", "-Wl,--allow-shlib-undefined"]
    done = subprocess.run([*command, *(f"-l{name}" for name in _LIBRARIES)], capture_output=True, text=True)
    if done.returncode != 0:
        raise UserError(f"{_SOURCE.name} does not build:\n{done.stderr[-3000:]}")
    return program


class SteppedArm:
    """The example's arm behind its ``arm_controller``. A context manager; ROS has to be in the environment.

    Args:
        program: see `build`.
        folder: for the log.
        overrides: parameters of ``arm_controller``.
    """

    def __init__(self, program: Path, folder: Path, overrides: Mapping[str, object] | None = None) -> None:
        self._log = (folder / "controllers.log").open("w")
        given = [
            item for name, value in (overrides or {}).items() for item in ("-p", f"arm_controller:{name}:={value}")
        ]
        parameters = str(ARM / "config" / "controllers.yaml")
        sim_time = ["-p", "use_sim_time:=true"]
        command = [str(program), str(UPDATE_HZ), "--ros-args", "--params-file", parameters, *sim_time, *given]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=os.environ
        )

    def __enter__(self) -> Self:
        import rclpy
        from control_msgs.msg import JointTrajectoryControllerState
        from controller_manager_msgs.srv import ConfigureController, LoadController, SwitchController
        from rclpy.executors import SingleThreadedExecutor
        from rclpy.qos import DurabilityPolicy, QoSProfile
        from rosgraph_msgs.msg import Clock
        from std_msgs.msg import String
        from trajectory_msgs.msg import JointTrajectory

        self.node = rclpy.create_node("steps")
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._clock = self.node.create_publisher(Clock, "/clock", 1)
        description = self.node.create_publisher(String, "robot_description", latched)
        description.publish(String(data=(ARM / "urdf" / "arm.urdf").read_text()))
        self._trajectories = self.node.create_publisher(JointTrajectory, "arm_controller/joint_trajectory", 1)
        self._now_ns = 1_000_000_000
        self._states: dict[int, list[float]] = {}
        self.node.create_subscription(
            JointTrajectoryControllerState, "arm_controller/controller_state", self._on_state, 1000
        )
        executor = SingleThreadedExecutor()
        executor.add_node(self.node)
        threading.Thread(target=executor.spin, daemon=True).start()
        self._wait(lambda: self._clock.get_subscription_count() > 0, "the manager's clock")
        name = "arm_controller"
        self._call(LoadController, "load_controller", LoadController.Request(name=name))
        self._call(ConfigureController, "configure_controller", ConfigureController.Request(name=name))
        request = SwitchController.Request(activate_controllers=[name], strictness=SwitchController.Request.STRICT)
        self._call(SwitchController, "switch_controller", request)
        self._wait(lambda: self._trajectories.get_subscription_count() > 0, "the controller's subscription")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10.0)
        self._log.close()

    def send(self, joints: Sequence[str], points: Sequence[Point], stamp_s: float | None) -> None:
        """A trajectory, which has arrived when this returns; its stamp counts from the next cycle."""
        from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

        message = JointTrajectory(joint_names=list(joints))
        for point in points:
            fields = {
                name: np.asarray(values, float).tolist()
                for name in ("positions", "velocities", "accelerations")
                if (values := getattr(point, name)) is not None
            }
            message.points.append(JointTrajectoryPoint(**fields))
            nanoseconds = round(point.time_from_start * 1e9)
            duration = message.points[-1].time_from_start
            duration.sec, duration.nanosec = divmod(nanoseconds, 1_000_000_000)
        if stamp_s is not None:
            stamp_ns = self._now_ns + 1_000_000_000 // UPDATE_HZ + round(stamp_s * 1e9)
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 1_000_000_000)
        self._trajectories.publish(message)
        time.sleep(0.05)

    def step(self, cycles: int) -> np.ndarray:
        """Run cycles; float64 [N, 7], the positions that the controller commanded in each, NaN where it did not say."""
        told = []
        for _ in range(cycles):
            known = len(self._states)
            self._cycle()
            end_s = time.monotonic() + 0.5
            while len(self._states) == known and time.monotonic() < end_s:
                time.sleep(0.0005)
            told.append(self._last if len(self._states) > known else [np.nan] * len(JOINTS))
        return np.array(told)

    def _cycle(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._now_ns += 1_000_000_000 // UPDATE_HZ
        clock = self._clock.msg_type()
        clock.clock.sec, clock.clock.nanosec = divmod(self._now_ns, 1_000_000_000)
        self._clock.publish(clock)
        self._process.stdin.write(f"{self._now_ns}\n")
        self._process.stdin.flush()
        while (line := self._process.stdout.readline()) and line.strip() != "done":
            pass

    def _on_state(self, message: Any) -> None:
        stamp = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        self._last = list(message.output.positions)
        self._states[stamp] = self._last

    def _call(self, kind: Any, service: str, request: Any) -> None:
        client = self.node.create_client(kind, f"controller_manager/{service}")
        if not client.wait_for_service(20.0):
            raise UserError(f"the controller manager has no {service}: see its log")
        time.sleep(_KNOWN_WITHIN_S)  # a request to a server that has just come up may be lost
        future = client.call_async(request)
        until_s = time.monotonic() + 20.0
        while not future.done():  # a switch waits for cycles
            self._cycle()
            time.sleep(0.005)
            if time.monotonic() > until_s:
                raise UserError(f"{service} does not end: see the log")
        if not future.result().ok:
            raise UserError(f"{service} was refused: see the log")

    def _wait(self, condition: Any, what: str) -> None:
        until_s = time.monotonic() + 20.0
        while not condition():
            if time.monotonic() > until_s:
                raise UserError(f"waited in vain for {what}")
            time.sleep(0.02)


@dataclass(frozen=True)
class Script:
    """What is sent to the controller, and when; runs on the real one and on the one of `tests.fakes.jtc`.

    Attributes:
        settings: of the controller, `UPDATE_HZ` its rate.
        messages: cycle -> joints, points, and the stamp in seconds after that cycle's time (None: stamp 0).
        cycles: how many.
    """

    settings: Settings
    messages: Mapping[int, tuple[Sequence[str], Sequence[Point], float | None]]
    cycles: int

    def overrides(self) -> dict[str, object]:
        """Its settings as parameters of the real controller."""
        names = (
            "interpolate_from_desired_state",
            "allow_partial_joints_goal",
            "allow_nonzero_velocity_at_trajectory_end",
            "cmd_timeout",
        )
        return {name: json.dumps(getattr(self.settings, name)) for name in names}

    def run_real(self, program: Path, folder: Path) -> np.ndarray:
        """float64 [cycles, 7], the commands of the real controller."""
        told = []
        with SteppedArm(program, folder, self.overrides()) as arm:
            for cycle in range(self.cycles):
                if cycle in self.messages:
                    arm.send(*self.messages[cycle])
                told.append(arm.step(1))
        return np.concatenate(told)

    def run_emulated(self) -> np.ndarray:
        """The same of the emulator, on hardware that does in one cycle what it is told."""
        controller = JointTrajectoryController(self.settings, REST)
        position, told = REST, []
        for cycle in range(-1, self.cycles):  # one before, as the real one has while it is activated
            now_s = 1.0 + cycle / UPDATE_HZ
            if cycle in self.messages:
                joints, points, stamp_s = self.messages[cycle]
                controller.send(joints, points, now_s, 0.0 if stamp_s is None else now_s + stamp_s)
            position = controller.update(now_s, position, np.zeros_like(position))
            told.append(position)
        return np.array(told[1:])


REST = np.array([0.0, -0.8, 0.0, -2.4, 0.0, 1.6, 0.8])


class Nobody:
    """A `robot_io.ros2.outputs.Sender` that takes no messages."""

    def send(self, message: object) -> bool:
        return False

    def missed(self) -> bool:
        return False

    def listeners(self) -> int:
        return 0

    def senders(self) -> int:
        return 1

    def destroy(self) -> None:
        """Nothing is held."""


def scripts() -> Mapping[str, Script]:
    """Every rule that the emulator has, a stream of random trajectories, and what the node sends."""
    turned, few = tuple(reversed(JOINTS)), JOINTS[:2]
    ramp, still = np.linspace(0.1, 0.4, 7), np.zeros(7)
    linear = Point(0.02, REST + ramp)
    cubic = [Point(0.02, REST - ramp, ramp), Point(0.05, REST + ramp, still)]
    quintic = [Point(0.03, REST + 2 * ramp, ramp, -ramp), Point(0.06, REST, still, still)]
    flying = [Point(0.02, REST + ramp, 3 * ramp)]
    messages = {
        2: (JOINTS, [linear], None),
        20: (JOINTS, cubic, None),
        32: (JOINTS, quintic, None),  # replaces the cubic one in the middle
        70: (turned, [Point(0.02, (REST + ramp)[::-1])], None),
        90: (few, [Point(0.02, still[:2])], None),  # joints are missing
        100: (JOINTS, flying, None),  # ends with a velocity
        120: (JOINTS, [Point(0.1, REST)], -0.05),  # began in the past
        150: (JOINTS, [Point(0.02, REST + ramp)], -0.1),  # ended in the past
        170: (JOINTS, [Point(0.02, REST - ramp)], 0.03),  # begins in the future
        200: (JOINTS, [Point(0.0, REST + 0.1 * ramp)], None),  # at once
        210: (JOINTS, [Point(0.02, REST), Point(0.02, REST + ramp)], None),  # times do not increase
        220: ((*JOINTS[:6], "elbow"), [linear], None),
        222: (JOINTS, [Point(0.02, REST), Point(0.04, REST + ramp)], None),
    }
    random = np.random.default_rng(0)
    stream = {}
    for cycle in np.cumsum(random.integers(3, 20, 40)).tolist():
        ends = np.cumsum(random.integers(1, 15, random.integers(1, 4))) / UPDATE_HZ
        moving = [random.normal(0, 0.3, 7) for _ in ends[1:]] + [still]
        with_velocity = random.random() < 0.5
        points = [
            Point(float(end), REST + random.normal(0, 0.1, 7), velocity if with_velocity else None)
            for end, velocity in zip(ends, moving, strict=True)
        ]
        stream[cycle] = (JOINTS, points, None)
    output = Output(OutputSettings("arm", "", "trajectory", JOINTS, 5), Nobody(), 10_000_000, lambda: now_ns)
    output.begin((REST - 0.02).astype(np.float32))  # it hangs below what the controller holds
    node = {}
    for sent in range(100):
        now_ns = 1_000_000_000 + sent * 10_000_000
        command = REST - 0.02 + 0.3 * np.sin(0.05 * sent) * (sent < 80)
        said = curve(5, output.remember(command.astype(np.float32)))
        cycle = 5 * sent + int(random.integers(0, 4))  # messages come late
        points = [
            Point(time_ns * 1e-9, position.astype(np.float64), velocity)
            for time_ns, position, velocity in zip(said.from_start_ns, said.positions, said.velocities, strict=True)
        ]
        node[cycle] = (JOINTS, points, said.start_ns * 1e-9 - 1.0 - cycle / UPDATE_HZ)
    desired = Settings(JOINTS, UPDATE_HZ, interpolate_from_desired_state=True, cmd_timeout=0.3)
    measured = Settings(
        JOINTS, UPDATE_HZ, allow_partial_joints_goal=True, allow_nonzero_velocity_at_trajectory_end=True
    )
    return {
        "rules-desired": Script(desired, messages, 420),
        "rules-measured": Script(measured, messages, 300),
        "stream-desired": Script(desired, stream, 500),
        "stream-measured": Script(measured, stream, 500),
        "node": Script(desired, node, 540),
    }


def main() -> None:
    """``python -m tests.fakes.ros2_control PROGRAM SCRIPT``: the last line is JSON, the commands."""
    import rclpy

    program, name = Path(sys.argv[1]), sys.argv[2]
    rclpy.init()
    print(json.dumps(scripts()[name].run_real(program, program.parent).tolist()), flush=True)
    os._exit(0)  # the thread that spins is still at work


if __name__ == "__main__":
    main()
