"""``vla-rl rollout --inject``: every fault is met in time on any robot, what does not apply is refused by name, and a
gate or a robot that overlooks a fault is found out.
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lerobot.robots.config import RobotConfig
from vla_rl_lerobot.robot import LerobotRobot

from robot_io.faults import FAULTS, Detector
from robot_io.gate import GateConfig, SafetyGate
from robot_io.limits import RobotLimits
from robot_io.mock_robot import MockRobot
from tests.fakes.lerobot_arm import MemoryArm
from vla_rl.acting.injection import Injection
from vla_rl.acting.robots import RobotSetup
from vla_rl.cli.main import main
from vla_rl.core.clock import VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.loop import run_episode
from vla_rl.execution.plan import InlinePlanner
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of a few thousand weights for the default task, that has learnt nothing: it never stands still."""
    folder = tmp_path_factory.mktemp("policy")
    vectors = np.random.default_rng(0).uniform(-0.1, 0.2, (50, 8)).astype(np.float32)
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    torch.manual_seed(0)
    spec = PolicySpec("vla_rl/PegInsert-v0", ("front", "top"), (32, 32), 8, 8)
    FlowVLA(config, spec, Statistics.from_arrays(vectors, vectors)).save(folder, {"policy_version": 5})
    return folder


def inject(policy: Path, robot: str, faults: str, *more: str) -> int:
    return main(["rollout", str(policy), "--robot", robot, "--inject", faults, *more])


@pytest.mark.slow
@pytest.mark.parametrize("robot", ["sim", "mock"])
def test_every_fault_that_applies_is_met_in_time(
    policy: Path, robot: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inject(policy, robot, "all", "--seed", "3", "--out", str(tmp_path)) == 0
    rows = [line.split("|")[1:-1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    names = [row[0].strip() for row in rows]
    assert {"camera_silent", "joints_silent", "policy_nan", "policy_silent"} <= set(names)
    assert ("following_error" in names) == (robot == "mock")
    assert all(row[-1].strip() == "passed" for row in rows)
    assert all(float(row[3]) <= float(row[4]) for row in rows)
    assert len(EpisodeStore(tmp_path, create=False)) >= len(names), "every attempt is kept"


@pytest.mark.parametrize(
    ("robot", "faults", "message"),
    [
        ("sim", "camera_silnt", "there is no fault 'camera_silnt'. Did you mean 'camera_silent'"),
        ("sim", "camera_silent,following_error", "fault 'following_error' does not apply to this robot"),
        ("mock", "rival", "python -m benchmarks robot tries it"),
        ("mock", "start_far", "several readings before the first command"),
        ("mock", " , ", "name faults, or all"),
    ],
)
def test_what_cannot_be_tried_is_refused_by_name(
    policy: Path, robot: str, faults: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert inject(policy, robot, faults) == 2
    assert message in capsys.readouterr().err


def test_a_gate_that_overlooks_old_readings_fails(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    admit = SafetyGate.admit
    monkeypatch.setattr(SafetyGate, "admit", lambda gate, action, now, _, *rest: admit(gate, action, now, now, *rest))
    assert inject(policy, "sim", "camera_silent,policy_nan") == 1
    said = capsys.readouterr().out
    assert "| camera_silent | 1 | 1 |" in said
    assert "FAILED: commands went on for too long" in said
    assert "| policy_nan | 1 | 0 |" in said


def test_a_gate_that_never_looks_at_the_body_fails(
    policy: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(SafetyGate, "inspect", lambda *_: None)
    assert inject(policy, "mock", "joint_beyond") == 1
    assert "FAILED" in capsys.readouterr().out


def test_a_robot_without_a_tap_is_found_out(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MockRobot, "disturbance", property(lambda _: None, lambda *_: None), raising=True)
    assert inject(policy, "mock", "camera_silent") == 1, "a fault that never reaches the robot is no passed one"


@RobotConfig.register_subclass("injected_arm")
@dataclass(kw_only=True)
class InjectedArmConfig(RobotConfig):
    pass


class InjectedArm(MemoryArm):
    """Two joints that follow at once, and a camera."""

    config_class = InjectedArmConfig
    name = "injected_arm"
    observation_features: ClassVar = {"a.pos": float, "b.pos": float, "front": (8, 8, 3)}
    action_features: ClassVar = {"a.pos": float, "b.pos": float}

    def __init__(self) -> None:
        super().__init__(InjectedArmConfig())
        self.position = {"a.pos": 0.1, "b.pos": -0.1}
        self.pictures = 0

    def get_observation(self) -> dict[str, Any]:
        self.pictures += 1
        return {**self.position, "front": np.full((8, 8, 3), self.pictures % 256, np.uint8)}

    def send_action(self, action: dict[str, Any]) -> dict[str, Any]:
        self.position = dict(action)
        return self.position


class Waves:
    version = 0

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        ticks = observation.tick + np.arange(16)[:, None]
        return ActionChunk(np.sin(0.2 * ticks + np.arange(2)).astype(np.float32) / 2, observation.tick, 0, 0)


def test_a_robot_of_lerobot_gets_the_same_faults_and_the_same_refusals() -> None:
    limits = GateConfig(low=(-1.0,) * 2, high=(1.0,) * 2, max_velocity=(3.0,) * 2)
    robot = LerobotRobot(InjectedArm(), 20.0, "", clock=VirtualClock())
    setup = RobotSetup(robot, SafetyGate(limits, 20.0), Origin.REAL, "arm", wait_for_person=lambda: None)
    with pytest.raises(UserError, match="a person checks a real robot"):
        Injection(replace(setup, wait_for_person=None), "all", 16, 10, seed=0)
    execution = ExecutionConfig(execute_ticks=4, hold_ticks=10)
    injection = Injection(setup, "all", 16, execution.hold_ticks, seed=0)
    source = injection.source(Executor(injection.planner(InlinePlanner(Waves())), execution))
    robot.connect()
    for seed in injection.seeds(0):
        injection.attempt(partial(run_episode, injection.setup.robot, source, setup.gate, seed=seed))
    assert {finding.fault for finding in injection.findings} == {
        name for name, fault in FAULTS.items() if fault.detector in LerobotRobot.detectors
    }
    assert [finding for finding in injection.findings if not finding.passed] == []
    assert robot.disturbance is None


def test_every_fault_has_a_declared_time_and_a_name_for_one_thing() -> None:
    assert len({fault.what for fault in FAULTS.values()}) == len(FAULTS)
    assert {fault.detector for fault in FAULTS.values()} == set(Detector)
    assert RobotLimits().joint_monitor.max_effort == ()
