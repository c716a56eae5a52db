"""Faults at random moments on a policy node over topics, and what it has to refuse. Runs in a process with ROS.

``python -m benchmarks.campaign JSON``, with the fields of `CampaignConfig`; the last line of its output is JSON.

An observer decides: a subscription to the command topic in a node of this process, beside the process of the policy
node. What the policy node says of itself only lets time go on.
"""

import itertools
import json
import logging
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.campaign_causes import AT_THE_MACHINES_PACE, CAUSES, NO_LOCKSTEP, only_disturbed
from benchmarks.campaign_course import ROUNDING, Course, SpoiledTrial
from benchmarks.campaign_refusals import refusals, strategies
from benchmarks.campaign_wave import HORIZON, HZ
from benchmarks.campaign_world import LIMITS, PERIOD_NS, SETTINGS, SILENT_S, TICK_S, CampaignRig, World
from robot_io.disturbances import Disturbance
from robot_io.faults import FAULTS, Fault, FaultResult, judge
from vla_rl.core.errors import UserError

_log = logging.getLogger(__name__)

_AFTER_TICKS = 10  # how long nothing may move after a stop
_LOSSY_TICKS = 60
_TRIES = 3


@dataclass(frozen=True)
class CampaignConfig:
    """What to do.

    Attributes:
        folder: for logs and limits.
        trials: fault -> how often.
        seed: of the moments.
        refusals: try them.
        strategies: execution strategy -> folder of a policy that supports it; each acts for an attempt.
        node: parameters of the policy node that are not those of the campaign.
    """

    folder: str
    trials: dict[str, int] = field(default_factory=dict)
    seed: int = 0
    refusals: bool = False
    strategies: dict[str, str] = field(default_factory=dict)
    node: dict[str, Any] = field(default_factory=dict)


