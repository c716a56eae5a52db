"""The protocol of execution strategies, their configuration, and the behavior that most of them share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, override

from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.core.validation import check_ranges
from vla_rl.execution.plan import Inference, PlanRequest, refines
from vla_rl.execution.schedule import Schedule, ScheduledChunk

type PlannedAction = tuple[Float32Array, ScheduledChunk]
"""The action of a tick, float32 [A], and its chunk."""


@dataclass(frozen=True)
class ExecutionConfig:
    """How chunks are executed. Strategies that have options of their own extend it.

    Attributes:
        strategy: name of an execution strategy.
        execute_ticks: s, ticks between two requests (>= 1). With chunks of H actions and a delay of d ticks,
            d <= s <= H - d keeps the robot fed.
        hold_ticks: how long the last command is held when no chunk has an action, before the attempt is stopped.
        cold_start_ticks: the same, before the first chunk of an attempt: a policy may have to warm up.
        expected_delay_ticks: the delay estimate until one has been measured in the attempt.
        discrete_dims: action dimensions that are never averaged or extrapolated (grippers). Where none is named, the
            rollouts take those of the policy, or of the robot's gate.
        delta_dims: action dimensions that are steps, not targets: a hold sends 0 there.

    Raises:
        ConfigError: for numbers that cannot work.
    """

    strategy: str = "naive"
    execute_ticks: int = 8
    hold_ticks: int = 20
    cold_start_ticks: int = 200
    expected_delay_ticks: int = 0
    discrete_dims: tuple[int, ...] = ()
    delta_dims: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        check_ranges(self, "execution", execute_ticks=">= 1", hold_ticks=">= 1", cold_start_ticks=">= 1")

    def check_fit(self, horizon: int, prefix_max: int = 0, delay_ticks: float = 0.0) -> None:
        """Refuse settings that the chunks of a policy cannot meet at the usual delay of inference.

        The chunks have ``horizon`` actions. ``prefix_max`` is the longest committed prefix in training; 0: none.

        Raises:
            ConfigError: with the name of the setting, its value and that of the policy.
        """
        del prefix_max
        if self.execute_ticks > horizon:
            raise ConfigError(
                f"execution.execute_ticks is {self.execute_ticks}, and the policy plans {horizon} actions a chunk; set "
                f"execution.execute_ticks to {horizon} or less"
            )
        self.check_delay(horizon, delay_ticks)

    def check_delay(self, horizon: int, delay_ticks: float) -> None:
        """Refuse a delay after which nothing of a chunk is left. Arguments and errors as in `check_fit`."""
        for name, delay in (("execution.expected_delay_ticks", self.expected_delay_ticks), ("latency", delay_ticks)):
            if delay >= horizon:
                raise ConfigError(
                    f"{name} is {delay:g} ticks, and the policy plans {horizon} actions a chunk: all are over when the "
                    "chunk arrives. Set less, or execution.strategy=sync"
                )


class ActionCorrector(Protocol):
    """A small head that corrects single actions from the newest observation, fast enough for every tick.

    Example:
        >>> class Damped:
        ...     def correct(self, observation, action, chunk_index, discrete_dims):
        ...         return action * 0.9**chunk_index
        >>> Damped().correct(env.observe(), np.ones(2, np.float32), 1, ())
        array([0.9, 0.9], dtype=float32)
    """

    def correct(
        self, observation: Observation, action: Float32Array, chunk_index: int, discrete_dims: Sequence[int]
    ) -> Float32Array:
        """Return the corrected action, float32 [A], of one that is ``chunk_index`` ticks old. ``discrete_dims`` are at
        one of their two levels in it, never in between.
        """
        ...


class Strategy(Inference, Protocol):
    """When to plan, how to use the policy, where an arrived chunk goes, and what is done at a tick.

    Example:
        >>> from vla_rl.execution.strategies import execution_config, make_strategy
        >>> make_strategy(execution_config("naive")).freezes_world
        False
    """

    freezes_world: bool

    def wants_plan(self, schedule: Schedule, tick: int, ticks_since_request: int, delay_ticks: int) -> bool:
        """Return whether to ask now, while no request is in flight. ``delay_ticks`` is the estimated delay."""
        ...

    def place(self, chunk: ScheduledChunk, tick: int) -> ScheduledChunk:
        """Return the chunk's place on the tick clock, given that it arrived at ``tick``."""
        ...

    def act(self, schedule: Schedule, tick: int, observation: Observation) -> PlannedAction | None:
        """Return the action of this tick, float32 [A], and its chunk; None if no chunk has an action."""
        ...


class ChunkStrategy(Strategy):
    """Plans every s ticks, swaps on arrival and executes the newest chunk at the index of the tick. Others differ.

    The corrector is the residual head, for a strategy that requires one; None also where the strategy only plans.
    """

    config_class: ClassVar[type[ExecutionConfig]] = ExecutionConfig
    requires: ClassVar[frozenset[str]] = frozenset()
    """Capabilities that a policy must provide, see `vla_rl.core.capabilities`."""
    provides: ClassVar[frozenset[str]] = frozenset({"unchanged_chunks"})
    """Capabilities for an algorithm. Empty for a strategy that changes the chunks that the policy draws."""
    preference: ClassVar[int] = 0
    """In real time, the supported strategy with the highest preference acts. 0: only if it is named."""
    refines = False

    def __init__(self, config: ExecutionConfig, corrector: ActionCorrector | None = None) -> None:
        if not isinstance(config, self.config_class):
            raise ConfigError(
                f"execution strategy {config.strategy!r} takes a {self.config_class.__name__}, not a "
                f"{type(config).__name__}; make it with execution_config({config.strategy!r})"
            )
        self.config = config
        self.freezes_world = False
        self._corrector = corrector

    @override
    def wants_plan(self, schedule: Schedule, tick: int, ticks_since_request: int, delay_ticks: int) -> bool:
        return ticks_since_request >= self.config.execute_ticks or len(schedule.upcoming(tick)) <= delay_ticks

    @override
    def infer(self, policy: Policy, request: PlanRequest) -> ActionChunk:
        if refines(policy, self):
            return policy.plan(request.observation)
        return policy.infer(request.observation)

    @override
    def place(self, chunk: ScheduledChunk, tick: int) -> ScheduledChunk:
        return chunk

    @override
    def act(self, schedule: Schedule, tick: int, observation: Observation) -> PlannedAction | None:
        chunk = schedule.newest(tick)
        return None if chunk is None else (chunk.actions[tick - chunk.start_tick], chunk)
