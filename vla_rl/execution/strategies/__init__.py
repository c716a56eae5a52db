"""Execution strategies: one file each, one protocol (`base.Strategy`), chosen by name in the config.

A user's strategy is a class with the constructor of `ChunkStrategy` and a ``config_class``; see
`vla_rl.core.registry` for how it gets a name.
"""

from typing import Any

from vla_rl.core.errors import ConfigError
from vla_rl.core.registry import find
from vla_rl.execution.strategies.base import ActionCorrector, ChunkStrategy, ExecutionConfig, Strategy
from vla_rl.execution.strategies.rtc import GuidedPolicy


def find_strategy(name: str) -> type[ChunkStrategy]:
    """Return the class of a strategy.

    Raises:
        ConfigError: for an unknown name.

    Example:
        >>> find_strategy("rtc").__name__
        'RTC'
    """
    found: type[ChunkStrategy] = find("strategies", name)
    return found


def execution_config(strategy: str, **options: Any) -> ExecutionConfig:
    """Return the section of a strategy, of the class that it takes.

    Raises:
        ConfigError: for an unknown strategy.

    Example:
        >>> execution_config("rtc", execute_ticks=4).execute_ticks
        4
    """
    return find_strategy(strategy).config_class(strategy=strategy, **options)


def make_strategy(config: ExecutionConfig, corrector: ActionCorrector | None = None) -> Strategy:
    """Return the strategy that the config names, with the corrector that it takes.

    Raises:
        ConfigError: For an unknown name, a config of another class than `execution_config` gives, or a corrector too
            many or too few.

    Example:
        >>> type(make_strategy(execution_config("rtc"))).__name__
        'RTC'
    """
    found = find_strategy(config.strategy)
    if (corrector is not None) != ("corrector" in found.requires):
        need = "needs a corrector (a residual head)" if corrector is None else "takes no corrector; use 'a2c2'"
        raise ConfigError(f"execution strategy {config.strategy!r} {need}")
    return found(config, corrector)


def make_planning_strategy(config: ExecutionConfig) -> Strategy:
    """Return the strategy of the inference process. It only plans (`Strategy.infer`) and needs no corrector.

    Example:
        >>> type(make_planning_strategy(execution_config("a2c2"))).__name__
        'A2C2'
    """
    return find_strategy(config.strategy)(config)


__all__ = [
    "ActionCorrector",
    "ChunkStrategy",
    "ExecutionConfig",
    "GuidedPolicy",
    "Strategy",
    "execution_config",
    "find_strategy",
    "make_planning_strategy",
    "make_strategy",
]
