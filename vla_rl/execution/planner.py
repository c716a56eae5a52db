"""The planner that computes at once, for training in simulation, where time stands still during inference."""

from typing import override

from vla_rl.core.protocols import Policy
from vla_rl.execution.plan import Inference, Plan, Planner, PlanRequest


class InlinePlanner(Planner):
    """Answers every request before the call returns: a delay of 0 ticks. `virtual.VirtualPlanner` adds one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._answers: list[Plan] = []

    @override
    def reset(self, seed: int) -> None:
        self._answers = []
        self._policy.reset(seed)

    @override
    def request(self, request: PlanRequest, inference: Inference) -> None:
        self._answers.append(Plan(request, inference.infer(self._policy, request)))

    @override
    def poll(self) -> list[Plan]:
        answers, self._answers = self._answers, []
        return answers

    @override
    def wait(self) -> int:
        return 0
