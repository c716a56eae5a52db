"""An executor on a virtual clock, driven tick by tick, and a policy that remembers what it was asked."""

import numpy as np

from tests.fakes.faulty_attempts import TICK_NS, TickPolicy, observe
from vla_rl.core.clock import VirtualClock
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import TickAction
from vla_rl.execution.strategies import ExecutionConfig, execution_config
from vla_rl.execution.virtual import LatencyConfig, VirtualPlanner


def drive(policy: Policy, config: ExecutionConfig, latency: LatencyConfig, ticks: int) -> list[TickAction]:
    clock = VirtualClock()
    executor = Executor(VirtualPlanner(policy, clock, 20.0, latency), config)
    executor.reset(0, np.zeros(1, np.float32))
    actions = []
    for tick in range(ticks):
        clock.sleep_until_ns(tick * TICK_NS)
        actions.append(executor.propose(observe(tick), tick * TICK_NS))
        executor.sent(actions[-1].action)
    return actions


class RecordingPolicy(TickPolicy):
    """Remembers what it was asked."""

    def reset(self, seed: int) -> None:
        self.calls: list[tuple[Observation, Float32Array | None]] = []

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        self.calls.append((observation, committed))
        return super().infer(observation, committed)


def check_committed_prefix(strategy: str, length: int) -> None:
    """Under a delay of three ticks a strategy commits ``length`` actions, of which the first three are executed."""
    policy = RecordingPolicy()
    config = execution_config(strategy, expected_delay_ticks=3, max_prefix_ticks=5)
    actions = drive(policy, config, LatencyConfig(typical=3.0), 100)
    executed = np.array([action.action[0] for action in actions])
    assert len(policy.calls) > 10
    assert policy.calls[0][1] is None, "at a cold start nothing is committed"
    for observation, committed in policy.calls[1:-1]:
        assert committed is not None
        assert len(committed) == length
        np.testing.assert_array_equal(committed[:3, 0], executed[observation.tick : observation.tick + 3])
