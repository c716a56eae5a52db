"""training_time_prefix: the policy was trained to go on from committed actions (training-time RTC, 2512.05964)."""

from typing import ClassVar, override

from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk
from vla_rl.execution.plan import PlanRequest
from vla_rl.execution.strategies.base import ChunkStrategy, ExecutionConfig
from vla_rl.execution.strategies.xiaomi import PrefixConfig


class TrainingTimePrefix(ChunkStrategy):
    """A chunk begins with exactly the actions that are executed while it is computed, up to the trained length."""

    config: PrefixConfig
    config_class: ClassVar[type[ExecutionConfig]] = PrefixConfig
    provides: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[str]] = frozenset({"prefix"})
    preference: ClassVar[int] = 30

    @override
    def infer(self, policy: Policy, request: PlanRequest) -> ActionChunk:
        committed = request.committed
        return policy.infer(
            request.observation, None if committed is None else committed[: self.config.max_prefix_ticks]
        )
