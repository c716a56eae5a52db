"""Any gymnasium environment as a ROS 2 robot: cameras, joint states, /clock, and controllers that obey trajectories.

For everyone who has ROS 2 and no robot, and for the tests. The environment is named by its gymnasium id with the module
that registers it (``sim:vla_rl/PegInsert-v0``). It says the outcome of an attempt as a person does: by calling the
services of the policy node. The topic ``~/fault`` takes names of `robot_io.faults`.

Time: with ``realtime_factor`` 1 the world runs with the machine; with another one, or with ``lockstep``, it has its own
time and publishes /clock. In lockstep it waits for a command before every step, from the first command of an attempt
on. It never runs faster than the factor. A busy machine therefore slows the world and changes nothing in it. The ROS
thread receives commands and requests; a thread of its own steps the environment.
"""

import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node
from rosgraph_msgs.msg import Clock as ClockMessage
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from robot_io.disturbances import Disturbance
from robot_io.env_robot import EnvRobot
from robot_io.faults import sensor_fault
from robot_io.limits import RobotLimits
from robot_io.ros2 import messages, qos
from robot_io.ros2.parameters import Parameter, declare, value_of
from robot_io.ros2.spinning import run_ros
from vla_rl.core.errors import UserError
from vla_rl.core.logging_setup import log_to_stderr
from vla_rl.core.types import Float32Array, Observation

PARAMETERS = (
    Parameter("env", "sim:vla_rl/PegInsert-v0", "Gymnasium id, with the module that registers it"),
    Parameter("env_options", "{}", "JSON mapping of the environment's arguments"),
    Parameter("seed", 0, "Of the first reset; the next one has the next seed", 0, 2**31 - 1),
    Parameter(
        "joints", [], "Names of the state's dimensions; empty: the environment's own, else joint_1, joint_2, ..."
    ),
    Parameter("realtime_factor", 1.0, "Seconds of the world in one second; not 1: it publishes /clock", 0.01, 100.0),
    Parameter("lockstep", False, "Wait for a command before every step; publishes /clock"),
    Parameter("lockstep_timeout_s", 0.5, "Without a command for so long (wall time) the world goes on", 0.001, 60.0),
    Parameter(
        "command_timeout_ms", 500.0, "Without a command for so long (its own time) the robot holds", 1.0, 60000.0
    ),
    Parameter("operator", "", "Name of the policy node that receives the outcomes; empty: none"),
)
_LATENCIES = 512


