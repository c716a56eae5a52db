"""xiaomi: a committed prefix of fixed length (Xiaomi-Robotics-0, 2602.12684).

With t_e ticks of the old chunk executed, the policy is conditioned on old[t_e : t_e + dtc]. The new chunk is entered at
new[dt_inf], the real ticks of inference. That is continuous as long as dtc >= dt_inf.
"""

from dataclasses import dataclass
from typing import ClassVar, override

from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk
from vla_rl.execution.plan import PlanRequest
from vla_rl.execution.strategies.base import ActionCorrector, ChunkStrategy, ExecutionConfig


@dataclass(frozen=True)
class PrefixConfig(ExecutionConfig):
    """Options of the strategies that give the policy a committed prefix.

    Attributes:
        max_prefix_ticks: the longest prefix that the policy was trained with; ``xiaomi`` gives exactly so much.
    """

    max_prefix_ticks: int = 6

    @override
    def check_fit(self, horizon: int, prefix_max: int = 0, delay_ticks: float = 0.0) -> None:
        super().check_fit(horizon, prefix_max, delay_ticks)
        if self.max_prefix_ticks > prefix_max:
            raise ConfigError(
                f"execution.max_prefix_ticks is {self.max_prefix_ticks}, and the policy was trained with prefixes of "
                f"at most {prefix_max}. Train with policy.prefix_max={self.max_prefix_ticks}, set fewer, or use "
                "another execution.strategy"
            )


class Xiaomi(ChunkStrategy):
    """dtc is ``max_prefix_ticks``, the longest prefix of training, whatever the delay.

    Raises:
        ConfigError: if the expected delay is longer than the prefix.
    """

    config: PrefixConfig
    config_class: ClassVar[type[ExecutionConfig]] = PrefixConfig
    provides: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[frozenset[str]] = frozenset({"xiaomi_prefix"})
    preference: ClassVar[int] = 31

    def __init__(self, config: PrefixConfig, corrector: ActionCorrector | None = None) -> None:
        super().__init__(config, corrector)
        if config.expected_delay_ticks > config.max_prefix_ticks:
            raise ConfigError(
                f"execution.max_prefix_ticks is {config.max_prefix_ticks}, less than the expected delay of "
                f"{config.expected_delay_ticks} ticks; train with a longer prefix or make inference faster"
            )

    @override
    def infer(self, policy: Policy, request: PlanRequest) -> ActionChunk:
        prefix = request.scheduled[: self.config.max_prefix_ticks]
        return policy.infer(request.observation, prefix if len(prefix) else None)
