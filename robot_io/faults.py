"""Faults on purpose: what can go wrong around a policy and its robot, and by when the robot has to stand still.

One table for ``vla-rl rollout --inject`` and for the campaign over topics (``python -m benchmarks robot``). A
`Disturbance` stands between the sensors of a robot and everything that looks at them; a robot keeps one as
``disturbance``.
"""

import itertools
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from robot_io import disturbances as disturb
from robot_io.disturbances import Changes, Disturbance
from robot_io.joint_monitor import FOLLOWING_SHARE, TRAVEL_SHARE
from robot_io.limits import RobotLimits, rest_tolerance
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.types import Float32Array

_DISCOVERY_MS = 3000.0  # until a node has discovered another one by the middleware; each takes its own time
_CHECK_MS = 100.0  # between two checks of the interlocks
_NOTICE_TICKS = 3  # to notice the fault, to let the time pass between two ticks, to pass the stop on


class Detector(StrEnum):
    """What notices a fault. Robots name in ``detectors`` what they have; the rest has everyone whom a gate guards."""

    AGES = "ages of the readings"
    STALENESS = "images and joints without a new reading"
    JOINTS = "the joints while they move"
    EFFORT = "their effort"
    START = "several readings before the first command"
    POLICY = "actions and plans"
    TOPICS = "the ROS 2 node"


@dataclass(frozen=True)
class Settings:
    """On what the declared times rest.

    Attributes:
        limits: of the gate.
        control_hz: rate of the loop.
        chunk_ticks: H, actions in a chunk.
        hold_ticks: of the execution.
        clock_timeout_s: of the node.
        deadman_timeout_ms: of the node.
        braking_s: of the gate, for limits with acceleration.
    """

    limits: RobotLimits
    control_hz: float
    chunk_ticks: int
    hold_ticks: int
    clock_timeout_s: float = 5.0
    deadman_timeout_ms: float = 300.0
    braking_s: float = 0.0

    def ticks_ms(self, ticks: float) -> float:
        """So many ticks, in ms."""
        return 1e3 * ticks / self.control_hz


class Onset(StrEnum):
    """From when on the declared time counts."""

    AT_ONCE = "at once"
    REPEATED = "with the second reading"
    TRAVEL = "when the command has moved on by joint_monitor.frozen_travel"
    DISTANCE = "when the joint is further from its command than joint_monitor.following_tolerance"
    HELD = "when the first bad action is held"


@dataclass(frozen=True)
class Fault:
    """One line of the table.

    Attributes:
        name: as the command line takes it.
        what: is disturbed.
        detector: What notices it.
        declared_ms: from the fault to the latched stop, by the settings; see docs/ros2.md.
        changes: how the sensors are disturbed, if they are.
        shows: from when on the time counts.
        at_start: it is there when an attempt begins, which has to be refused.
        tolerated: the robot may go on, as long as it never moves on old readings.
        motion_only: commands may come that repeat the last one.
    """

    name: str
    what: str
    detector: Detector
    declared_ms: Callable[[Settings], float]
    changes: Changes = disturb.UNCHANGED
    shows: Onset = Onset.AT_ONCE
    at_start: bool = False
    tolerated: bool = False
    motion_only: bool = False

    def disturbance(self, randomly: random.Random, limits: RobotLimits) -> Disturbance:
        """Return what disturbs the sensors."""
        return Disturbance(randomly, limits, self.changes)


def _within(ticks: float, wait_ms: Callable[[Settings], float] = lambda _: 0.0) -> Callable[[Settings], float]:
    """Return a declared time: a wait that the settings give, and a number of ticks."""
    return lambda settings: wait_ms(settings) + settings.ticks_ms(ticks)


def _monitor_ms(name: str) -> Callable[[Settings], float]:
    return _within(_NOTICE_TICKS, lambda settings: getattr(settings.limits.joint_monitor, name))


