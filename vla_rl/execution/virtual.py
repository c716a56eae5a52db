"""Inference on a virtual clock: latency distributions and faults, the same on every run of a seed.

Runs in the control process. The policy computes at the moment of the request; its answer is withheld until the clock
reaches its arrival.
"""

import heapq
from dataclasses import dataclass
from enum import StrEnum
from typing import override

import numpy as np

from vla_rl.core.clock import Clock, VirtualClock
from vla_rl.core.errors import ConfigError
from vla_rl.core.protocols import Policy
from vla_rl.core.types import Observation
from vla_rl.core.validation import check_ranges
from vla_rl.execution.plan import Inference, InlinePlanner, Plan, Planner, PlanRequest, planned, refined, refines

_LATENCY_STREAM = 0x1A7E
_FAULTS = ("drop", "duplicate", "reorder", "stall")


class Latency(StrEnum):
    """Shapes of a latency distribution."""

    FIXED = "fixed"
    JITTERED = "jittered"
    HEAVY_TAILED = "heavy_tailed"
    RECORDED = "recorded"


class LatencyUnit(StrEnum):
    """Ticks of the control loop, or milliseconds."""

    TICKS = "ticks"
    MS = "ms"


@dataclass(frozen=True)
class LatencyConfig:
    """Latencies of simulated inference. All durations in ``unit``.

    Attributes:
        latency: the shape. fixed: always ``typical``. jittered: normal around it with deviation ``spread``, not below
            0. heavy_tailed: log-normal with median ``typical`` and log-deviation ``spread``. recorded: drawn from
            ``samples``.
        unit: ticks or ms.
        typical: see ``latency``.
        spread: see ``latency``.
        samples: measured latencies, for ``recorded``.

    Raises:
        ConfigError: for negative durations, or "recorded" without samples.
    """

    latency: Latency = Latency.FIXED
    unit: LatencyUnit = LatencyUnit.TICKS
    typical: float = 0.0
    spread: float = 0.0
    samples: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.latency is Latency.RECORDED and not self.samples:
            raise ConfigError("latency 'recorded' needs samples: give the measured latencies")
        sampled = {"samples": ">= 0"} if self.samples else {}
        check_ranges(self, "latency", typical=">= 0", spread=">= 0", **sampled)

    def usual_ticks(self, control_hz: float) -> float:
        """Return the usual latency in ticks of the control loop: the least one that was recorded, else the typical."""
        usual = min(self.samples) if self.latency is Latency.RECORDED else self.typical
        return usual if self.unit is LatencyUnit.TICKS else usual * control_hz / 1e3


@dataclass(frozen=True)
class FaultyLatencyConfig(LatencyConfig):
    """Latencies and faults of simulated inference, to try what a robot does then. All durations in ``unit``.

    Attributes:
        warm_up: added to the first request after the planner was made.
        drop_probability: an answer never arrives.
        duplicate_probability: an answer arrives a second time, one latency later.
        reorder_probability: an answer is held back until the next one has arrived, and comes after it.
        stall_probability: an answer takes ``stall`` longer.
        stall: see above.

    Raises:
        ConfigError: also for probabilities outside of 0 to 1.
    """

    warm_up: float = 0.0
    drop_probability: float = 0.0
    duplicate_probability: float = 0.0
    reorder_probability: float = 0.0
    stall_probability: float = 0.0
    stall: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        probabilities = dict.fromkeys((f"{kind}_probability" for kind in _FAULTS), "[0, 1]")
        check_ranges(self, "latency", warm_up=">= 0", stall=">= 0", **probabilities)


