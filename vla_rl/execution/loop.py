"""The loop: observe -> infer -> execute -> gate -> write -> notify. One for simulators, imagined worlds and robots.

Runs in one thread and never waits for the policy; inference elsewhere is the planner's affair, recording and display
are subscribers', a person at the controls is a source's.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from vla_rl.core.clock import Clock
from vla_rl.core.protocols import Gate, Robot, Subscriber, Verdict
from vla_rl.core.types import Float32Array, Observation, Source, Step
from vla_rl.execution.plan import ActionSource, TickAction, observed_ns


class EpisodicRobot(Robot, Protocol):
    """A robot whose attempts begin and end: an environment, or a robot with a person who calls the outcome."""

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


@dataclass(frozen=True, slots=True)
class EpisodeSummary:
    """How an attempt went.

    Attributes:
        ticks: commands sent.
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
    """Absolute deadlines on a grid of ticks. After an overrun the phase is kept: ticks that have passed are skipped.

    Attributes:
        tick: the present tick.
        missed: ticks that were skipped.
    """

    def __init__(self, clock: Clock, period_ns: int) -> None:
        self._clock = clock
        self._period_ns = period_ns
        self._tick_ns = clock.now_ns()
        self.tick = 0
        self.missed = 0

    def wait_within(self, fraction: float) -> None:
        """Return when this fraction of the present tick has passed."""
        self._clock.sleep_until_ns(self._tick_ns + round(fraction * self._period_ns))

    def next_tick(self) -> None:
        """Return at the start of the next tick that is not over yet."""
        self._tick_ns += self._period_ns
        skipped = max((self._clock.now_ns() - self._tick_ns) // self._period_ns, 0)
        self._tick_ns += skipped * self._period_ns
        self.tick += 1 + skipped
        self.missed += skipped
        self._clock.sleep_until_ns(self._tick_ns)


def run_episode(
    robot: EpisodicRobot,
    source: ActionSource,
    gate: Gate,
    *,
    seed: int,
    subscribers: Sequence[Subscriber] = (),
    max_ticks: int = 100_000,
) -> EpisodeSummary:
    """Run one attempt to its end and tell the subscribers every step. The robot comes to rest whatever happens.

    Args:
        robot: connected.
        source: who decides the actions; `Executor` for a policy, `TakeoverSwitch` around it for a supervised one.
        gate: stands between the source and the robot; there is no way around it.
        seed: fixes the world, the policy's noise and the supervisor.
        subscribers: told of each step after its command was written.
        max_ticks: the attempt is truncated here at the latest.
    """
    robot.reset(seed)
    rest = robot.rest_command()
    source.reset(seed, rest)
    gate.reset(rest)
    attempt = _Attempt(robot, gate, max_ticks)
    try:
        while not attempt.ended:
            observation, now_ns = attempt.observe()
            proposal = source.propose(observation, now_ns)
            observed = observed_ns(observation, now_ns)
            verdict = gate.admit(proposal.action, now_ns, observed, proposal.planned_ns)
            sent = attempt.write(verdict.commands)
            source.sent(sent)
            step = attempt.account(observation, proposal, verdict, sent, now_ns, observed)
            for subscriber in subscribers:
                subscriber.on_step(step)
            attempt.pacer.next_tick()
    finally:
        robot.stop()
    return attempt.summary()


class _Attempt:
    """The bookkeeping of one attempt: ticks, endings, and what subscribers are told."""

    def __init__(self, robot: EpisodicRobot, gate: Gate, max_ticks: int) -> None:
        self._robot = robot
        self._commands_per_tick = gate.commands_per_tick
        self._max_ticks = max_ticks
        self._clock = robot.clock
        self._start_ns = self._clock.now_ns()
        self.pacer = Pacer(self._clock, round(1e9 / robot.control_hz))
        self.ended = self._terminated = self._stopped = False
        self._ticks = self._held_ticks = self._human_ticks = self._frozen_ns = 0

    def observe(self) -> tuple[Observation, int]:
        """The newest observation and the time at which it is used."""
        observation = self._robot.read()
        if observation.tick != self.pacer.tick:  # ticks that were missed count too
            observation = replace(observation, tick=self.pacer.tick)
        return observation, self._clock.now_ns()

    def write(self, commands: Float32Array) -> Float32Array:
        """Send the commands of a tick, at equal distances; returns the last one as it was really sent."""
        for index, command in enumerate(commands):
            if index:
                self.pacer.wait_within(index / self._commands_per_tick)
            sent = self._robot.write(command)
        return sent

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
        source = Source.HOLD if verdict.held else proposal.source
        self._ticks += 1
        self._frozen_ns += proposal.frozen_ns
        self._held_ticks += source is Source.HOLD
        self._human_ticks += source is Source.HUMAN
        self._stopped = verdict.stopped or proposal.stop
        self._terminated = terminated = robot.terminated
        self.ended = terminated or self._stopped or robot.truncated or self._ticks >= self._max_ticks
        if self.ended:
            robot.stop()  # now, so that the outcome is known to the last step
        extras = {
            "chunk_id": proposal.chunk_id,
            "chunk_index": proposal.chunk_index,
            "policy_version": proposal.policy_version,
            "observation_age_ms": (now_ns - observed) * 1e-6,
            "action_age_ms": (now_ns - proposal.planned_ns) * 1e-6,
            "gate_reasons": verdict.reasons,
        }
        truncated = self.ended and not terminated
        success = robot.success if self.ended else None
        return Step(observation, proposal.action_policy, sent, source, terminated, truncated, success, extras)

    def summary(self) -> EpisodeSummary:
        """What came of it."""
        return EpisodeSummary(
            ticks=self._ticks,
            success=self._robot.success,
            terminated=self._terminated,
            stopped=self._stopped,
            held_ticks=self._held_ticks,
            human_ticks=self._human_ticks,
            missed_ticks=self.pacer.missed,
            duration_s=(self._clock.now_ns() - self._start_ns + self._frozen_ns) * 1e-9,
        )