_one_tick_ms, _noticed_ms, _checked_ms = _within(1), _within(_NOTICE_TICKS), _within(2, lambda _: _CHECK_MS)
_age_ms = _within(1, lambda settings: settings.limits.max_observation_age_ms)
_stop_ms = _within(_NOTICE_TICKS, lambda settings: settings.limits.stop_after_ms)
_silent_ms = _within(0, lambda settings: settings.limits.max_observation_age_ms + _stop_ms(settings))
_chunk_ms = _within(_NOTICE_TICKS, lambda settings: settings.ticks_ms(settings.chunk_ticks + settings.hold_ticks))
_clock_ms = _within(2, lambda settings: 1e3 * settings.clock_timeout_s)
_deadman_ms = _within(0, lambda settings: settings.deadman_timeout_ms + _checked_ms(settings))
_discovered_ms = _within(0, lambda settings: _DISCOVERY_MS + _checked_ms(settings))
_following_ms, _frozen_ms = _monitor_ms("following_after_ms"), _monitor_ms("frozen_after_ms")
_effort_ms, _beyond_ms = _monitor_ms("effort_after_ms"), _monitor_ms("beyond_after_ms")
_A, _F, _B, _E, _S, _P, _T = Detector
FAULTS = {
    fault.name: fault
    for fault in (
        Fault("camera_silent", "a camera gives no pictures any more", _A, _silent_ms, disturb.CAMERA_SILENT),
        Fault("camera_frozen", "the cameras repeat a picture", _F, _silent_ms, disturb.CAMERA_FROZEN, Onset.REPEATED),
        Fault("pictures_empty", "pictures of 0 x 0", _F, _silent_ms, disturb.PICTURES_EMPTY),
        Fault("pictures_tiny", "pictures of 1 x 1", _F, _silent_ms, disturb.PICTURES_TINY),
        Fault("pictures_cut", "pictures of another shape", _F, _silent_ms, disturb.PICTURES_CUT),
        Fault("joints_silent", "the joint states fall silent", _A, _silent_ms, disturb.JOINTS_SILENT),
        Fault("joints_nan", "a joint reads NaN", _F, _silent_ms, disturb.NOT_FINITE),
        Fault("driver_silent", "the driver of one joint falls silent", _T, _silent_ms, disturb.DRIVER_SILENT),
        Fault("robot_gone", "all streams fall silent at once", _T, _silent_ms, disturb.ALL_SILENT),
        Fault("joints_frozen", "all joints repeat their reading", _B, _frozen_ms, disturb.JOINTS_FROZEN, Onset.TRAVEL),
        Fault("joint_frozen", "one joint repeats its reading", _B, _frozen_ms, disturb.JOINT_FROZEN, Onset.TRAVEL),
        Fault("following_error", "a joint is not where its command is", _B, _following_ms, disturb.OFF, Onset.DISTANCE),
        Fault("joint_beyond", "a joint reads a place outside its limits", _B, _beyond_ms, disturb.BEYOND),
        Fault("effort", "a joint pushes too hard", _E, _effort_ms, disturb.EFFORT),
        Fault("start_far", "one reading at the start is off by 1e6", _S, _one_tick_ms, disturb.FAR, at_start=True),
        Fault("start_off", "one reading at the start is off by 0.6", _S, _one_tick_ms, disturb.NEAR, at_start=True),
        Fault("policy_nan", "the policy plans NaN", _P, _stop_ms, shows=Onset.HELD),
        Fault("policy_silent", "the policy answers no more", _P, _chunk_ms),
        Fault("policy_killed", "the inference process is killed", _T, _chunk_ms),
        Fault("policy_hangs", "the inference process stands still (SIGSTOP)", _T, _chunk_ms),
        Fault("stamps_future", "stamps lie 10 s in the future", _T, _silent_ms, disturb.FUTURE_STAMPS),
        Fault("clock_jump", "the clock jumps by 3 s, forwards or back", _T, _silent_ms, disturb.CLOCK_JUMP),
        Fault("clock_silent", "/clock falls silent", _T, _clock_ms, disturb.CLOCK_SILENT),
        Fault("node_paused", "the node stands still (SIGSTOP) and goes on", _T, _stop_ms, motion_only=True),
        Fault("rival", "another node publishes on the command topic", _T, _discovered_ms),
        Fault("twin", "a second node of the same name", _T, _discovered_ms),
        Fault("estop_pressed", "the emergency stop says true", _T, _checked_ms),
        Fault("estop_gone", "the publisher of the emergency stop is gone", _T, _checked_ms),
        Fault("estop_called", "the service ~/estop is called", _T, _checked_ms),
        Fault("deadman_released", "the dead-man says that it was let go", _T, _deadman_ms),
        Fault("deadman_silent", "the dead-man falls silent", _T, _deadman_ms),
        Fault("controller_idle", "a watched controller is not active any more", _T, _checked_ms),
        Fault("manager_gone", "the controller manager is gone", _T, _checked_ms),
        Fault("start_twice", "a start during an attempt, then its success", _T, _noticed_ms),
        Fault("loss_30", "30 % of the messages are lost", _T, _age_ms, disturb.LOSS_30, tolerated=True),
        Fault("loss_70", "70 % of the messages are lost", _T, _age_ms, disturb.LOSS_70, tolerated=True),
    )
}


def chosen_faults(names: str, detectors: Sequence[Detector]) -> list[Fault]:
    """Return the faults of a comma-separated list of names, or ``all`` that the robot's detectors notice.

    Raises:
        UserError: for a name that is unknown, or a fault that does not apply to the robot.
    """
    if names == "all":
        return [fault for fault in FAULTS.values() if fault.detector in detectors]
    chosen = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        if name not in FAULTS:
            raise UserError(f"there is no fault {name!r}.{did_you_mean(name, FAULTS)}")
        if (fault := FAULTS[name]).detector not in detectors:
            where = "; python -m benchmarks robot tries it" if fault.detector is Detector.TOPICS else ""
            raise UserError(
                f"fault {name!r} does not apply to this robot ({fault.what}): "
                f"it is noticed by {fault.detector}, and this robot has only {', '.join(detectors)}{where}"
            )
        chosen.append(fault)
    if not chosen:
        raise UserError(f"--inject is empty; name faults, or all: {', '.join(FAULTS)}")
    return chosen


