"""The tick-clock executor: one action per tick, from the chunk and index that the tick says, never waiting."""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import override

import numpy as np

from vla_rl.core.types import ActionChunk, Float32Array, Observation, Source
from vla_rl.execution.plan import (
    NO_CHUNK,
    ActionSource,
    Planner,
    PlanRequest,
    TickAction,
    observed_ns,
)
from vla_rl.execution.schedule import Schedule, ScheduledChunk
from vla_rl.execution.strategies import ActionCorrector, ExecutionConfig, make_strategy

MAX_OUTSTANDING = 8
logger = logging.getLogger(__name__)


REQUEST_TIMEOUT_TICKS = 16  # a request without an answer for so long is given up, and another one is made
_DELAY_WINDOW = 10  # the delay estimate is the largest of the last ones


class DelayEstimator:
    """The inference delay in ticks: the largest of the last few. The first one of an attempt is warm-up, left out.

    The estimate only gives a strategy the number of committed actions. The tick of its arrival decides where a chunk is
    entered.
    """

    def __init__(self, expected_ticks: int) -> None:
        self._delays: deque[int] = deque(maxlen=_DELAY_WINDOW)
        self._expected_ticks = expected_ticks
        self._warm = False

    @property
    def ticks(self) -> int:
        """The estimate; ``expected_ticks`` until something has been measured."""
        return max(self._delays, default=self._expected_ticks)

    def add(self, delay_ticks: int) -> None:
        if self._warm:
            self._delays.append(delay_ticks)
        self._warm = True


