"""A policy node and a simulated robot in processes of their own, and a client that drives them by services and topics.

Used by the benchmark and by the tests. Whoever uses `Rig` needs ROS in its environment from the start of the process:
`ros_environment` makes it, `run_with_ros` starts a Python module in it.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from vla_rl.core.errors import UserError

RMWS = ("rmw_fastrtps_cpp", "rmw_cyclonedds_cpp")
_LOGS = f"{tempfile.gettempdir()}/vla_rl_ros_log_{os.getuid()}"  # that of another user cannot be written to
_LOADED_WITHIN_S = 90.0
_ANSWER_WITHIN_S = 30.0


def ros_environment(rmw: str = "", domain: int = 0) -> dict[str, str]:
    """The environment variables of a process with ROS 2, on the loopback only.

    Args:
        rmw: the middleware; empty: the default one.
        domain: ROS_DOMAIN_ID; 0 derives one from this process, so that two runs do not hear each other.

    Raises:
        UserError: if ROS 2 is neither sourced nor installed as the group ros-test.
    """
    environment = {**os.environ, "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}
    environment["ROS_DOMAIN_ID"] = str(domain or 1 + os.getpid() % 100)
    environment.update(OMP_NUM_THREADS="1", ROS_LOG_DIR=environment.get("ROS_LOG_DIR", _LOGS))
    if rmw:
        environment["RMW_IMPLEMENTATION"] = rmw
    if importlib.util.find_spec("rclpy") is not None:
        return environment
    package = importlib.util.find_spec("isaacsim")
    for root in (package.submodule_search_locations or []) if package else []:
        prefix = Path(root) / "exts" / "isaacsim.ros2.core" / "jazzy"
        if prefix.is_dir():
            library_path = [str(prefix / "lib"), environment.get("LD_LIBRARY_PATH", "")]
            python_path = [str(prefix / "rclpy"), environment.get("PYTHONPATH", "")]
            environment["LD_LIBRARY_PATH"] = ":".join(filter(None, library_path))
            environment["PYTHONPATH"] = ":".join(filter(None, python_path))
            environment.update(AMENT_PREFIX_PATH=str(prefix), ROS_DISTRO="jazzy")
            return environment
    raise UserError("there is no ROS 2: source it, or install the group ros-test (uv sync --group ros-test)")


def run_with_ros(
    module: str, arguments: Sequence[str], environment: Mapping[str, str], timeout_s: float | None = None
) -> Any:
    """Run a module's main in a process with ROS; returns the JSON value that its last line of output is.

    Raises:
        UserError: if it fails or says no JSON; with the end of what it said.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, timeout=timeout_s)
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise UserError(f"{module} ended with code {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}")
    return json.loads(lines[-1])