def sensor_fault(name: str) -> Fault:
    """Return the fault of that name, if it disturbs what sensors say; UserError for another name."""
    known = {fault.name: fault for fault in FAULTS.values() if fault.changes is not disturb.UNCHANGED}
    if name not in known:
        raise UserError(f"there is no fault of sensors {name!r}.{did_you_mean(name, known)}")
    return known[name]


class Sample(NamedTuple):
    """A command float32 [A] as an observer outside the gate has seen it, at a time of the robot.

    ``position`` has the newest measured positions of the commanded joints; None if unknown.
    """

    at_ns: int
    command: Float32Array
    position: Float32Array | None = None


@dataclass(frozen=True)
class FaultResult:
    """How a robot has met a fault.

    Attributes:
        fault: its name.
        reaction_ms: from the moment at which the fault shows to the last command of the attempt.
        declared_ms: by when it had to be.
        passed: in time, and nothing moved after it.
        why_not: what was wrong, as a sentence.
    """

    fault: str
    reaction_ms: float
    declared_ms: float
    passed: bool
    why_not: str = ""


def judge(
    fault: Fault, begun_ns: int, samples: Sequence[Sample], settings: Settings, known_ns: int | None = None
) -> FaultResult:
    """Return whether the commands stopped in time after a fault, and stayed away.

    Args:
        begun_ns: When it was caused, in the robot's time.
        samples: All commands from some ticks before the fault until well after the time that the settings declare.
        known_ns: Time from which the fault is observable, if that is later.
    """
    declared_ms = fault.declared_ms(settings) + 1e3 * settings.braking_s
    before = [sample for sample in samples if sample.at_ns < begun_ns]
    after = [sample for sample in samples if sample.at_ns >= begun_ns]
    if len(before) < 2 or (before[-1].command == before[-2].command).all():
        return FaultResult(fault.name, np.nan, declared_ms, False, "the robot did not move before the fault")
    onset_ns = _onset_ns(fault, begun_ns, before[-1], after, settings)
    moved = [now for then, now in itertools.pairwise([before[-1], *after]) if (now.command != then.command).any()]
    last_ns = max((sample.at_ns for sample in (moved if fault.motion_only else after)), default=begun_ns)
    if onset_ns is None:
        return FaultResult(fault.name, (last_ns - begun_ns) * 1e-6, declared_ms, False, "the fault never showed")
    reaction_ms = max(last_ns - max(onset_ns, known_ns or 0), 0) * 1e-6
    late = reaction_ms > declared_ms + 1e-3
    return FaultResult(fault.name, reaction_ms, declared_ms, not late, "commands went on for too long" if late else "")


def _onset_ns(fault: Fault, begun_ns: int, last: Sample, after: Sequence[Sample], settings: Settings) -> int | None:
    """When the fault shows; None if it does not, although commands went on."""
    if fault.shows is Onset.AT_ONCE or not after:
        return begun_ns
    if fault.shows is Onset.REPEATED:
        return after[min(1, len(after) - 1)].at_ns
    commands = np.stack([last.command, *(sample.command for sample in after)])
    positions = np.stack([last.command if sample.position is None else sample.position for sample in after])
    limits, monitor = settings.limits, settings.limits.joint_monitor
    width = np.subtract(limits.high, limits.low) + 2 * rest_tolerance(limits)
    if fault.shows is Onset.HELD:
        showing = (np.diff(commands, axis=0) == 0).all(axis=1)
    elif fault.shows is Onset.TRAVEL:
        far = np.abs(commands[1:] - commands[0]) > (monitor.frozen_travel or TRAVEL_SHARE * width)
        # The first of them may still follow a reading from before the fault.
        same = positions == positions[min(1, len(positions) - 1)]
        still = np.logical_and.accumulate(same[::-1])[::-1]
        showing = np.logical_or.accumulate((far & still).any(axis=1))
    else:
        showing = (np.abs(commands[1:] - positions) > (monitor.following_tolerance or FOLLOWING_SHARE * width)).any(
            axis=1
        )
        # A robot that was stopped for it gives way: it then holds where it stands.
        showing = showing[: int(np.flatnonzero(showing)[-1]) + 1] if showing.any() else showing
    if not showing[-1]:
        return None
    quiet = np.flatnonzero(~showing)
    return after[int(quiet[-1]) + 1 if len(quiet) else 0].at_ns


def fault_table(findings: Sequence[FaultResult]) -> str:
    """Markdown: a row for each fault."""
    lines = ["| fault | trials | failed | longest reaction, ms | declared, ms | |", "|---|---|---|---|---|---|"]
    for name in dict.fromkeys(finding.fault for finding in findings):
        of_it = [finding for finding in findings if finding.fault == name]
        failed = [finding for finding in of_it if not finding.passed]
        reactions = [finding.reaction_ms for finding in of_it if np.isfinite(finding.reaction_ms)]
        longest = f"{max(reactions):.0f}" if reactions else ""
        verdict = f"FAILED: {failed[0].why_not}" if failed else "passed"
        lines.append(f"| {name} | {len(of_it)} | {len(failed)} | {longest} | {of_it[0].declared_ms:.0f} | {verdict} |")
    return "\n".join(lines)
