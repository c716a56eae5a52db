"""The tick clock: which action is executed at which tick, whatever the latencies (spec tests 1, 2, 10)."""

import numpy as np
import pytest

from tests.fakes.faulty_attempts import (
    CHAOS,
    HASTY,
    HORIZON,
    REST,
    TICK_NS,
    SilentPlanner,
    TickPolicy,
    drive,
    misaligned,
    observe,
)
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.types import Source
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import InlinePlanner
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.execution.virtual import FaultyLatencyConfig, Latency, LatencyConfig, VirtualPlanner


def assert_aligned(columns: dict[str, np.ndarray]) -> None:
    assert not misaligned(columns).any()


@pytest.mark.parametrize("column", ["tick", "value", "chunk_id", "index", "observed"])
def test_a_single_wrong_tick_is_found(column: str) -> None:
    columns = drive(HASTY, CHAOS, 2000)
    assert_aligned(columns)
    row = int(np.flatnonzero(columns["planned"])[-5])
    columns[column][row] += 1 if column != "chunk_id" else -1000
    assert misaligned(columns).any()


@pytest.mark.slow
def test_every_action_is_executed_at_its_own_tick_in_a_million_ticks_of_chaos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_rl.execution.executor.REQUEST_TIMEOUT_TICKS", 6)
    columns = drive(HASTY, CHAOS, 1_000_000)
    assert_aligned(columns)
    planned = columns["planned"]
    assert 0.9 < planned.mean() < 1.0, "the chaos should starve the executor sometimes, and not for long"
    reordered = np.diff(columns["chunk_id"][planned]) > 1
    assert reordered.any(), "some chunks should have been overtaken or dropped"


@pytest.mark.parametrize("delay", range(9))
def test_a_fixed_delay_is_entered_at_the_ticks_that_passed(delay: int) -> None:
    columns = drive(ExecutionConfig(execute_ticks=8), LatencyConfig(typical=delay), 400)
    assert_aligned(columns)
    assert columns["planned"][delay:].all()
    entered = np.flatnonzero(np.diff(columns["chunk_id"]) > 0)[2:] + 1
    assert (columns["index"][entered] == delay).all()
    np.testing.assert_array_equal(columns["value"][3 * HORIZON :], columns["tick"][3 * HORIZON :])


def test_cold_start_consumes_nothing_and_the_estimate_forgets_it() -> None:
    warm_up_ticks = 14  # 0.7 s at 20 Hz
    latency = FaultyLatencyConfig(typical=2.0, warm_up=float(warm_up_ticks - 2))
    columns = drive(ExecutionConfig(), latency, 100)
    assert not columns["planned"][:warm_up_ticks].any()
    assert (columns["value"][:warm_up_ticks] == REST[0]).all()
    assert columns["planned"][warm_up_ticks:].all()
    assert columns["index"][warm_up_ticks] == 0
    assert_aligned(columns)


def test_the_delay_estimate_recovers_within_its_window() -> None:
    clock = VirtualClock()
    planner = VirtualPlanner(TickPolicy(), clock, 20.0, FaultyLatencyConfig(typical=2.0, warm_up=12.0))
    executor = Executor(planner, ExecutionConfig(expected_delay_ticks=1))
    executor.reset(0, REST)
    estimates = []
    for tick in range(60):
        clock.sleep_until_ns(tick * TICK_NS)
        executor.propose(observe(tick), tick * TICK_NS)
        estimates.append(executor.delay.ticks)
    assert set(estimates) == {1, 2}, "the expectation, then the true delay; never the warm-up"
    executor.delay.add(9)
    assert executor.delay.ticks == 9
    for _ in range(10):
        executor.delay.add(2)
    assert executor.delay.ticks == 2


def test_latency_within_the_budget_never_starves() -> None:
    """A jittered delay of at most H - s ticks leaves no tick without a planned action."""
    latency = LatencyConfig(Latency.RECORDED, samples=(1.0, 2.0, 2.5, 3.0, 4.0, 7.0))
    columns = drive(ExecutionConfig(execute_ticks=8), latency, 20_000)
    assert columns["planned"][8:].all()


def test_latency_beyond_the_budget_holds_the_last_command_and_stops_in_time() -> None:
    config = ExecutionConfig(execute_ticks=8, hold_ticks=5)
    executor = Executor(SilentPlanner(InlinePlanner(TickPolicy()), answers=1), config)
    executor.reset(0, REST)
    actions = []
    for tick in range(HORIZON + 10):
        actions.append(executor.propose(observe(tick), tick * TICK_NS))
        executor.sent(actions[-1].action)
    assert [action.action[0] for action in actions] == [*range(HORIZON), *[HORIZON - 1] * 10]
    assert [action.source for action in actions[HORIZON:]] == [Source.HOLD] * 10
    assert [action.stop for action in actions] == [False] * (HORIZON + 5) + [True] * 5


def test_a_chunk_of_another_robot_is_refused_in_one_line() -> None:
    executor = Executor(VirtualPlanner(TickPolicy(), VirtualClock(), 20.0, LatencyConfig()))
    executor.reset(0, np.zeros(3, np.float32))
    with pytest.raises(UserError, match=r"shape \[16, 1\]; this robot takes \[H >= 1, 3\]"):
        executor.propose(observe(0), 0)
