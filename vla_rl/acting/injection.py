"""``vla-rl rollout --inject``: faults at random moments of the attempts on any robot, and how the robot has met them.

Sensors are disturbed below everything that looks at them (`robot_io.faults`), actions and plans between policy and
gate. Who judges sees the commands as the robot gets them, behind the gate.
"""

import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from robot_io.faults import Detector, Fault, FaultResult, Onset, Sample, Settings, chosen_faults, judge
from robot_io.limits import RobotLimits
from vla_rl.acting.robots import RobotSetup
from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array, Observation, Origin
from vla_rl.execution.loop import EpisodeSummary
from vla_rl.execution.plan import ActionSource, Inference, Plan, Planner, PlanRequest, TickAction

_TRIES = 4  # attempts that end by themselves before the fault could show
_FIRST_TICK, _LAST_TICK = 5, 25


class Injection:
    """Fault injection around one robot.

    Args:
        setup: The robot, not connected yet.
        names: Of the faults, as on the command line.
        chunk_ticks: H, actions in the policy's chunks.
        hold_ticks: Of the execution.
        seed: Of the moments.

    Attributes:
        setup: The same robot with the faults.
        findings: Of the faults that were tried.

    Raises:
        UserError: For faults that do not apply; for a robot that no person looks at after a stop.
    """

    def __init__(self, setup: RobotSetup, names: str, chunk_ticks: int, hold_ticks: int, seed: int) -> None:
        robot, gate = setup.robot, setup.gate
        if setup.origin is Origin.REAL and setup.wait_for_person is None:
            raise UserError(
                "after each fault a person checks a real robot, and --unattended asks no person. "
                "Leave out --unattended and robot.reset_service, or set robot.simulated=true"
            )
        detectors = [*getattr(robot, "detectors", ())]
        if Detector.EFFORT in detectors and not gate.config.joint_monitor.max_effort:
            detectors.remove(Detector.EFFORT)
        self._faults = chosen_faults(names, detectors)
        self._gate, self._random = gate, random.Random(seed)
        self._settings = Settings(gate.config, robot.control_hz, chunk_ticks, hold_ticks, braking_s=gate.braking_s)
        self._robot = _FaultyRobot(robot)
        self.setup = replace(setup, robot=self._robot)
        self.findings: list[FaultResult] = []
        self._tries = 0

    def planner(self, planner: Planner) -> Planner:
        """Return the planner, which falls silent when its fault comes."""
        return _FaultyPlanner(planner, self._robot)

    def source(self, source: ActionSource) -> ActionSource:
        """Return the source, whose actions are no numbers when its fault comes."""
        return _FaultySource(source, self._robot)

    @property
    def pending(self) -> bool:
        """There are faults to try."""
        return len(self.findings) < len(self._faults)

    def seeds(self, first: int) -> Iterator[int]:
        """Of as many attempts as the faults need."""
        return itertools.takewhile(lambda _: self.pending, itertools.count(first))

    def attempt(self, run: Callable[[], EpisodeSummary]) -> EpisodeSummary | None:
        """Run an attempt with the next fault; None if it did not begin. A person has looked at the robot before."""
        self._begin()
        try:
            summary = run()
        except UserError as refused:
            self._end(None, str(refused))
            return None
        self._end(summary)
        return summary

    def _begin(self) -> None:
        self._gate.rearm()
        fault = self._faults[len(self.findings)]
        fault = replace(fault, shows=Onset.AT_ONCE) if fault.shows is Onset.HELD else fault
        self._robot.await_fault(fault, self._gate.config, self._random)

    def _end(self, summary: EpisodeSummary | None, refused: str = "") -> None:
        robot, fault = self._robot, self._robot.fault
        robot.mend()
        declared_ms = fault.declared_ms(self._settings)
        if fault.at_start:
            jump = robot.first_jump / float(np.min(self._gate.config.max_velocity)) * robot.control_hz
            safe = (bool(refused) and not robot.samples) or jump <= 1
            why = "" if safe else f"the first command jumped by {jump:.1f} ticks of the limits"
            self._keep(FaultResult(fault.name, 0.0, declared_ms, safe, why))
            return
        if summary is None:
            self._keep(FaultResult(fault.name, np.nan, declared_ms, False, f"no attempt began: {refused}"))
            return
        over = robot.begun_ns is not None and (robot.clock.now_ns() - robot.begun_ns) * 1e-6 > declared_ms
        if robot.begun_ns is not None and (summary.stopped or over):
            finding = judge(fault, robot.begun_ns, robot.samples, self._settings)
            if not summary.stopped and finding.passed:
                finding = replace(finding, passed=False, why_not="the attempt was not stopped")
            self._keep(finding)
            return
        self._tries += 1
        if self._tries >= _TRIES:
            why = f"{_TRIES} attempts ended by themselves before the fault could show"
            self._keep(FaultResult(fault.name, np.nan, declared_ms, False, why))

    def _keep(self, finding: FaultResult) -> None:
        self.findings.append(finding)
        self._tries = 0


