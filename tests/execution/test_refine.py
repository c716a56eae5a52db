"""A slow plan that is refined as it enters, at what is seen then."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from test_inference_process import LAYOUT, await_plans, make_request
from toys import ReachPolicy

from vla_rl.core.clock import VirtualClock
from vla_rl.core.protocols import RefiningPolicy
from vla_rl.core.types import ActionChunk, Observation, Source
from vla_rl.execution import inference_process
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import ProcessPlanner
from vla_rl.execution.mailbox import Mailbox
from vla_rl.execution.plan import InlinePlanner, Plan, Planner
from vla_rl.execution.strategies import execution_config, make_strategy
from vla_rl.execution.virtual import LatencyConfig, VirtualPlanner

HZ, H = 20.0, 12


class Refining(ReachPolicy):
    """Plans (tick of the plan, 0) for each of its actions. Refined, the second number is the state seen then, plus a
    hundredth of the index.
    """

    refines = True

    def plan(self, observation: Observation) -> ActionChunk:
        return ActionChunk(np.tile(np.float32([observation.tick, 0]), (H, 1)), observation.tick, 0, 3)

    def refine(self, chunk: ActionChunk, observation: Observation, index: int) -> ActionChunk:
        if observation.state[3] == 1:
            raise ValueError("the residual is gone")
        if observation.state[3] == 2:
            time.sleep(1.0)
        assert not chunk.actions[:, 1].any(), "refined once"
        return replace(chunk, actions=chunk.actions + np.float32([0, observation.state[0] + index / 100]))

    def infer(self, observation: Observation, committed: object = None) -> ActionChunk:
        return self.refine(self.plan(observation), observation, 0)


def seen(tick: int, command: int = 0) -> Observation:
    """An observation whose state is its tick."""
    request = make_request(0, command, tick)
    return replace(request.observation, state=np.float32([tick, 0, 0, command]))


def acted(
    strategy: str, make: Callable[[VirtualClock], Planner], ticks: int = 20, **options: Any
) -> tuple[list[int], np.ndarray]:
    """Ticks that came from a chunk, and the actions of all."""
    clock, found, played = VirtualClock(), [], []
    executor = Executor(make(clock), execution_config(strategy, execute_ticks=6, **options))
    executor.reset(0, np.zeros(2, np.float32))
    for tick in range(ticks):
        action = executor.propose(seen(tick), clock.now_ns())
        executor.sent(action.action)
        found.append(action.action)
        if action.source == Source.POLICY:
            played.append(tick)
        clock.sleep_until_ns(clock.now_ns() + round(1e9 / HZ))
    return played, np.array(found)


def delayed(ticks: int, **fields: Any) -> Callable[[VirtualClock], Planner]:
    return lambda clock: VirtualPlanner(Refining(), clock, HZ, LatencyConfig(typical=ticks, **fields))


def test_the_protocol_is_one_that_a_class_can_have() -> None:
    assert isinstance(Refining(), RefiningPolicy)
    assert not isinstance(ReachPolicy(), RefiningPolicy)


def test_a_chunk_is_refined_with_the_newest_observation_at_the_action_that_is_next() -> None:
    played, actions = acted("naive", delayed(4))
    assert played == [*range(4, 20)]
    # Asked at 0, 6 and 12. The robot rested before the first one, so nothing of it is consumed; four of the others are.
    np.testing.assert_allclose(actions[4:10], np.tile([0, 4], (6, 1)))
    np.testing.assert_allclose(actions[10:16], np.tile([6, 10.04], (6, 1)))
    np.testing.assert_allclose(actions[16:20], np.tile([12, 16.04], (4, 1)))


def test_without_delay_it_is_what_the_policy_infers() -> None:
    played, actions = acted("naive", lambda _: InlinePlanner(Refining()))
    assert played == [*range(20)]
    np.testing.assert_allclose(actions[:12], np.repeat([[0, 0], [6, 6]], 6, 0))


def test_under_another_strategy_a_residual_acts_on_the_plan() -> None:
    _, actions = acted("temporal_ensembling", delayed(4), ensembling_decay=100.0)
    assert set(np.round(actions[4:, 1] - actions[4:, 0], 4)) == {0.0}


def test_a_plan_that_was_given_up_is_not_refined() -> None:
    policy = Refining()
    planner = InlinePlanner(policy)
    executor = Executor(planner, execution_config("naive"))
    executor.reset(0, np.zeros(2, np.float32))
    executor._ask(seen(0))
    executor.restart()
    (plan,) = planner.poll()
    planner._answers.append(plan)
    dropped: list[Plan] = []
    planner.drop = dropped.append  # type: ignore[method-assign]
    assert executor.propose(seen(3), 0).action[0] == 3, "the plan of tick 0 is from before the restart"
    assert dropped == [plan], "inference need not wait for it"


@pytest.fixture(scope="module")
def planner() -> Iterator[ProcessPlanner]:
    with ProcessPlanner(Refining, replace(LAYOUT), execution_config("naive")) as running:
        yield running


STRATEGY = make_strategy(execution_config("naive"))


def test_it_is_refined_in_the_other_process(planner: ProcessPlanner) -> None:
    planner.reset(1)
    planner.request(make_request(0, tick=7), STRATEGY)
    (plan,) = await_plans(planner)
    assert not plan.final
    assert plan.chunk is not None
    np.testing.assert_array_equal(plan.chunk.actions, np.tile([7, 0], (H, 1)))
    planner.refine(plan, seen(9), 2)
    (done,) = await_plans(planner)
    assert done.final
    assert done.request is plan.request
    assert done.chunk is not None
    np.testing.assert_allclose(done.chunk.actions, np.tile([7, 9.02], (H, 1)))
    assert (done.chunk.start_tick, done.chunk.policy_version) == (7, 3)


def test_a_residual_that_fails_gives_no_chunk_and_the_next_plan_comes(planner: ProcessPlanner) -> None:
    planner.reset(1)
    planner.request(make_request(0, tick=7), STRATEGY)
    (plan,) = await_plans(planner)
    planner.refine(plan, seen(9, command=1), 2)
    (failed,) = await_plans(planner)
    assert (failed.chunk, failed.final) == (None, True)
    assert "the residual is gone" in str(planner.last_error)
    planner.request(make_request(1, tick=10), STRATEGY)
    (plan,) = await_plans(planner)
    planner.refine(plan, seen(11), 1)
    (done,) = await_plans(planner)
    assert done.chunk is not None


def test_a_plan_of_an_earlier_attempt_is_not_refined_in_a_later_one(planner: ProcessPlanner) -> None:
    planner.reset(1)
    planner.request(make_request(0, tick=7), STRATEGY)
    (plan,) = await_plans(planner)
    planner.reset(2)
    planner._pending[0] = plan.request  # a request of the same number is in flight
    planner.refine(plan, seen(9), 2)
    assert await_plans(planner, timeout_s=0.7) == []
    planner.request(make_request(1, tick=10), STRATEGY)
    (plan,) = await_plans(planner)
    planner.refine(plan, seen(11), 1)
    (done,) = await_plans(planner)
    assert done.chunk is not None
    np.testing.assert_allclose(done.chunk.actions, np.tile([10, 11.01], (H, 1)))


class Slow(Refining):
    """Plans for so long that the next request comes before the plan."""

    def plan(self, observation: Observation) -> ActionChunk:
        time.sleep(0.3)
        return super().plan(observation)


def test_a_plan_is_refined_before_the_next_request_is_planned() -> None:
    """Otherwise a refinement would wait for a whole plan, and a slow policy would never have a chunk that is new."""
    with ProcessPlanner(Slow, LAYOUT, execution_config("naive")) as planner:
        planner.reset(1)
        planner.request(make_request(0, tick=0), STRATEGY)
        time.sleep(0.1)
        planner.request(make_request(1, tick=16), STRATEGY)  # the first one was given up
        (plan,) = await_plans(planner)
        planner.refine(plan, seen(17), 5)
        (done,) = await_plans(planner)
        assert (done.request.request_id, done.final) == (0, True), "not behind the second plan"
        (second,) = await_plans(planner)
        assert (second.request.request_id, second.final) == (1, False), "and the second request is not lost"


def test_inference_does_not_wait_for_what_is_seen_once_its_plan_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference_process, "_REFINEMENT_S", 60)
    planner = ProcessPlanner(Refining, LAYOUT, execution_config("naive"))  # not started
    planner._refinements, planner._seen = Mailbox(LAYOUT.request_fields()), multiprocessing.Semaphore(0)
    reader = Mailbox(LAYOUT.request_fields(), planner._refinements.name)
    message = {"epoch": np.int64(0), "request_id": np.int64(4)}
    chunk = ActionChunk(np.zeros((H, 2), np.float32), 0, 4, 3)
    try:
        planner.refine(Plan(make_request(3), chunk, final=False), seen(9), 2)  # of a plan before
        planner.drop(Plan(make_request(4), chunk, final=False))
        assert inference_process._await_refinement(reader, planner._seen, message) is None
        planner.refine(Plan(make_request(4), chunk, final=False), seen(9), 2)
        found = inference_process._await_refinement(reader, planner._seen, message)
        assert found is not None
        assert found["enters_at"] == 2
    finally:
        reader.close()
        planner._refinements.close()


def test_a_robot_goes_on_when_inference_dies_between_plan_and_refinement() -> None:
    with ProcessPlanner(Refining, LAYOUT, execution_config("naive")) as planner:
        executor = Executor(planner, execution_config("naive", execute_ticks=6, hold_ticks=5))
        executor.reset(0, np.zeros(2, np.float32))
        tick, deadline_s = 0, time.monotonic() + 30
        while executor.propose(seen(tick), 0).source != Source.POLICY:
            time.sleep(0.005)
            assert time.monotonic() < deadline_s
        tick += 6
        executor.propose(seen(tick), 0)  # asks
        while not (plans := planner.poll()):
            time.sleep(0.002)
            assert time.monotonic() < deadline_s
        assert not plans[0].final
        os.kill(planner._process.pid or 0, signal.SIGKILL)
        executor._planner.refine(plans[0], seen(tick), 0)
        sources, stops = [], []
        for later in range(tick + 1, tick + 20):
            action = executor.propose(seen(later), 0)
            sources.append(action.source)
            stops.append(action.stop)
        assert sources[0] == Source.POLICY, "the rest of the chunk before"
        assert sources[-1] == Source.HOLD
        assert stops[-1], "and a stop after too long"
