"""What a starved executor sends: a target is repeated, a step becomes 0."""

import numpy as np

from vla_rl.core.types import ActionChunk, Observation, Source
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import Inference, Plan, Planner, PlanRequest
from vla_rl.execution.strategies import ExecutionConfig

ACTION = np.float32([0.5, 0.2])


class OneAnswer(Planner):
    """Answers the first request with two actions, and never again."""

    def reset(self, seed: int) -> None:
        self._answers: list[Plan] | None = None

    def request(self, request: PlanRequest, inference: Inference) -> None:
        if self._answers is None:
            chunk = ActionChunk(np.tile(ACTION, (2, 1)), request.observation.tick, 0, 0)
            self._answers = [Plan(request, chunk)]

    def poll(self) -> list[Plan]:
        answers, self._answers = self._answers or [], [] if self._answers is not None else None
        return answers

    def wait(self) -> int:
        return 0


class NoAnswer(OneAnswer):
    """Has died before the first answer."""

    def request(self, request: PlanRequest, inference: Inference) -> None: ...


class EverySecond(OneAnswer):
    """Fails for every second request, the first one among them."""

    asked = 0

    def request(self, request: PlanRequest, inference: Inference) -> None:
        self.asked += 1
        chunk = ActionChunk(np.tile(ACTION, (6, 1)), request.observation.tick, 0, 0)
        self._answers = [Plan(request, None if self.asked % 2 else chunk)]


def test_a_policy_that_failed_is_asked_again_at_once() -> None:
    """Not after `REQUEST_TIMEOUT_TICKS`, as one that is silent: the robot would hold for most of that time."""
    planner = EverySecond()
    executor = Executor(planner, ExecutionConfig(strategy="naive", execute_ticks=4))
    executor.reset(0, np.zeros(2, np.float32))
    state = np.zeros(2, np.float32)
    waited = 0
    while not executor.ready(lambda: Observation({}, state, "", 0), 0):
        waited += 1
        assert waited < 3
    sources = []
    for tick in range(20):
        action = executor.propose(Observation({}, state, "", tick), tick)
        executor.sent(action.action)
        sources.append(action.source)
    assert {*sources} == {Source.POLICY}


class Kept(EverySecond):
    """Keeps what it was asked."""

    asked = 1

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.past: list[list[int]] = []

    def request(self, request: PlanRequest, inference: Inference) -> None:
        self.asked = 1
        super().request(request, inference)
        self.past.append([*(each.tick for each in request.observation.past), request.observation.tick])


def test_a_policy_of_several_observations_gets_those_of_the_ticks_before() -> None:
    """Not those of the requests before; and none of before a person drove, or of another attempt."""
    planner, state = Kept(), np.zeros(2, np.float32)
    executor = Executor(planner, ExecutionConfig(strategy="naive", execute_ticks=4), n_obs_steps=3)

    def drive(ticks: range) -> None:
        for tick in ticks:
            executor.sent(executor.propose(Observation({}, state, "", tick), tick).action)

    for _ in range(2):
        executor.reset(0, np.zeros(2, np.float32))
        drive(range(9))
        assert planner.past == [[0, 0, 0], [2, 3, 4], [6, 7, 8]]
        executor.restart()
        drive(range(20, 25))
        assert planner.past[3:] == [[20, 20, 20], [22, 23, 24]]


def test_an_observation_from_before_the_first_tick_is_no_past() -> None:
    """A robot may wait long for the first chunk, and be asked several times: what it saw then is out of date."""
    planner, state = Kept(), np.zeros(2, np.float32)
    executor = Executor(planner, ExecutionConfig(strategy="naive"), n_obs_steps=2)
    executor.reset(0, np.zeros(2, np.float32))
    for tick in (-30, -20):
        executor._asked_id = -1  # the answer was an error
        executor.ready(lambda tick=tick: Observation({}, state, "", tick), 0)  # type: ignore[misc]
    assert planner.past == [[-30, -30], [-20, -20]]


def test_a_hold_repeats_targets_and_stops_steps() -> None:
    executor = Executor(OneAnswer(), ExecutionConfig(strategy="naive", delta_dims=(1,)))
    executor.reset(0, np.zeros(2, np.float32))
    sent = []
    for tick in range(4):
        action = executor.propose(Observation({}, np.zeros(2, np.float32), "", tick), tick)
        executor.sent(action.action)
        sent.append((action.source, action.action.tolist()))
    assert sent[:2] == [(Source.POLICY, ACTION.tolist())] * 2
    assert sent[2:] == [(Source.HOLD, [0.5, 0.0])] * 2


def ticks_to_the_stop(executor: Executor, first_tick: int) -> int:
    """Ticks from this one on until the executor asks for a stop."""
    for tick in range(first_tick, 1000):
        if executor.propose(Observation({}, np.zeros(2, np.float32), "", tick), tick).stop:
            return tick - first_tick
    raise AssertionError("it never stopped")


def test_a_policy_that_falls_silent_after_a_hand_back_is_not_warming_up() -> None:
    config = ExecutionConfig(strategy="naive", hold_ticks=20, cold_start_ticks=200)
    executor = Executor(OneAnswer(), config)
    executor.reset(0, np.zeros(2, np.float32))
    assert executor.propose(Observation({}, np.zeros(2, np.float32), "", 0), 0).source is Source.POLICY
    executor.restart()
    assert ticks_to_the_stop(executor, 1) == 20
    cold = Executor(NoAnswer(), config)
    cold.reset(0, np.zeros(2, np.float32))
    assert ticks_to_the_stop(cold, 0) == 200
    cold.restart()
    assert ticks_to_the_stop(cold, 201) == 200, "nothing has been planned yet in this attempt"
