"""Execution strategies: one file each, one protocol (`base.Strategy`), chosen by name in the config."""

from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.execution.strategies.a2c2 import A2C2
from vla_rl.execution.strategies.base import ActionCorrector, ChunkStrategy, ExecutionConfig, Strategy
from vla_rl.execution.strategies.naive import Naive
from vla_rl.execution.strategies.rtc import RTC, GuidedPolicy, RTCIdentity
from vla_rl.execution.strategies.sync import Sync
from vla_rl.execution.strategies.temporal_ensembling import TemporalEnsembling
from vla_rl.execution.strategies.training_time_prefix import TrainingTimePrefix
from vla_rl.execution.strategies.vlash import Vlash
from vla_rl.execution.strategies.xiaomi import Xiaomi

STRATEGIES: dict[str, type[ChunkStrategy]] = {
    "sync": Sync,
    "naive": Naive,
    "temporal_ensembling": TemporalEnsembling,
    "rtc": RTC,
    "rtc_identity": RTCIdentity,
    "training_time_prefix": TrainingTimePrefix,
    "xiaomi": Xiaomi,
    "vlash": Vlash,
    "a2c2": A2C2,
}
_AT_LEAST_ONE = ("execute_ticks", "hold_ticks", "cold_start_ticks", "request_timeout_ticks", "delay_window")
_SYNC_PAUSES = ("hold", "freeze")


def make_strategy(config: ExecutionConfig, corrector: ActionCorrector | None = None) -> Strategy:
    """The strategy that the config names.

    Args:
        config: see `ExecutionConfig`.
        corrector: the residual head of ``a2c2``; only that strategy takes one.

    Raises:
        ConfigError: for an unknown name, numbers that cannot work, or a corrector too many or too few.
    """
    if config.strategy not in STRATEGIES:
        raise ConfigError(f"unknown execution strategy {config.strategy!r}.{did_you_mean(config.strategy, STRATEGIES)}")
    for name in _AT_LEAST_ONE:
        if getattr(config, name) < 1:
            raise ConfigError(f"execution.{name} is {getattr(config, name)}; it must be at least 1")
    if config.sync_pause not in _SYNC_PAUSES:
        raise ConfigError(
            f"unknown execution.sync_pause {config.sync_pause!r}.{did_you_mean(config.sync_pause, _SYNC_PAUSES)}"
        )
    if (corrector is not None) != (config.strategy == "a2c2"):
        need = "needs a corrector (a residual head)" if corrector is None else "takes no corrector; use 'a2c2'"
        raise ConfigError(f"execution strategy {config.strategy!r} {need}")
    if corrector is not None:
        return A2C2(config, corrector)
    return STRATEGIES[config.strategy](config)


__all__ = ["STRATEGIES", "ActionCorrector", "ExecutionConfig", "GuidedPolicy", "Strategy", "make_strategy"]
