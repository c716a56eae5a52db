"""Sources of actions beside the executor: a person who takes over, a demonstrator, a recording."""

from collections.abc import Callable, Sequence
from typing import override

from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Episode, Float32Array, Observation, Source
from vla_rl.execution.executor import Executor
from vla_rl.execution.plan import NO_CHUNK, ActionSource, TickAction, observed_ns


class TakeoverSwitch(ActionSource):
    """The policy acts unless a person does.

    No plan survives a takeover: it was made for a motion that did not happen. When the person lets go, the last
    command is held until a plan from an observation of that tick or later is here. Neither handover steps the command
    by more than the gate's normal rate limit.

    Args:
        executor: runs the policy.
        takeover: the person.
        infer_during_takeover: the policy keeps planning in the shadow; `TickAction.action_policy` is what it would do.
    """

    def __init__(self, executor: Executor, takeover: TakeoverSource, infer_during_takeover: bool = False) -> None:
        self._executor = executor
        self._takeover = takeover
        self._shadow = infer_during_takeover
        self._human = False

    @override
    def reset(self, seed: int, rest: Float32Array) -> None:
        self._human = False
        self._executor.reset(seed, rest)
        self._takeover.reset(seed)

    @override
    def ready(self, observe: Callable[[], Observation], now_ns: int) -> bool:
        return self._executor.ready(observe, now_ns)

    @override
    def propose(self, observation: Observation, now_ns: int) -> TickAction:
        tick = observation.tick
        idle = self._human and not self._shadow
        proposal = self._executor.hold(tick, now_ns) if idle else self._executor.propose(observation, now_ns)
        command = self._takeover.command(tick, proposal.action)
        if command is not None:
            self._human = True
            return TickAction(
                tick,
                command,
                proposal.action_policy,
                Source.HUMAN,
                proposal.chunk_id,
                proposal.chunk_index,
                observed_ns(observation, now_ns),
                proposal.policy_version,
            )
        if self._human:
            self._human = False
            self._executor.restart()
            return self._executor.propose(observation, now_ns)
        return proposal

    @override
    def sent(self, command: Float32Array) -> None:
        self._executor.sent(command)


class Demonstrator(ActionSource):
    """A scripted expert or a person who acts alone.

    ``act`` is called once per tick and returns (clean action, action to send), float32 [A] each. ``reset`` is called
    with the seed at the start of an attempt.
    """

    def __init__(
        self, act: Callable[[], tuple[Float32Array, Float32Array]], reset: Callable[[int], None] | None = None
    ) -> None:
        self._act = act
        self._reset = reset

    @override
    def reset(self, seed: int, rest: Float32Array) -> None:
        if self._reset is not None:
            self._reset(seed)

    @override
    def propose(self, observation: Observation, now_ns: int) -> TickAction:
        clean, noisy = self._act()
        planned_ns = observed_ns(observation, now_ns)
        return TickAction(observation.tick, noisy, clean, Source.DEMO, NO_CHUNK, 0, planned_ns, -1)


class SoleDriver(ActionSource):
    """A takeover source that acts alone, as a demonstrator. Where it says nothing the robot holds still.

    The action proposed to it is the command that holds still: 0 in ``delta_dims``, the last command in the others.
    """

    def __init__(self, driver: TakeoverSource, delta_dims: Sequence[int] = ()) -> None:
        self._driver, self._delta_dims = driver, list(delta_dims)

    @override
    def reset(self, seed: int, rest: Float32Array) -> None:
        self._still = rest
        self._driver.reset(seed)

    @override
    def propose(self, observation: Observation, now_ns: int) -> TickAction:
        command = self._driver.command(observation.tick, self._still)
        source = Source.DEMO if command is not None else Source.HOLD
        action = self._still if command is None else command
        planned_ns = observed_ns(observation, now_ns)
        return TickAction(observation.tick, action, action, source, NO_CHUNK, 0, planned_ns, -1)

    @override
    def sent(self, command: Float32Array) -> None:
        self._still = command.copy()
        self._still[self._delta_dims] = 0


class Replay(ActionSource):
    """The commands of a recorded episode, one row a tick, whichever ticks were missed. Asks for a stop at the last one.

    They pass the gate again. A gate that only limits the rate changes none of them in their own world (same seed, same
    gate, one command a tick). One with acceleration and jerk limits follows them as it follows
    every target: closely, but not to the byte.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._next_row = 0

    @override
    def reset(self, seed: int, rest: Float32Array) -> None:
        self._next_row = 0

    @override
    def propose(self, observation: Observation, now_ns: int) -> TickAction:
        episode, last = self._episode, len(self._episode) - 1
        row = min(self._next_row, last)
        self._next_row += 1
        return TickAction(
            observation.tick,
            episode.action_sent[row],
            episode.action_policy[row],
            Source(episode.source[row]),
            NO_CHUNK,
            0,
            observed_ns(observation, now_ns),
            -1,
            stop=row == last,
        )
