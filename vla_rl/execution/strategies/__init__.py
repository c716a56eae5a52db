"""Execution strategies: one file each, one protocol (`base.Strategy`), chosen by name in the config."""

from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.execution.strategies.base import ChunkStrategy, ExecutionConfig, Strategy
from vla_rl.execution.strategies.naive import Naive
from vla_rl.execution.strategies.sync import Sync
from vla_rl.execution.strategies.temporal_ensembling import TemporalEnsembling

STRATEGIES: dict[str, type[ChunkStrategy]] = {
    "sync": Sync,
    "naive": Naive,
    "temporal_ensembling": TemporalEnsembling,
}


def make_strategy(config: ExecutionConfig) -> Strategy:
    """The strategy that the config names.

    Raises:
        ConfigError: for an unknown name, or numbers that cannot work.
    """
    if config.strategy not in STRATEGIES:
        raise ConfigError(f"unknown execution strategy {config.strategy!r}.{did_you_mean(config.strategy, STRATEGIES)}")
    for name in ("execute_ticks", "hold_ticks", "request_timeout_ticks", "delay_window"):
        if getattr(config, name) < 1:
            raise ConfigError(f"execution.{name} is {getattr(config, name)}; it must be at least 1")
    if config.sync_pause not in {"hold", "freeze"}:
        raise ConfigError(
            f"execution.sync_pause is {config.sync_pause!r}.{did_you_mean(config.sync_pause, ['hold', 'freeze'])}"
        )
    return STRATEGIES[config.strategy](config)


__all__ = ["STRATEGIES", "ExecutionConfig", "Strategy", "make_strategy"]