class _FaultyRobot:
    """The robot, whose sensors are disturbed from some tick on; it remembers the commands that it gets."""

    def __init__(self, robot: Any) -> None:
        self._robot = robot
        self._armed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_robot"], name)

    def await_fault(self, fault: Fault, limits: RobotLimits, randomly: random.Random) -> None:
        """The fault comes at a random tick, or at the first one after it at which the robot moves."""
        self.fault, self._tick, self._armed = fault, randomly.randint(_FIRST_TICK, _LAST_TICK), True
        self._disturbance = fault.disturbance(randomly, limits)
        self.samples: list[Sample] = []
        self.first_jump = 0.0
        self._reads = 0
        self.begun_ns: int | None = None
        self._robot.disturbance = self._disturbance if fault.at_start else None

    def mend(self) -> None:
        self._robot.disturbance, self._armed = None, False

    def going_on(self, name: str) -> bool:
        return self._armed and self.begun_ns is not None and self.fault.name == name

    def read(self) -> Observation:
        self._reads += 1
        two = self.samples[-2:]
        moves = len(two) == 2 and bool((two[0].command != two[1].command).any())
        if self._armed and self.begun_ns is None and not self.fault.at_start and self._reads > self._tick and moves:
            self.begun_ns = self._robot.clock.now_ns()
            self._robot.disturbance = self._disturbance
        observation: Observation = self._robot.read()
        return observation

    def write(self, action: Float32Array) -> Float32Array:
        condition = getattr(self._robot, "condition", None)
        position = None if condition is None else condition().position.copy()
        if not self.samples:
            self._robot.disturbance = None if self.fault.at_start else self._robot.disturbance
            self.first_jump = float(np.abs(action - self._robot.rest_command()).max())
        self.samples.append(Sample(self._robot.clock.now_ns(), action.copy(), position))
        sent: Float32Array = self._robot.write(action)
        return sent


class _Faulty:
    """A part of the loop that is unchanged but for its fault."""

    def __init__(self, inner: Any, robot: _FaultyRobot) -> None:
        self._inner, self._robot = inner, robot

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_inner"], name)


class _FaultyPlanner(_Faulty):
    def request(self, request: PlanRequest, inference: Inference) -> None:
        if not self._robot.going_on("policy_silent"):
            self._inner.request(request, inference)

    def poll(self) -> list[Plan]:
        plans: list[Plan] = self._inner.poll()
        return [] if self._robot.going_on("policy_silent") else plans

    def wait(self) -> int:
        return 0 if self._robot.going_on("policy_silent") else self._inner.wait()


class _FaultySource(_Faulty):
    def propose(self, observation: Observation, now_ns: int) -> TickAction:
        proposal: TickAction = self._inner.propose(observation, now_ns)
        if self._robot.going_on("policy_nan"):
            proposal = replace(proposal, action=np.full_like(proposal.action, np.nan))
        return proposal
