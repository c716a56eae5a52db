"""Jitter of the control period under inference: in a process of its own against a thread of the control process.

The same mock robot at 50 Hz, the same loop, gate and policy; the two alternate in attempts of a few seconds. Python
holds the interpreter between a network's operations, and inference hardly rests. A small policy therefore takes as many
steps through its flow as a large one has layers.

Jitter is how far a period is from its 20 ms. The ratio of whole periods would say nothing: a loop that keeps its rate
at all has periods near 20 ms.
"""

import queue
import threading
from typing import Any, override

import numpy as np

from benchmarks.cells import Cells
from robot_io.gate import SafetyGate
from robot_io.limits import RobotLimits
from robot_io.mock_robot import MockRobot, MockRobotConfig
from vla_rl.core.clock import MonotonicClock
from vla_rl.core.config import load_config
from vla_rl.core.config_files import CONFIGS
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Policy, Subscriber
from vla_rl.core.types import Observation, Step
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import MessageLayout, ProcessPlanner
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import Inference, Plan, Planner, PlanRequest, refined, refines
from vla_rl.execution.realtime import RealtimeConfig, realtime
from vla_rl.execution.strategies import ExecutionConfig

_HZ, _ATTEMPT_S = 50.0, 5.0
_EXECUTION = ExecutionConfig(execute_ticks=2)  # the next inference begins when one is done
_FLOW_STEPS = 100
_ROBOT = MockRobotConfig(control_hz=_HZ, image_size=64, duration_s=_ATTEMPT_S)


class ThreadPlanner(Planner):
    """Infers in a thread of the control process: what `ProcessPlanner` is compared with, and nothing to use."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._requests: queue.Queue[tuple[int, PlanRequest, Inference]] = queue.Queue()
        self._answers: queue.Queue[tuple[int, Plan]] = queue.Queue()
        self._epoch = 0
        threading.Thread(target=self._serve, name="inference", daemon=True).start()

    @override
    def reset(self, seed: int) -> None:
        self._epoch += 1

    @override
    def request(self, request: PlanRequest, inference: Inference) -> None:
        self._requests.put((self._epoch, request, inference))

    @override
    def poll(self) -> list[Plan]:
        plans = []
        while not self._answers.empty():
            epoch, plan = self._answers.get()
            if epoch == self._epoch:
                plans.append(plan)
        return plans

    @override
    def refine(self, plan: Plan, observation: Observation, index: int) -> None:
        self._answers.put((self._epoch, refined(self._policy, plan, observation, index)))

    @override
    def wait(self) -> int:
        raise UserError(
            "the world does not stand still in real time; use another strategy than sync with a frozen world"
        )

    def _serve(self) -> None:
        while True:
            epoch, request, inference = self._requests.get()
            chunk = inference.infer(self._policy, request)
            self._answers.put((epoch, Plan(request, chunk, final=not refines(self._policy, inference))))


class Periods(Subscriber):
    """A subscriber that keeps the times of steps."""

    def __init__(self, clock: MonotonicClock) -> None:
        self._clock = clock
        self._times_ns = np.zeros(round(_HZ * _ATTEMPT_S) + 16, np.int64)
        self.count = 0

    def on_step(self, step: Step) -> None:
        del step
        self._times_ns[self.count] = self._clock.now_ns()
        self.count += 1

    def periods_ms(self) -> np.ndarray:
        """Return float [N], without the first few steps of the attempt, and without the last, which follows the
        braking."""
        return np.diff(self._times_ns[10 : self.count - 1]) * 1e-6


def make_policy() -> Policy:
    """A random built-in policy for the mock robot; the time of a network does not depend on its weights."""
    import torch

    from vla_rl.core.normalization import Statistics
    from vla_rl.core.policy_spec import PolicySpec
    from vla_rl.policies.flow_vla import FlowVLA, FlowVLAConfig, FlowVLAPolicy

    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    vectors = random.uniform(-1, 1, (64, _ROBOT.joints)).astype(np.float32)
    spec = PolicySpec("mock", _ROBOT.cameras, (64, 64), _ROBOT.joints, _ROBOT.joints, _HZ)
    model = FlowVLA(FlowVLAConfig(), spec, Statistics.from_arrays(vectors, vectors))
    return FlowVLAPolicy(model, steps=_FLOW_STEPS)


def measure(cells: Cells, seconds: float) -> None:
    """One cell: 99th percentiles of period and jitter of both, the jitter's 99.9th, and their ratios."""
    if "jitter" in cells:
        return
    pairs = max(round(seconds / _ATTEMPT_S), 1)
    layout = MessageLayout((("front", 64, 64),), _ROBOT.joints, _ROBOT.joints)
    with ProcessPlanner(make_policy, layout, _EXECUTION) as process:
        planners = {"process": process, "thread": ThreadPlanner(make_policy())}
        periods: dict[str, list[np.ndarray]] = {name: [] for name in planners}
        for pair in range(pairs + 1):
            for name, planner in planners.items():
                periods[name].append(_attempt_ms(planner, pair))
    values: dict[str, Any] = {"kind": "jitter", "attempts": pairs, "control_hz": _HZ}
    for name, attempts in periods.items():
        own = np.concatenate(attempts[1:])  # the first attempt warms up
        values[f"period_p99_ms_{name}"] = float(np.percentile(own, 99))
        jitter = np.abs(own - 1e3 / _HZ)
        values[f"jitter_p99_ms_{name}"] = float(np.percentile(jitter, 99))
        values[f"jitter_p999_ms_{name}"] = float(np.percentile(jitter, 99.9))
    for figure in ("period_p99", "jitter_p99", "jitter_p999"):
        values[f"{figure}_process_vs_thread"] = values[f"{figure}_ms_process"] / values[f"{figure}_ms_thread"]
    cells.write("jitter", values)


def _attempt_ms(planner: Planner, seed: int) -> np.ndarray:
    """The periods of one attempt."""
    clock = MonotonicClock()
    robot = MockRobot(_ROBOT, clock=clock)
    limits = load_config(RobotLimits, CONFIGS / "robots" / "mock.yaml")
    periods = Periods(clock)
    with realtime(RealtimeConfig()):
        run_episode(robot, Executor(planner, _EXECUTION), SafetyGate(limits, _HZ), seed=seed, subscribers=[periods])
    return periods.periods_ms()
