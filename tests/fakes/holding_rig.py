"""A policy node with the real rclpy, a real robot of topics and gate, and a session that only holds; and a world around
it that speaks as drivers do. Both in one process, for the scripts of the tests.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState
from std_srvs.srv import Trigger

from robot_io.gate import GateConfig, SafetyGate
from robot_io.ros2 import qos
from robot_io.ros2.diagnostics import Health
from robot_io.ros2.node import PolicyNode
from robot_io.ros2.robot import Interface, Ros2Robot
from robot_io.ros2.spinning import spin
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator

HZ = 20.0
LIMITS = GateConfig(
    low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(1.0,) * 2, max_observation_age_ms=2000.0, max_gap_ms=5000.0
)


class Holds:
    """A `Session` whose attempts stay where they began."""

    interface = Interface(HZ, None, 2000.0)

    def __init__(self) -> None:
        self.gate = SafetyGate(LIMITS, HZ)

    def connect(self, robot: Ros2Robot, takeover: object) -> None:
        self.robot = robot

    def attempt(self, seed: int, wait_for_label: Callable[[], None]) -> str:
        rest = np.zeros(2, np.float32)
        source = Demonstrator(lambda: (rest, rest))
        summary = run_episode(self.robot, source, self.gate, seed=seed, subscribers=self.robot.subscribers)
        if summary.success is None:
            wait_for_label()
        return self.gate.why if self.gate.latched else ""

    def checklist(self, stop_input: str) -> Sequence[str]:
        return [f"yes  it holds; {stop_input}"]

    def rearm(self) -> None:
        self.gate.rearm()

    def health(self) -> Health:
        return Health(latched=self.gate.latched)

    def close(self) -> None: ...


class HoldingRig:
    """Node and world, spinning until `end`.

    Args:
        parameters: of the node, as text.

    Attributes:
        node: the policy node.
        world: a node that publishes the joints "a" and "b" at 50 Hz, both at 0.
    """

    def __init__(self, **parameters: str) -> None:
        given = {"policy": "p", "joints": "[a, b]", "label_timeout_s": "1.5", **parameters}
        rclpy.init(args=["--ros-args", *(item for pair in given.items() for item in ("-p", ":=".join(pair)))])
        self.session: Holds | None = None
        self.node = PolicyNode(self._make_session)
        threading.Thread(target=spin, args=(self.node,), daemon=True).start()
        self.world = rclpy.create_node("world")
        self._joints = self.world.create_publisher(JointState, "joint_states", qos.sensors())
        self.world.create_timer(0.02, self._speak)
        executor = SingleThreadedExecutor()
        executor.add_node(self.world)
        threading.Thread(target=executor.spin, daemon=True).start()
        self._clients: dict[str, Any] = {}

    def call(self, kind: Any, name: str, request: Any, within_s: float = 15.0) -> Any:
        """The answer of a service of the node; None if there is none."""
        client = self._clients.setdefault(name, self.world.create_client(kind, f"policy_node/{name}"))
        assert client.wait_for_service(20.0), name
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        return future.result() if done.wait(within_s) else None

    def trigger(self, name: str) -> list[Any] | None:
        answer = self.call(Trigger, name, Trigger.Request())
        return answer and [answer.success, answer.message]

    def transition(self, name: str) -> bool | None:
        wanted = Transition(id=getattr(Transition, f"TRANSITION_{name.upper()}"))
        answer = self.call(ChangeState, "change_state", ChangeState.Request(transition=wanted))
        return None if answer is None else answer.success

    def until(self, condition: Callable[[], Any], within_s: float = 10.0) -> bool:
        end_s = time.monotonic() + within_s
        while not condition() and time.monotonic() < end_s:
            time.sleep(0.02)
        return bool(condition())

    def stopped(self) -> bool:
        """The node waits for somebody who looks."""
        return "re-armed" in self.node._standing_by

    @property
    def why(self) -> str:
        return self.node._stopped_because

    def end(self) -> None:
        """Of the process: nothing is waited for."""
        sys.stdout.flush()
        os._exit(0)

    def _make_session(self, settings: object, operator: object) -> Holds:
        self.session = Holds()
        return self.session

    def _speak(self) -> None:
        message = JointState(name=["a", "b"], position=[0.0, 0.0])
        message.header.stamp = self.world.get_clock().now().to_msg()
        self._joints.publish(message)
