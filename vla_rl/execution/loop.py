"""The loop: observe -> infer -> execute -> gate -> write -> notify. One for simulators, imagined worlds and robots.

Runs in one thread and never waits for the policy. Inference elsewhere belongs to the planner, recording and display to
subscribers, a person at the controls to a source.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vla_rl.core.clock import Clock
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Condition, Gate, Robot, Subscriber, Verdict
from vla_rl.core.types import Float32Array, Observation, Source, Step
from vla_rl.execution.plan import ActionSource, TickAction, observed_ns

logger = logging.getLogger(__name__)


class EpisodicRobot(Robot, Protocol):
    """A robot whose attempts begin and end: an environment, or a robot with a person who calls the outcome.

    A body still moves when an attempt has ended, and is braked then. A robot with the attribute ``world_ends`` = True
    has no such body: its world ends with the attempt, and takes no commands after it.

    A robot that measures its posture has a method ``rest_readings() -> float32 [N, A]``. It returns the results of
    `rest_command` at several moments of `reset`, since a single reading may be wrong. The gate watches the robot at
    every tick by its method ``condition() -> Condition``.
    """

    @property
    def clock(self) -> Clock:
        """The time that this robot lives in."""
        ...

    def reset(self, seed: int) -> None:
        """Bring the world to the start of an attempt."""
        ...

    @property
    def terminated(self) -> bool:
        """The last written command ended the task."""
        ...

    @property
    def truncated(self) -> bool:
        """The attempt was cut after the last written command."""
        ...

    @property
    def success(self) -> bool | None:
        """The outcome; None while it is not known."""
        ...


_FLOWING_TICKS = 2
"""A longer pause after a command and the robot stands at it."""

_FIRST_PLAN_WITHIN_S = 0.4
"""Shorter than what robots allow between commands before they stop by themselves."""
_LOOKS_A_TICK = 10


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """How an attempt went. The braking after its end is not a part of it.

    Attributes:
        ticks: ticks with a command.
        success: the outcome, None if unknown.
        terminated: the task ended by itself.
        stopped: the gate or the source stopped it.
        held_ticks: commands that only held, because no plan was there or the gate let nothing through.
        human_ticks: commands of a person.
        missed_ticks: deadlines that passed without a command.
        duration_s: time in the robot's own clock, and the time for which its world was stopped for the policy.
    """

    ticks: int
    success: bool | None
    terminated: bool
    stopped: bool
    held_ticks: int
    human_ticks: int
    missed_ticks: int
    duration_s: float


class Pacer:
    """Absolute deadlines on a grid of ticks of ``period_ns``.

    After an overrun the phase is kept: passed ticks are skipped.

    Several commands of a tick are equal parts of the tick apart, also from those of the next tick. Only then are limits
    from command to command limits per second. A tick that begins late has fewer of them.

    Attributes:
        tick: The present tick.
        tick_ns: When it began, or should have.
        missed: Ticks that were skipped.
        command_ns: When the last command was due.
    """

    def __init__(self, clock: Clock, period_ns: int, commands_per_tick: int = 1) -> None:
        self._clock = clock
        self._period_ns = period_ns
        self._commands_per_tick = commands_per_tick
        # Single commands are spaced by the ticks: a late one must not delay those after it.
        self._spacing_ns = period_ns // commands_per_tick if commands_per_tick > 1 else 0
        self.tick_ns = clock.now_ns()
        self.command_ns = self.tick_ns - period_ns
        self.tick = 0
        self.missed = 0

    def commands_left(self) -> int:
        """For how many commands the present tick still has time; always for one."""
        late_ns = self._next_command_ns() - self.tick_ns
        return max(self._commands_per_tick - late_ns * self._commands_per_tick // self._period_ns, 1)

    def next_command(self) -> None:
        """Return when the next command may be sent."""
        self.command_ns = self._next_command_ns()
        self._clock.sleep_until_ns(self.command_ns)

    def _next_command_ns(self) -> int:
        return max(self.command_ns + self._spacing_ns, self._clock.now_ns())

    def next_tick(self) -> None:
        """Return at the start of the next tick that is not over yet."""
        self.tick_ns += self._period_ns
        skipped = max((self._clock.now_ns() - self.tick_ns) // self._period_ns, 0)
        self.tick_ns += skipped * self._period_ns
        self.tick += 1 + skipped
        self.missed += skipped
        self._clock.sleep_until_ns(self.tick_ns)


def run_episode(
    robot: EpisodicRobot,
    source: ActionSource,
    gate: Gate,
    *,
    seed: int,
    subscribers: Sequence[Subscriber] = (),
    max_ticks: int = 100_000,
) -> EpisodeSummary:
    """Run one attempt to its end and notify the subscribers of every step. The robot comes to rest in any case, braked
    within the limits of the gate.

    Args:
        robot: connected.
        source: decides the actions; `Executor` for a policy, `TakeoverSwitch` around it for a supervised one.
        gate: stands between the source and the robot; there is no way around it.
        seed: fixes the world, the policy's noise and the supervisor.
        subscribers: get each step after its command was written.
        max_ticks: the attempt is truncated here at the latest.

    Raises:
        UserError: if the gate refuses the posture that the robot rests at, or whatever the parts object to.
    """
    robot.reset(seed)
    measures = getattr(robot, "rest_readings", None)
    rest = gate.reset((measures or robot.rest_command)())
    source.reset(seed, rest)
    if measures:
        _await_first_plan(robot, source)
    attempt = _Attempt(robot, gate, rest, max_ticks)
    try:
        while not attempt.ended:
            observation, now_ns = attempt.observe()
            attempt.inspect()
            proposal = source.propose(observation, now_ns)
            observed = observed_ns(observation, now_ns)
            verdict = gate.admit(proposal.action, now_ns, observed, proposal.planned_ns, attempt.pacer.commands_left())
            sent = attempt.write(verdict.commands, now_ns)
            source.sent(sent.copy())
            step = attempt.account(observation, proposal, verdict, sent, now_ns, observed)
            for subscriber in subscribers:
                subscriber.on_step(step)
            attempt.pacer.next_tick()
    finally:
        attempt.come_to_rest()
    return attempt.summary()


def _await_first_plan(robot: EpisodicRobot, source: ActionSource) -> None:
    """A robot that measures its posture rests until the first plan is here: nothing is sent yet, and the first tick has
    an action. Not for long: a policy that says nothing is the executor's affair.
    """
    clock, period_ns = robot.clock, round(1e9 / robot.control_hz)
    until_ns = clock.now_ns() + round(_FIRST_PLAN_WITHIN_S * 1e9)
    while not source.ready(lambda: replace(robot.read(), tick=0), clock.now_ns()) and clock.now_ns() < until_ns:
        look_ns = clock.now_ns() + period_ns // _LOOKS_A_TICK
        clock.sleep_until_ns(look_ns)
        if clock.now_ns() < look_ns:
            return  # the clock was interrupted, and will not reach the end of this


class _Attempt:
    """The bookkeeping of one attempt: ticks, endings, and what subscribers get."""

    def __init__(self, robot: EpisodicRobot, gate: Gate, rest: Float32Array, max_ticks: int) -> None:
        self._robot = robot
        self._sent = rest
        self._gate = gate
        self._max_ticks = max_ticks
        self._clock = robot.clock
        self._start_ns = self._clock.now_ns()
        self._period_ns = round(1e9 / robot.control_hz)
        self.pacer = Pacer(self._clock, self._period_ns, gate.commands_per_tick)
        self._condition: Callable[[], Condition] | None = getattr(robot, "condition", None)
        self._unsent: list[Float32Array] = []
        self.ended = self._terminated = self._stopped = self._at_rest = False
        self._ticks = self._held_ticks = self._human_ticks = self._frozen_ns = self._braking_ns = 0
        self._decided_ns = self._start_ns
        self._expired = False  # nothing of the tick was sent: the process stood still

    def observe(self) -> tuple[Observation, int]:
        """Return the newest observation and the time at which it is used."""
        observation = self._robot.read()
        if observation.tick != self.pacer.tick:  # ticks that were missed count too
            observation = replace(observation, tick=self.pacer.tick)
        return observation, self._clock.now_ns()

    def inspect(self) -> None:
        """Let the gate look at a robot that measures itself."""
        if self._condition is not None:
            self._gate.inspect(self._condition())

    def write(self, commands: Iterable[Float32Array], decided_ns: int) -> Float32Array:
        """Send the commands of a tick, at equal distances; returns the last one as it was really sent, so far. Where
        the gate has none, since it is not known where the robot is, what goes on by itself has to end all the same.
        Commands that were decided before the process stood still are not sent after it.
        """
        self._unsent, self._decided_ns = list(commands), decided_ns
        count, self._expired = len(self._unsent), False
        if not self._unsent:
            self._robot.stop()
            self._sent = self._gate.still(self._sent)
        while self._unsent:
            self.pacer.next_command()
            rest = self._gate.outdated(self._clock.now_ns() - decided_ns, self._sent)
            if rest is not None:
                self._expired = len(self._unsent) == count
                self._sent = rest if self._expired else self._sent
                self._unsent = []
                break
            self._sent = self._robot.write(self._unsent[0])
            self._unsent.pop(0)
        return self._sent

    def come_to_rest(self) -> None:
        """Brake within the limits, then stop the robot. Once it was stopped, nothing more is sent."""
        if self._at_rest:
            return
        start_ns = self._clock.now_ns()
        try:
            # A stream of commands that broke off a while ago has stopped the robot: it must not move on after that.
            flowing = start_ns - self.pacer.command_ns <= _FLOWING_TICKS * self._period_ns
            if flowing and not getattr(self._robot, "world_ends", False):
                try:
                    self._brake(start_ns)
                except BaseException:  # a first signal, or a command that fails once, ends no motion
                    self._brake(start_ns)
                    raise
        finally:
            self._robot.stop()
            self._at_rest = True
            self._braking_ns += self._clock.now_ns() - start_ns

    def _brake(self, start_ns: int) -> None:
        """Send what an exception left of its tick, which the gate takes as sent, then commands on the way to rest."""
        if self._unsent:
            self.write(self._unsent, self._decided_ns)
        # As long as the limits need, twice over, since a loop that is late sends fewer commands.
        until_ns = start_ns + round(2e9 * self._gate.braking_s) + self._period_ns
        while not self._gate.at_rest and self._clock.now_ns() < until_ns:
            sent_ns = self.pacer.command_ns
            self.pacer.next_tick()
            if self._clock.now_ns() < self.pacer.tick_ns:
                return  # the clock was interrupted, and commands that are not spaced do not brake
            due_ns = min(sent_ns + self._period_ns, self.pacer.tick_ns)  # waiting for it is no pause
            self.write(self._gate.brake(self.pacer.commands_left()), due_ns)

    def account(
        self,
        observation: Observation,
        proposal: TickAction,
        verdict: Verdict,
        sent: Float32Array,
        now_ns: int,
        observed: int,
    ) -> Step:
        """Find out whether the attempt has ended, and describe the step."""
        robot = self._robot
        source = Source.HOLD if verdict.held or self._expired else proposal.source
        self._ticks += 1
        self._frozen_ns += proposal.frozen_ns
        self._held_ticks += source is Source.HOLD
        self._human_ticks += source is Source.HUMAN
        self._stopped = verdict.stopped or proposal.stop
        self._terminated = terminated = robot.terminated
        self.ended = terminated or self._stopped or robot.truncated or self._ticks >= self._max_ticks
        if self.ended:
            self.come_to_rest()  # now: the last step knows the outcome, and no subscriber delays the braking
        extras = {
            "tick": observation.tick,
            "chunk_id": proposal.chunk_id,
            "chunk_index": proposal.chunk_index,
            "policy_version": proposal.policy_version,
            "observation_age_ms": (now_ns - observed) * 1e-6,
            "action_age_ms": (now_ns - proposal.planned_ns) * 1e-6,
            "gate_reasons": verdict.reasons,
        }
        truncated = self.ended and not terminated
        success = robot.success if self.ended else None
        final = self._final() if self.ended else None
        return Step(observation, proposal.action_policy, sent, source, terminated, truncated, success, extras, final)

    def _final(self) -> Observation | None:
        """Return the observation after the last command. A robot that moves has come to rest by then."""
        try:
            return replace(self._robot.read(), tick=self.pacer.tick + 1)
        except UserError as error:
            logger.warning("the episode has no observation after its last command: %s", error)
            return None

    def summary(self) -> EpisodeSummary:
        return EpisodeSummary(
            ticks=self._ticks,
            success=self._robot.success,
            terminated=self._terminated,
            stopped=self._stopped,
            held_ticks=self._held_ticks,
            human_ticks=self._human_ticks,
            missed_ticks=self.pacer.missed,
            duration_s=(self._clock.now_ns() - self._start_ns - self._braking_ns + self._frozen_ns) * 1e-9,
        )
