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
