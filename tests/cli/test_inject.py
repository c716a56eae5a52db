"""``vla-rl rollout --inject``: every fault is met in time on any robot, what does not apply is refused by name, and a
gate or a robot that overlooks a fault is found out.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from robot_io.faults import FAULTS, Watch
from robot_io.gate import SafetyGate
from robot_io.limits import RobotLimits
from robot_io.mock_robot import MockRobot
from vla_rl.cli.main import main
from vla_rl.core.types import PolicySpec
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig
from vla_rl.policies.normalization import Statistics


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
    monkeypatch.setattr(MockRobot, "tap", property(lambda _: None, lambda *_: None), raising=True)
    assert inject(policy, "mock", "camera_silent") == 1, "a fault that never reaches the robot is no passed one"


def test_every_fault_has_a_declared_time_and_a_name_for_one_thing() -> None:
    assert len({fault.what for fault in FAULTS.values()}) == len(FAULTS)
    assert {fault.watch for fault in FAULTS.values()} == set(Watch)
    assert RobotLimits().body.max_effort == ()
