"""training_time_prefix: the policy was trained to go on from committed actions (training-time RTC, 2512.05964)."""

from dataclasses import dataclass
from typing import ClassVar, override

from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk
from vla_rl.execution.plan import PlanRequest
from vla_rl.execution.strategies.base import ChunkStrategy, ExecutionConfig


@dataclass(frozen=True)
class PrefixConfig(ExecutionConfig):
    """Options of the strategies that give the policy a committed prefix.

    Attributes:
        max_prefix_ticks: the longest prefix that the policy was trained with; ``training_time_prefix`` gives at most
            so much, ``xiaomi`` always exactly so much.
    """

    max_prefix_ticks: int = 6

    @override
    def check_fit(self, horizon: int, prefix_max: int = 0, delay_ticks: float = 0.0) -> None:
        super().check_fit(horizon, prefix_max, delay_ticks)
        if self.max_prefix_ticks > prefix_max:
            raise ConfigError(
                f"execution.max_prefix_ticks is {self.max_prefix_ticks}, and the policy was trained with prefixes of "
                f"at most {prefix_max}: train with policy.prefix_max={self.max_prefix_ticks}, set fewer, or choose "
                "another execution.strategy"
            )


class TrainingTimePrefix(ChunkStrategy):
    """A chunk begins with exactly the actions that are executed while it is computed, up to the trained length."""

    config: PrefixConfig
    config_class: ClassVar[type[ExecutionConfig]] = PrefixConfig
    keeps_plans: ClassVar[bool] = False

    @override
    def infer(self, policy: Policy, request: PlanRequest) -> ActionChunk:
        committed = request.committed
        return policy.infer(
            request.observation, None if committed is None else committed[: self.config.max_prefix_ticks]
        )
