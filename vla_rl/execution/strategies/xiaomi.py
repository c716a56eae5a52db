"""xiaomi: a committed prefix of fixed length (Xiaomi-Robotics-0, 2602.12684).

With t_e ticks of the old chunk executed, the policy is conditioned on old[t_e : t_e + dtc] and the new chunk is entered
at new[dt_inf], the ticks that inference really took. That is continuous as long as dtc >= dt_inf.
"""

from typing import ClassVar, override

from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk
from vla_rl.execution.plan import PlanRequest
from vla_rl.execution.strategies.base import ActionCorrector, ChunkStrategy, ExecutionConfig
from vla_rl.execution.strategies.training_time_prefix import PrefixConfig


class Xiaomi(ChunkStrategy):
    """dtc is ``max_prefix_ticks``, the longest prefix of training, whatever the delay.

    Raises:
        ConfigError: if the expected delay is longer than the prefix.
    """

    config: PrefixConfig
    config_class: ClassVar[type[ExecutionConfig]] = PrefixConfig
    keeps_plans: ClassVar[bool] = False

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
