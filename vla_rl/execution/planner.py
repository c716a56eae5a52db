"""The planner that computes in the control process, at once: for training in simulation, where time stands still
during inference."""

from vla_rl.core.protocols import Policy
from vla_rl.execution.plan import Inference, Plan, PlanRequest


class InlinePlanner:
    """Answers every request before the call returns. Latency is 0 ticks by definition; `virtual.VirtualPlanner` adds
    one."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._answers: list[Plan] = []

    def reset(self, seed: int) -> None:
        self._answers = []
        self._policy.reset(seed)

    def request(self, request: PlanRequest, inference: Inference) -> None:
        self._answers.append(Plan(request, inference.infer(self._policy, request)))

    def poll(self) -> list[Plan]:
        answers, self._answers = self._answers, []
        return answers

    def wait(self) -> int:
        return 0