class VirtualPlanner(Planner):
    """Answers on a virtual clock. Draws are keyed by the episode's seed and the request, so an episode repeats."""

    def __init__(self, policy: Policy, clock: VirtualClock, control_hz: float, config: LatencyConfig) -> None:
        self._policy = policy
        self._clock = clock
        self._config = config if isinstance(config, FaultyLatencyConfig) else FaultyLatencyConfig(**vars(config))
        self._unit_ns = round(1e9 / control_hz) if config.unit is LatencyUnit.TICKS else 1_000_000
        self._warm_up_ns = round(self._config.warm_up * self._unit_ns)
        self._bits = np.random.Philox(key=0)  # one for all requests: making one reads the system's entropy
        self._fresh = self._bits.state
        self.reset(0)

    @override
    def reset(self, seed: int) -> None:
        self._seed = seed % 2**64
        self._arrivals: list[tuple[int, int, Plan]] = []  # a heap of (arrival time, order, answer)
        self._held_back: list[Plan] = []
        self._order = 0
        self._policy.reset(seed)

    @override
    def request(self, request: PlanRequest, inference: Inference) -> None:
        config = self._config
        self._fresh["state"]["key"][:] = self._seed, (_LATENCY_STREAM << 32) + request.request_id
        self._bits.state = self._fresh
        random = np.random.Generator(self._bits)
        dropped, duplicated, stalled, reordered = random.random(4) < (
            config.drop_probability,
            config.duplicate_probability,
            config.stall_probability,
            config.reorder_probability,
        )
        latency_ns = self._draw_ns(random) + self._warm_up_ns + (round(config.stall * self._unit_ns) if stalled else 0)
        self._warm_up_ns = 0
        if dropped:
            return
        chunk = planned(self._policy, inference, request)
        plan = Plan(request, chunk, final=not refines(self._policy, inference))
        if reordered:
            self._held_back.append(plan)
            return
        arrival_ns = self._clock.now_ns() + latency_ns
        self._deliver(arrival_ns, plan)
        for overtaken in self._held_back:
            self._deliver(arrival_ns, overtaken)
        self._held_back = []
        if duplicated:
            self._deliver(arrival_ns + self._draw_ns(random), plan)

    @override
    def poll(self) -> list[Plan]:
        now_ns = self._clock.now_ns()
        arrived = []
        while self._arrivals and self._arrivals[0][0] <= now_ns:
            arrived.append(heapq.heappop(self._arrivals)[2])
        return arrived

    @override
    def refine(self, plan: Plan, observation: Observation, index: int) -> None:
        self._deliver(self._clock.now_ns(), refined(self._policy, plan, observation, index))

    @override
    def wait(self) -> int:
        """Let the world and its clock stand still. Return the time that passed outside."""
        if not self._arrivals:
            return 0
        arrival_ns, _, plan = heapq.heappop(self._arrivals)
        now_ns = self._clock.now_ns()
        self._deliver(now_ns, plan)
        return max(arrival_ns - now_ns, 0)

    def _deliver(self, arrival_ns: int, plan: Plan) -> None:
        heapq.heappush(self._arrivals, (arrival_ns, self._order, plan))
        self._order += 1

    def _draw_ns(self, random: np.random.Generator) -> int:
        config = self._config
        if config.latency is Latency.FIXED:
            drawn = config.typical
        elif config.latency is Latency.JITTERED:
            drawn = max(random.normal(config.typical, config.spread), 0.0)
        elif config.latency is Latency.HEAVY_TAILED:
            drawn = config.typical * np.exp(config.spread * random.standard_normal())
        else:
            drawn = config.samples[random.integers(len(config.samples))]
        return round(drawn * self._unit_ns)


def make_planner(policy: Policy, clock: Clock, control_hz: float, latency: LatencyConfig) -> Planner:
    """Return the planner of simulated rollouts: answers at once by default, on the virtual clock with a latency.

    Raises:
        ConfigError: if a latency is asked for on a clock that is not virtual.
    """
    if latency in (LatencyConfig(), FaultyLatencyConfig()):
        return InlinePlanner(policy)
    if not isinstance(clock, VirtualClock):
        raise ConfigError("simulated latency needs a virtual clock; in real time inference takes the time it takes")
    return VirtualPlanner(policy, clock, control_hz, latency)