class EnvNode(Node):
    """A simulated robot. Topics: ``CAMERA/image_raw``, ``joint_states``, ``arm_controller/joint_trajectory``,
    ``arm_controller/commands``. Services: ``~/reset``.
    """

    def __init__(self) -> None:
        super().__init__("env_robot")
        declare(self, PARAMETERS)
        self._robot = EnvRobot(_make_env(value_of(self, "env"), value_of(self, "env_options")))
        self._seed, self._lockstep = value_of(self, "seed"), value_of(self, "lockstep")
        self._factor: float = value_of(self, "realtime_factor")
        self._own_time = self._lockstep or self._factor != 1.0
        self._period_ns = round(1e9 / self._robot.control_hz)
        self._time_ns = 1_000_000_000  # 0 would mean that there is no time yet
        self._reset_asked = False
        self._condition = threading.Condition()
        self._target: Float32Array | None = None
        self._commands = 0
        self._commanded_ns = 0
        self._driven = False  # the world does not wait before the first command of an attempt
        self._command_timeout_ns = round(value_of(self, "command_timeout_ms") * 1e6)
        self._disturbance = self._make_disturbance("")
        self._published_s = 0.0
        self._latencies_ms: list[float] = []
        self._open = True
        self._robot.reset(self._seed)
        observation = self._robot.read()
        self._make_topics(observation)

        self._thread = threading.Thread(target=self._run, name="world", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the world."""
        with self._condition:
            self._open = False
            self._condition.notify_all()
        self._thread.join()
        self._robot.close()

    def _run(self) -> None:
        next_s, outcome_reported = time.monotonic(), True  # the first world is not requested yet
        while self._open:
            if self._reset_asked:
                self._begin()
                outcome_reported = False
            count = self._commands
            self._publish(self._robot.read())
            catch_up_s = 0.0 if self._lockstep else 1.0
            next_s = max(next_s, time.monotonic() - catch_up_s) + self._period_ns * 1e-9 / self._factor
            self._await_command(count, next_s)
            if not (self._robot.terminated or self._robot.truncated):
                self._robot.write(self._obeyed())
            elif not outcome_reported:
                self._call_operator(self._robot.success is True)
                outcome_reported = True
            self._time_ns += self._period_ns

    def _make_topics(self, observation: Observation) -> None:
        self._joints, self._targets = joint_names(self._robot, value_of(self, "joints"))
        self._cameras = {
            camera: self.create_publisher(Image, f"{camera}/image_raw", qos.sensors()) for camera in observation.images
        }
        self._joint_states = self.create_publisher(JointState, "joint_states", qos.sensors())
        self._clock_publisher = self.create_publisher(ClockMessage, "/clock", qos.clock()) if self._own_time else None
        self._diagnostics = self.create_publisher(DiagnosticArray, "/diagnostics", 10)
        self.create_subscription(
            JointTrajectory, "arm_controller/joint_trajectory", self._on_trajectory, qos.commands()
        )
        self.create_subscription(Float64MultiArray, "arm_controller/commands", self._on_array, qos.commands())
        self.create_subscription(String, "~/fault", self._on_fault, qos.commands())
        self.create_service(Trigger, "~/reset", self._on_reset)
        operator = value_of(self, "operator")
        self._labels = {
            outcome: self.create_client(Trigger, f"{operator}/{name}")
            for outcome, name in ((True, "success"), (False, "failure"))
            if operator
        }

    def _begin(self) -> None:
        with self._condition:
            self._robot.reset(self._seed)
            self._seed += 1
            self._target = None
            self._driven = self._reset_asked = False
            self._condition.notify_all()

    def _obeyed(self) -> Float32Array:
        """Return the target of the controllers, or the robot's place after a long silence, as real controllers do."""
        with self._condition:
            if self._target is None or self._time_ns - self._commanded_ns > self._command_timeout_ns:
                self._commanded_ns = self._time_ns
                self._target = self._robot.rest_command()
            return self._target

    def _await_command(self, count: int, next_s: float) -> None:
        """Wait for the end of the step; in lockstep also for one more command than were seen."""
        with self._condition:
            if self._lockstep:
                self._condition.wait_for(
                    lambda: self._commands > count or self._reset_asked or not self._open,
                    value_of(self, "lockstep_timeout_s") if self._driven else 0.0,
                )
            while self._open and not self._reset_asked and (left_s := next_s - time.monotonic()) > 0:
                self._condition.wait(left_s)

    def _publish(self, observation: Observation) -> None:
        """Readings first, then the time that they belong to."""
        disturbance = self._disturbance
        now_ns = self._time_ns if self._own_time else time.time_ns()
        stamp_ns, clock_ns = disturbance.stamp_ns(now_ns), disturbance.clock_ns(now_ns)
        self._published_s = time.perf_counter()
        read = [disturbance.joint(dim, float(position)) for dim, position in enumerate(observation.state)]
        readings = [(name, position) for name, position in zip(self._joints, read, strict=True) if position is not None]
        if readings and not disturbance.loses_message():
            names, positions = zip(*readings, strict=True)
            header = messages.header("", stamp_ns)
            self._joint_states.publish(JointState(header=header, name=list(names), position=list(positions)))
        for camera, publisher in self._cameras.items():
            image = disturbance.image(camera, observation.images[camera])
            if image is None or disturbance.loses_message():
                continue
            picture = Image(header=messages.header(camera, stamp_ns))
            messages.fill_image(picture, image)
            publisher.publish(picture)
        if self._clock_publisher is not None and clock_ns is not None:
            self._clock_publisher.publish(ClockMessage(clock=messages.header("", clock_ns).stamp))

    def _call_operator(self, success: bool) -> None:
        self.get_logger().info(f"seed {self._seed - 1}: {'success' if success else 'failure'}")
        client = self._labels.get(success)
        if client is not None and client.service_is_ready():
            client.call_async(Trigger.Request())

    # The ROS thread.

    def _on_trajectory(self, message: Any) -> None:
        """The robot goes to the end of a trajectory; an empty one holds it where it is."""
        if message.points:
            self._command(message.joint_names, message.points[-1].positions)

    def _on_array(self, message: Any) -> None:
        self._command(self._targets, message.data)

    def _command(self, names: Sequence[str], positions: Sequence[float]) -> None:
        with self._condition:
            if self._reset_asked:
                return
            before = self._robot.rest_command() if self._target is None else self._target
            try:
                target = messages.commanded(before, self._targets, names, positions)
            except UserError as error:
                self.get_logger().error(f"not followed: {error}")
                return
            self._latencies_ms.append((time.perf_counter() - self._published_s) * 1e3)
            del self._latencies_ms[:-_LATENCIES]
            self._target, self._commanded_ns, self._driven = target, self._time_ns, True
            self._commands += 1
            self._condition.notify_all()

    def _on_reset(self, _: Any, response: Any) -> Any:
        with self._condition:
            self._reset_asked = True
            self._condition.notify_all()
            response.success = self._condition.wait_for(lambda: not self._reset_asked, 30.0)
        self._publish_latency()
        response.message = f"seed {self._seed - 1}"
        return response

    def _on_fault(self, message: Any) -> None:
        """The name of a fault of `robot_io.faults` that disturbs sensors; an empty text mends everything."""
        try:
            self._disturbance = self._make_disturbance(message.data)
        except UserError as error:
            self.get_logger().error(str(error))

    def _make_disturbance(self, name: str) -> Disturbance:
        actions = self._robot.actions
        limits = RobotLimits(low=tuple(actions.low), high=tuple(actions.high), discrete_dims=actions.gripper_dims)
        kind = sensor_fault(name).disturbance if name else Disturbance
        return kind(random.Random(self._seed), limits)

    def _publish_latency(self) -> None:
        """How long a command takes from the reading that it follows, wall time; exact in lockstep."""
        if self._latencies_ms:
            p50, p99 = np.percentile(self._latencies_ms, (50, 99))
            values = [KeyValue(key="p50 ms", value=f"{p50:.3f}"), KeyValue(key="p99 ms", value=f"{p99:.3f}")]
            name = f"{self.get_fully_qualified_name()}: reading to command"
            status = DiagnosticStatus(name=name, message=f"{p50:.2f} ms", hardware_id="vla_rl", values=values)
            self._diagnostics.publish(DiagnosticArray(status=[status]))


def joint_names(robot: EnvRobot, named: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of the numbers of the state and of the action, as the topics carry them.

    Where the parameter ``joints`` names none, they are those that the environment declares.

    Raises:
        UserError: For another number of names, or the environment's own in another order.
    """
    size, own = robot.reader.state_dim, list(robot.state_dimensions.names)
    state = list(named) or own or [f"joint_{index + 1}" for index in range(size)]
    if len(state) != size:
        raise UserError(f"parameter joints names {len(state)} joints, the state has {size} numbers")
    if state != own and set(state) == set(own):
        raise UserError(f"parameter joints is {state}, the environment's own order is {own}; leave the parameter out")
    renamed = dict(zip(own, state, strict=bool(own)))
    action = [renamed.get(name, name) for name in robot.action_dimensions.names]
    return state, action or state[: robot.actions.size]


def main() -> int:
    """``ros2 run vla_rl_ros env_robot``"""
    log_to_stderr("%(name)s: %(message)s")
    return run_ros(EnvNode, "env_robot")


def _make_env(name: str, options: str) -> Any:
    import gymnasium

    try:
        arguments = json.loads(options)
        return gymnasium.make(name, disable_env_checker=True, **arguments)
    except (gymnasium.error.Error, ModuleNotFoundError, TypeError, ValueError) as error:
        raise UserError(f"cannot make the environment {name!r} with {options}: {error}") from error


if __name__ == "__main__":
    sys.exit(main())