class Campaign:
    """Trials on one rig. See the module."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def timed_trial(self, fault: Fault) -> dict[str, Any]:
        """Run a trial, and repeat it if the robot stood still before any fault, which is no result."""
        course = self._course
        begun_s, spoiled = time.monotonic(), 0
        while True:
            try:
                finding = self._trial(fault)
                break
            except SpoiledTrial as error:
                _log.warning("%s: %s", fault.name, error)
                course.recover()
                spoiled += 1
                if spoiled == _TRIES:
                    finding = FaultResult(fault.name, np.nan, fault.declared_ms(SETTINGS), False, str(error))
                    break
        return {**asdict(finding), "spoiled": spoiled, "wall_s": time.monotonic() - begun_s}

    def _trial(self, fault: Fault) -> FaultResult:
        """One fault at a random moment of an attempt."""
        course = self._course
        world = course.world
        try:
            world.disturbance = Disturbance(course.random, LIMITS)
            world.tick_s = TICK_S
            if fault.at_start:
                return self._start_trial(fault)
            course.begin_attempt()
            course.run_ticks(course.random.randint(8, 30))
            if fault.name == "start_twice":
                return self._start_twice(fault)
            if fault.tolerated:
                return self._tolerated(fault)
            course.settle()
            world.tick_s = 1 / HZ if fault.name in AT_THE_MACHINES_PACE else TICK_S
            begun_ns = world.now_ns
            world.disturbance = fault.disturbance(course.random, LIMITS)
            with CAUSES.get(fault.name, only_disturbed)(course):
                # The loop's time stands still over a jump of the clock: its tick does not count.
                known_ns = world.now_ns + (PERIOD_NS if fault.name == "clock_jump" else 0)
                declared_ticks = round(fault.declared_ms(SETTINGS) * 1e-3 * HZ) + HORIZON
                self._run_until_stopped(fault, declared_ticks)
            world.disturbance, world.tick_s = Disturbance(course.random, LIMITS), TICK_S
            world.policy_raves = False
            course.free_ticks(_AFTER_TICKS)
            finding = judge(fault, begun_ns, world.samples, SETTINGS, known_ns)
            return self._afterwards(finding)
        except SpoiledTrial:
            raise
        except UserError as error:
            course.recover()
            return FaultResult(fault.name, np.nan, fault.declared_ms(SETTINGS), False, str(error))

    def _afterwards(self, finding: FaultResult) -> FaultResult:
        """Check that the stop stays until a call of ~/rearm."""
        course = self._course
        if not course.rig.stopped():
            course.recover()
            return replace(finding, passed=False, why_not=finding.why_not or "nobody stopped the attempt")
        accepted, _ = course.rig.trigger("start")
        seen = len(course.world.samples)
        course.free_ticks(_AFTER_TICKS)
        if finding.passed and (accepted or len(course.world.samples) > seen):
            finding = replace(finding, passed=False, why_not="it went on by itself")
        course.rearm()
        return finding

    def _start_trial(self, fault: Fault) -> FaultResult:
        """A start that has to be refused, or to go well."""
        course = self._course
        world, rig = course.world, course.rig
        world.samples.clear()
        course.come_to_rest()
        declared_ms = fault.declared_ms(SETTINGS)
        rig.trigger("start")
        course.free_ticks(course.random.randint(0, 3))
        world.disturbance = fault.disturbance(course.random, LIMITS)
        until_s = time.monotonic() + 10.0
        while not rig.stopped() and not world.samples and time.monotonic() < until_s:
            course.free_ticks(1)
        course.free_ticks(3)
        jump = course.first_jump()
        refused = not world.samples
        if not refused:
            rig.trigger("failure")
            course.wait_standing_by()
        else:
            course.rearm()
        passed = refused or jump <= 1.0 + ROUNDING
        return FaultResult(
            fault.name, 0.0, declared_ms, passed, "" if passed else f"first command jumped {jump:.2f} ticks"
        )

    def _start_twice(self, fault: Fault) -> FaultResult:
        """A start during an attempt is refused, and after its success nothing moves."""
        course = self._course
        world, rig = course.world, course.rig
        declared_ms = fault.declared_ms(SETTINGS)
        answers: list[bool] = []
        course.while_ticking(lambda: answers.append(rig.trigger("start")[0]))
        course.run_ticks(3)
        course.while_ticking(lambda: answers.append(rig.trigger("success")[0]))
        begun_ns = world.now_ns
        course.wait_standing_by()
        course.settle()
        last_ns = world.samples[-1].at_ns
        seen = len(world.samples)
        course.free_ticks(3 * _AFTER_TICKS)
        moved = len(world.samples) > seen
        reaction_ms = max(last_ns - begun_ns, 0) * 1e-6
        passed = answers == [False, True] and not moved and reaction_ms <= declared_ms
        why = f"answers {answers}, {'it moved again' if moved else 'it stayed'}"
        return FaultResult(fault.name, reaction_ms, declared_ms, passed, "" if passed else why)

    def _tolerated(self, fault: Fault) -> FaultResult:
        """Messages are lost for a while: no command may move on readings that are too old, or jump."""
        course = self._course
        world, rig = course.world, course.rig
        begun = len(world.samples) - 1
        lossy = _Counting(fault.disturbance(course.random, LIMITS), world)
        world.disturbance = lossy
        for _ in range(_LOSSY_TICKS):
            if rig.stopped():
                break
            course.run_ticks(1, may_stop=True)
        world.disturbance = Disturbance(course.random, LIMITS)
        declared_ms = fault.declared_ms(SETTINGS)
        samples = world.samples[begun:]
        worst_ms, jump = 0.0, 0.0
        for before, sample in itertools.pairwise(samples):
            step = float(np.abs(sample.command - before.command).max())
            jump = max(jump, step / (LIMITS.max_velocity[0] / HZ))
            if step > 0:
                worst_ms = max(worst_ms, (sample.at_ns - lossy.heard_ns(sample.at_ns)) * 1e-6)
        passed = worst_ms <= declared_ms and jump <= 1.0 + ROUNDING
        if rig.stopped():
            course.free_ticks(_AFTER_TICKS)
            course.rearm()
        else:
            course.while_ticking(lambda: rig.trigger("failure"))
            course.wait_standing_by()
        why = "" if passed else f"moved on readings {worst_ms:.0f} ms old, in steps of {jump:.2f} ticks"
        return FaultResult(fault.name, worst_ms, declared_ms, passed, why)

    def _run_until_stopped(self, fault: Fault, declared_ticks: int) -> None:
        """Ticks in lockstep until the node has stopped; after three times the declared time without a stop, no more."""
        course = self._course
        begun_s = time.monotonic()
        if fault.name == "clock_jump":
            course.free_ticks(1)  # the loop's time stands still over a jump: this tick has no command
            course.settle()
        for _ in range(3 * declared_ticks):
            if course.rig.stopped():
                return
            if fault.name in NO_LOCKSTEP:
                course.free_ticks(1)
            else:
                course.run_ticks(1, may_stop=True)
        while fault.name in NO_LOCKSTEP and not course.rig.stopped() and time.monotonic() < begun_s + SILENT_S:
            course.free_ticks(1)


class _Counting(Disturbance):
    """Loses messages, and remembers when everything had come through."""

    def __init__(self, lossy: Disturbance, world: World) -> None:
        self._lossy, self._world, self._stream = lossy, world, 0
        self._heard: list[dict[int, int]] = [dict.fromkeys(range(3), world.now_ns)]
        self._at_ns: list[int] = [world.now_ns]

    def loses_message(self) -> bool:
        lost = self._lossy.loses_message()
        heard = dict(self._heard[-1])
        if not lost:
            heard[self._stream] = self._world.now_ns
        self._stream = (self._stream + 1) % 3
        self._heard.append(heard)
        self._at_ns.append(self._world.now_ns)
        return lost

    def heard_ns(self, at_ns: int) -> int:
        """The capture time of the oldest stream that had come through by then."""
        known = [heard for heard, told_ns in zip(self._heard, self._at_ns, strict=True) if told_ns <= at_ns]
        return min((known or self._heard)[-1].values())


def main() -> int:
    """Run the campaign."""
    config = CampaignConfig(**json.loads(sys.argv[1]))
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s", stream=sys.stderr)
    folder = Path(config.folder)
    folder.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {}
    with CampaignRig(folder, config.node) as rig:
        course = Course(rig, config.seed)
        if config.refusals:
            result["refusals"] = refusals(course, folder)
        if config.strategies:
            result["strategies"] = strategies(course, config.strategies)
        if config.trials:
            course.configure()
            campaign = Campaign(course)
            names = [name for name, count in config.trials.items() for _ in range(count)]
            result["trials"] = [campaign.timed_trial(FAULTS[name]) for name in names]
    print(json.dumps({**result, "first_jumps": course.jumps}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