class NodeProcess:
    """One node in a process of its own.

    Args:
        module: with a main.
        parameters: ROS parameters.
        namespace: of the node.
        log: what it says is appended here.
    """

    def __init__(self, module: str, parameters: Mapping[str, object], namespace: str, log: Path) -> None:
        given = [item for name, value in parameters.items() for item in ("-p", f"{name}:={json.dumps(value)}")]
        command = [sys.executable, "-m", module, "--ros-args", "-r", f"__ns:={namespace}", *given]
        self._log = log.open("a")
        # A session of its own: a killed node takes its children along, and Ctrl-C is this process's to handle.
        self.process = subprocess.Popen(
            command, stdout=self._log, stderr=subprocess.STDOUT, env=os.environ, start_new_session=True
        )

    def stop(self, how: int = signal.SIGINT) -> None:
        """End it; kill it if it does not."""
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(15.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()


class Rig:
    """See the module. A context manager.

    Args:
        folder: for logs.
        policy_parameters, robot_parameters: of the two nodes, beside those that connect them.
        namespace: of both, so that several rigs share one domain.
    """

    policy_module = "vla_rl.acting.ros2_node"

    def __init__(
        self,
        folder: Path,
        policy_parameters: Mapping[str, object],
        robot_parameters: Mapping[str, object],
        namespace: str = "/bench",
    ) -> None:
        self._folder, self._namespace = folder, namespace
        self._policy_parameters = {
            "joints": [f"{side}_{channel}" for side in ("left", "right") for channel in ("x", "y", "z", "grip")],
            "cameras": ["front", "top"],
            "detect_frozen_images": False,
            "simulated": True,
            "auto_start": True,
            "label_timeout_s": 0.0,
            "reset_timeout_s": 60.0,
            "reset_service": f"{namespace}/env_robot/reset",
            **policy_parameters,
        }
        self._robot_parameters = {"operator": f"{namespace}/policy_node", **robot_parameters}

    def __enter__(self) -> Self:
        import rclpy
        from rclpy.executors import SingleThreadedExecutor

        rclpy.init()
        self.node = rclpy.create_node("operator", namespace=self._namespace)
        self._statuses: dict[str, Any] = {}
        self._listen()
        executor = SingleThreadedExecutor()
        executor.add_node(self.node)
        self._spinning = threading.Thread(target=self._spin, args=(executor,), daemon=True)
        self._spinning.start()
        self.start_robot()
        self.policy = NodeProcess(
            self.policy_module, self._policy_parameters, self._namespace, self._folder / "policy_node.log"
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        import rclpy

        self.policy.stop()
        self.robot.stop()
        rclpy.try_shutdown()
        self._spinning.join(5.0)

    def start_robot(self) -> None:
        """Start the simulated robot; again after it was killed."""
        self.robot = NodeProcess(
            "robot_io.ros2.env_node", self._robot_parameters, self._namespace, self._folder / "env_robot.log"
        )

    def transition(self, name: str) -> bool:
        """A lifecycle transition, as ``ros2 lifecycle set`` asks for it; False if the node refused."""
        from lifecycle_msgs.msg import Transition
        from lifecycle_msgs.srv import ChangeState

        wanted = Transition(id=getattr(Transition, f"TRANSITION_{name.upper()}"))
        return bool(self.call(ChangeState, "policy_node/change_state", ChangeState.Request(transition=wanted)).success)

    def state(self) -> str:
        """The lifecycle state."""
        from lifecycle_msgs.srv import GetState

        return str(self.call(GetState, "policy_node/get_state", GetState.Request()).current_state.label)

    def trigger(self, service: str) -> tuple[bool, str]:
        """Call a std_srvs/Trigger of the policy node, or of another one by its full name."""
        from std_srvs.srv import Trigger

        answer = self.call(Trigger, service if "/" in service else f"policy_node/{service}", Trigger.Request())
        return bool(answer.success), str(answer.message)

    def take_over(self, engaged: bool) -> str:
        """Take the commands, or give them back; what the node answers."""
        from std_srvs.srv import SetBool

        return str(self.call(SetBool, "policy_node/takeover", SetBool.Request(data=engaged)).message)

    def set_parameters(self, values: Mapping[str, object]) -> list[str]:
        """Set parameters of the policy node; returns the reasons of those that were refused."""
        from rcl_interfaces.srv import SetParameters
        from rclpy.parameter import Parameter

        request = SetParameters.Request(
            parameters=[Parameter(name, value=value).to_parameter_msg() for name, value in values.items()]
        )
        answer = self.call(SetParameters, "policy_node/set_parameters", request)
        return [result.reason for result in answer.results if not result.successful]

    def move(self, positions: Sequence[float]) -> None:
        """A takeover command."""
        from std_msgs.msg import Float64MultiArray

        self._takeover.publish(Float64MultiArray(data=list(map(float, positions))))

    def status(self, name: str) -> tuple[int, str, dict[str, str]]:
        """Level, message and values of the newest diagnostic status of the policy node with that name."""
        status = self._statuses.get(f"{self._namespace}/policy_node: {name}")
        if status is None:
            return -1, "", {}
        values = {pair.key: pair.value for pair in status.values}
        return int.from_bytes(status.level), str(status.message), values

    def forget(self) -> None:
        """What the diagnostics said until now does not count."""
        self._statuses.clear()

    def robot_latency_ms(self) -> dict[str, float]:
        """How long commands took from the reading that they follow, as the robot has told last."""
        status = self._statuses.get(f"{self._namespace}/env_robot: reading to command")
        return {pair.key.removesuffix(" ms"): float(pair.value) for pair in status.values} if status else {}

    def record_commands(self) -> list[float]:
        """The list to which the arrival of every command is added, s, as long as `recording` is true."""
        from trajectory_msgs.msg import JointTrajectory

        arrivals_s: list[float] = []
        self.recording = True

        def on_command(_: Any) -> None:
            if self.recording:
                arrivals_s.append(time.monotonic())

        self.node.create_subscription(JointTrajectory, "arm_controller/joint_trajectory", on_command, 10)
        return arrivals_s

    def sleep(self, duration_s: float) -> None:
        """Let the nodes run; raises UserError if one of them ends."""
        until_s = time.monotonic() + duration_s
        self.wait(lambda: time.monotonic() >= until_s, duration_s + 10.0, "the end of the soak")

    def wait(self, condition: Any, timeout_s: float, what: str) -> Any:
        """Wait until a condition gives something true, and return it.

        Raises:
            UserError: if it does not.
        """
        deadline_s = time.monotonic() + timeout_s
        while not (value := condition()):
            if time.monotonic() > deadline_s:
                statuses = {name: (status.level, status.message) for name, status in self._statuses.items()}
                raise UserError(f"waited {timeout_s:.0f} s in vain for {what}; diagnostics: {statuses}")
            if self.policy.process.poll() is not None:
                raise UserError(f"the policy node ended with code {self.policy.process.returncode}, see {self._folder}")
            time.sleep(0.02)
        return value

    def call(self, kind: Any, service: str, request: Any) -> Any:
        """Call a service and wait for its answer.

        Raises:
            UserError: if it is not there, or does not answer.
        """
        if service not in self._clients:  # each client more makes the executor slower
            self._clients[service] = self.node.create_client(kind, service)
        client = self._clients[service]
        if not client.wait_for_service(_LOADED_WITHIN_S):
            raise UserError(
                f"there is no service {service} after {_LOADED_WITHIN_S:.0f} s; see the logs in {self._folder}"
            )
        answered = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: answered.set())
        if not answered.wait(_LOADED_WITHIN_S if "change_state" in service or "rearm" in service else _ANSWER_WITHIN_S):
            raise UserError(f"the service {service} does not answer; see the logs in {self._folder}")
        return future.result()

    def _listen(self) -> None:
        from diagnostic_msgs.msg import DiagnosticArray
        from std_msgs.msg import Float64MultiArray

        self._clients: dict[str, Any] = {}
        self._takeover = self.node.create_publisher(Float64MultiArray, "policy_node/takeover_command", 1)
        self.node.create_subscription(DiagnosticArray, "/diagnostics", self._on_diagnostics, 10)

    def _on_diagnostics(self, message: Any) -> None:
        self._statuses.update({status.name: status for status in message.status})

    def _spin(self, executor: Any) -> None:
        from rclpy.executors import ExternalShutdownException

        with contextlib.suppress(ExternalShutdownException):
            executor.spin()