class Executor(ActionSource):
    """Turns chunks that arrive whenever they do into exactly one action per tick.

    A chunk planned from the observation of tick t0 that arrives at tick t is entered at index t - t0. Before the
    first action of an attempt the robot rests, so none of a first chunk is consumed and it is entered at index 0.
    Without an action for a tick the last command is held (source HOLD). After `ExecutionConfig.hold_ticks` of that
    (before the first action of an attempt: ``cold_start_ticks``) the executor asks for a stop, and continues to hold.

    Args:
        planner: answers requests.
        config: the strategy and its numbers.
        corrector: the residual head, for a strategy that takes one.
        added_steps: Dimensions in which the policy plans steps and the robot takes targets. Each step is added to the
            last command that passed the gate, beginning at the measured posture.
        n_obs_steps: number of observations, of consecutive ticks, that the policy reads. At the beginning of an attempt
            the first one stands for those before it.
    """

    def __init__(
        self,
        planner: Planner,
        config: ExecutionConfig | None = None,
        corrector: ActionCorrector | None = None,
        added_steps: Sequence[int] = (),
        n_obs_steps: int = 1,
    ) -> None:
        self.config = config or ExecutionConfig()
        self._planner = planner
        self._strategy = make_strategy(self.config, corrector)
        self._delta_dims = list(self.config.delta_dims)
        self._added_steps = list(added_steps)
        self._told = False
        self._recent: deque[Observation] = deque(maxlen=n_obs_steps - 1)
        self._begin(np.empty(0, np.float32))

    @override
    def reset(self, seed: int, rest: Float32Array) -> None:
        self._planner.reset(seed)
        self._begin(rest)

    def _begin(self, rest: Float32Array) -> None:
        self.delay = DelayEstimator(self.config.expected_delay_ticks)
        self._schedule = Schedule(len(rest))
        self._last_sent = rest
        self._next_id = 0
        self._has_acted = False
        self.restart()

    def restart(self) -> None:
        """Forget every plan, also those on their way: for the moment at which the policy gets control back."""
        self._schedule.clear()
        self._recent.clear()
        self._outstanding: dict[int, int] = {}  # request id -> tick of the request
        self._asked_id = -1
        self._asked_tick: int | None = None
        self._first_tick: int | None = None  # the first tick of this epoch that came from a chunk
        self._held_since: int | None = None
        self._planned_ns: int | None = None

    @override
    def ready(self, observe: Callable[[], Observation], now_ns: int) -> bool:
        if self._strategy.freezes_world:  # it waits by itself
            return True
        if self._asked_id not in self._outstanding:
            self._ask(observe())
        self._take_arrivals(observe, 0, now_ns)
        return len(self._schedule.upcoming(0)) > 0

    @override
    def propose(self, observation: Observation, now_ns: int) -> TickAction:
        tick = observation.tick
        frozen_ns = 0
        self._take_arrivals(lambda: observation, tick, now_ns)
        if self._should_ask(tick):
            self._ask(observation)
            if self._strategy.freezes_world:
                frozen_ns = self._planner.wait()
            self._take_arrivals(lambda: observation, tick, now_ns)
        self._recent.append(observation)
        planned = self._strategy.act(self._schedule, tick, observation)
        if planned is None:
            return self.hold(tick, now_ns)
        action, chunk = planned
        if self._added_steps:
            action = action.copy()
            action[self._added_steps] += self._last_sent[self._added_steps]
        if self._first_tick is None:
            self._first_tick = tick
        self._has_acted = True
        self._held_since = None
        self._planned_ns = chunk.planned_ns
        index = tick - chunk.start_tick
        return TickAction(
            tick,
            action,
            action,
            Source.POLICY,
            chunk.chunk_id,
            index,
            chunk.planned_ns,
            chunk.policy_version,
            False,
            frozen_ns,
        )

    def hold(self, tick: int, now_ns: int) -> TickAction:
        """Return the last command again, without its steps. Asks for a stop when it has been held for too long."""
        if self._held_since is None:
            self._held_since = tick
        hold_ticks = self.config.hold_ticks if self._has_acted else self.config.cold_start_ticks
        stop = tick - self._held_since >= hold_ticks
        planned_ns = now_ns if self._planned_ns is None else self._planned_ns
        command = self._last_sent
        if self._delta_dims:
            command = command.copy()
            command[self._delta_dims] = 0
        return TickAction(tick, command, command, Source.HOLD, NO_CHUNK, 0, planned_ns, -1, stop)

    @override
    def sent(self, command: Float32Array) -> None:
        self._last_sent = command

    def _should_ask(self, tick: int) -> bool:
        if self._asked_tick is None:
            return True
        since = tick - self._asked_tick
        if self._asked_id in self._outstanding and since < REQUEST_TIMEOUT_TICKS:
            return False
        return self._strategy.wants_plan(self._schedule, tick, since, self.delay.ticks)

    def _ask(self, observation: Observation) -> None:
        observation = self._with_past(observation)
        scheduled = self._schedule.upcoming(observation.tick)
        delay_ticks = min(self.delay.ticks, len(scheduled))
        request = PlanRequest(self._next_id, observation, scheduled, delay_ticks, self._last_sent)
        self._asked_id, self._asked_tick = request.request_id, observation.tick
        self._next_id += 1
        self._outstanding[request.request_id] = observation.tick
        if len(self._outstanding) > MAX_OUTSTANDING:
            self._outstanding.pop(min(self._outstanding))
        self._planner.request(request, self._strategy)

    def _with_past(self, observation: Observation) -> Observation:
        first = self._recent[0] if self._recent else observation
        missing = (self._recent.maxlen or 0) - len(self._recent)
        return replace(observation, past=(*(first,) * missing, *self._recent))

    def _take_arrivals(self, observe: Callable[[], Observation], tick: int, now_ns: int) -> None:
        while plans := self._planner.poll():
            for plan in plans:
                if plan.final or plan.chunk is None:
                    asked_tick = self._outstanding.pop(plan.request.request_id, None)
                    if plan.chunk is not None:
                        self._accept(plan.request, plan.chunk, asked_tick, tick, now_ns)
                elif plan.request.request_id in self._outstanding:
                    start_tick = self._start_tick(plan.chunk, self._outstanding[plan.request.request_id], tick)
                    self._planner.refine(plan, self._with_past(observe()), max(tick - start_tick, 0))
                else:  # from before a restart, or given up long ago
                    self._planner.drop(plan)

    def _accept(
        self, request: PlanRequest, planned: ActionChunk, asked_tick: int | None, tick: int, now_ns: int
    ) -> None:
        if asked_tick is None:  # a duplicate, an answer given up long ago, or one from before a restart
            return
        self.delay.add(tick - asked_tick)
        if len(planned.actions) < self.config.execute_ticks and not self._told:
            self._told = True
            logger.warning(
                "a chunk has %d actions, and execution.execute_ticks is %d: it is planned again when they are over",
                *(len(planned.actions), self.config.execute_ticks),
            )
        start_tick = self._start_tick(planned, asked_tick, tick)
        planned_ns = observed_ns(request.observation, now_ns)
        chunk = ScheduledChunk(
            request.request_id, planned.actions, start_tick, asked_tick, planned_ns, planned.policy_version
        )
        self._schedule.add(self._strategy.place(chunk, tick), tick)

    def _start_tick(self, planned: ActionChunk, asked_tick: int, tick: int) -> int:
        """Return the tick of a chunk's first action. Ticks at rest before the first action consume nothing of it."""
        not_consumed_before = tick if self._first_tick is None else self._first_tick
        if asked_tick < not_consumed_before:
            return max(planned.start_tick, not_consumed_before)
        return planned.start_tick
