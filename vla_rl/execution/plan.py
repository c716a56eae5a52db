"""What travels between the control loop and the policy, and what comes out of the executor at every tick."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, TypeGuard, override

from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Policy, RefiningPolicy
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Source
from vla_rl.core.validation import check_chunk

NO_CHUNK = -1


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """One call of the policy.

    Attributes:
        request_id: counts the requests of an episode; it becomes the chunk's id.
        observation: what to plan from. Its tick is the chunk's first tick unless the strategy plans for a later one.
        scheduled: float32 [K, A], the actions scheduled for the observation's tick and after; K = 0 when nothing is.
        delay_ticks: d, how many of them will have been executed before the answer is here, as estimated (d <= K).
        last_command: float32 [A], the command that was sent last before the observation.
    """

    request_id: int
    observation: Observation
    scheduled: Float32Array
    delay_ticks: int
    last_command: Float32Array

    @property
    def committed(self) -> Float32Array | None:
        """float32 [d, A], the actions that will be executed whatever the policy answers; None if there are none."""
        return self.scheduled[: self.delay_ticks] if self.delay_ticks else None


@dataclass(frozen=True, slots=True)
class Plan:
    """The policy's answer to one request; without a chunk the policy has failed, and may be asked again.

    One that is not ``final`` goes back to the planner with the newest observation (`Planner.refine`).
    """

    request: PlanRequest
    chunk: ActionChunk | None
    final: bool = True


@dataclass(frozen=True, slots=True)
class TickAction:
    """What a source of actions wants at one tick.

    Attributes:
        tick: the absolute control tick.
        action: float32 [A], what should be sent.
        action_policy: float32 [A], what the policy (or the demonstrator, without noise) asked for.
        source: who decided ``action``.
        chunk_id: the chunk that ``action_policy`` came from; `NO_CHUNK` if none.
        chunk_index: its position in the chunk.
        planned_ns: capture time of the observation that the action was planned from.
        policy_version: of the chunk's weights; -1 if none.
        stop: the source has had nothing to say for too long: come to rest and end the attempt.
        frozen_ns: how long a simulated world was stopped for the policy before this action.
    """

    tick: int
    action: Float32Array
    action_policy: Float32Array
    source: Source
    chunk_id: int
    chunk_index: int
    planned_ns: int
    policy_version: int
    stop: bool = False
    frozen_ns: int = 0


class ActionSource(Protocol):
    """Decides the actions: an executor of chunks, a person, a demonstrator."""

    def reset(self, seed: int, rest: Float32Array) -> None:
        """Start an attempt; ``rest`` float32 [A] is the command that keeps the robot where it is."""
        ...

    def ready(self, observe: Callable[[], Observation], now_ns: int) -> bool:
        """Return whether there is something to do at the first tick. The loop asks while the robot rests, until it is
        ready or too late. ``observe`` gives the newest observation, as of tick 0.
        """
        del observe, now_ns
        return True

    def propose(self, observation: Observation, now_ns: int) -> TickAction:
        """Return the action of the observation's tick. Always one, and at once."""
        ...

    def sent(self, command: Float32Array) -> None:
        """Take the command that was sent for the last proposal, float32 [A]. Most sources do not need it."""
        del command


class Inference(Protocol):
    """How a policy is used to answer a request: the half of a strategy that runs where the policy lives."""

    refines: bool
    """Whether a policy that can do so refines its chunks as they enter (`vla_rl.core.protocols.RefiningPolicy`)."""

    def infer(self, policy: Policy, request: PlanRequest) -> ActionChunk:
        """Use the policy to answer a request. Runs where the policy lives, possibly in another process."""
        ...


class Planner(Protocol):
    """Answers requests in its own time: at once, on a virtual clock, or in another process. Only `wait` waits."""

    def reset(self, seed: int) -> None:
        """Start an episode. Answers to earlier requests never appear afterwards."""
        ...

    def request(self, request: PlanRequest, inference: Inference) -> None:
        """Ask for a chunk. A request that has not been started on is replaced by a newer one."""
        ...

    def poll(self) -> list[Plan]:
        """Return the answers that have arrived since the last call, in the order of arrival."""
        ...

    def refine(self, plan: Plan, observation: Observation, index: int) -> None:
        """Ask for the final form of a plan whose action ``index`` is the next one. It arrives in place of the plan."""
        ...

    def drop(self, plan: Plan) -> None:
        """Say that the executor does not want the final form of a plan."""
        del plan

    def wait(self) -> int:
        """Stop the simulated world until the last request is answered, and return for how long, in ns."""
        ...


class InlinePlanner(Planner):
    """Computes in the caller, for simulation: every request is answered before the call returns, a delay of 0 ticks."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._answers: list[Plan] = []

    @override
    def reset(self, seed: int) -> None:
        self._answers = []
        self._policy.reset(seed)

    @override
    def request(self, request: PlanRequest, inference: Inference) -> None:
        chunk = planned(self._policy, inference, request)
        self._answers.append(Plan(request, chunk, final=not refines(self._policy, inference)))

    @override
    def poll(self) -> list[Plan]:
        answers, self._answers = self._answers, []
        return answers

    @override
    def refine(self, plan: Plan, observation: Observation, index: int) -> None:
        self._answers.append(refined(self._policy, plan, observation, index))

    @override
    def wait(self) -> int:
        return 0


def refines(policy: Policy, inference: Inference) -> TypeGuard[RefiningPolicy]:
    """Return whether this policy refines its chunks as they enter, under this strategy."""
    return inference.refines and getattr(policy, "refines", False)


def planned(policy: Policy, inference: Inference, request: PlanRequest) -> ActionChunk:
    """Return a policy's answer to a request. The policy may write into what it is given.

    Raises:
        UserError: see `check_chunk`; for a chunk that starts before its observation.
    """
    observation = request.observation
    given = replace(request, observation=observation.copied(), scheduled=request.scheduled.copy())
    chunk = check_chunk(inference.infer(policy, given), len(request.last_command))
    if chunk.start_tick < observation.tick:
        raise UserError(
            f"the policy's chunk starts at tick {chunk.start_tick}, its observation is of tick {observation.tick}. "
            "Give ActionChunk the tick of the observation"
        )
    return chunk


def refined(policy: Policy, plan: Plan, observation: Observation, index: int) -> Plan:
    """Return the final form of a plan, see `Planner.refine`."""
    assert isinstance(policy, RefiningPolicy)
    assert plan.chunk is not None
    chunk = policy.refine(plan.chunk, observation.copied(), index)
    return Plan(plan.request, check_chunk(chunk, len(plan.request.last_command)))


def observed_ns(observation: Observation, now_ns: int) -> int:
    """Capture time of the oldest stream of an observation; ``now_ns`` if its source gives no capture times."""
    return min(observation.captured_ns.values(), default=now_ns)
