"""``vla-rl robot check``: the list before a robot moves, its exit code, and that nothing is sent."""

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_io.faults import FAULTS
from robot_io.mock_robot import MockRobot
from vla_rl.acting.robot_check import check_robot
from vla_rl.acting.robots import RobotRequest, RobotSetup, find
from vla_rl.cli.main import main
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Float32Array
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of a few thousand weights that has learnt nothing."""
    folder = tmp_path_factory.mktemp("policy")
    vectors = np.random.default_rng(0).uniform(-0.1, 0.2, (50, 3)).astype(np.float32)
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    torch.manual_seed(0)
    model = FlowVLA(config, PolicySpec("arm", ("front",), (16, 16), 3, 3), Statistics.from_arrays(vectors, vectors))
    model.save(folder, {"policy_version": 0})
    return folder


def check(policy: Path, capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, str]:
    code = main(["robot", "check", str(policy), "--robot", "mock", *more])
    return code, capsys.readouterr().out


def test_a_robot_that_is_ready(
    policy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Float32Array] = []
    monkeypatch.setattr(MockRobot, "write", lambda robot, action: sent.append(action))
    code, told = check(policy, capsys)
    assert code == 0, told
    assert "NO" not in told
    for words in (
        "20 Hz",
        "state by position (no names from the policy)",
        "rtc",
        "1 reading of [",
        "a person can stop it by hand",
    ):
        assert words in told
    assert re.search(r"front \d+ ms", told), "however busy the machine is"
    assert sent == [], "a look is no command"


def test_a_setting_that_is_no_number_is_refused_before_anything_is_asked(
    policy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["robot", "check", str(policy), "--robot", "mock", "gate.max_observation_age_ms=.nan"]
    assert main(arguments) == 2
    assert "not finite" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("more", "question"),
    [
        (["--strategy", "sync"], "the robot does not stand still to think: sync"),
        (
            ["--strategy", "a2c2"],
            "the policy supports the execution strategy: execution.strategy=a2c2 requires",
        ),
        (["robot.control_hz=50"], "the rate is the policy's: control_hz is 50"),
        (["gate.low=[-1,-1]", "gate.high=[1,1]", "gate.max_velocity=[1,1]"], "limits are"),
        (
            ["gate.low=[0.9,0.9,0.9]"],
            "readings agree, and the rest posture is inside the limits: the robot",
        ),
        (["robot.cameras=[top]"], "the robot fits policy and limits"),
        (["robot.image_size=8"], "cameras have the policy's names and sizes"),
    ],
)
def test_one_no_is_enough(policy: Path, capsys: pytest.CaptureFixture[str], more: list[str], question: str) -> None:
    code, told = check(policy, capsys, *more)
    assert code == 1, told
    assert f"NO   {question}" in told


def test_a_robot_whose_camera_is_silent_and_that_nobody_can_stop(policy: Path) -> None:
    from vla_rl.acting.policy_folder import find_policy
    from vla_rl.acting.rollout import resolve_config

    folder = find_policy(policy)
    items = check_robot(f"{__name__}:silent", folder, resolve_config(folder, realtime=True), {})
    refused = {item.question for item in items if not item.answer}
    assert refused == {"readings are younger than 200 ms", "a person can stop it by hand"}


def silent(request: RobotRequest) -> RobotSetup:
    """The mock with an old picture, and nothing to stop it with."""
    setup: RobotSetup = find("robots", "mock")(request)
    robot: Any = setup.robot
    reset = robot.reset

    def reset_to_old(seed: int) -> None:
        reset(seed)
        robot.disturbance = None
        robot.read()
        robot.disturbance = FAULTS["camera_silent"].disturbance(random.Random(seed), setup.gate.config)
        robot._staleness.captured_ns["front"] -= 10**9

    robot.reset = reset_to_old
    return RobotSetup(robot, setup.gate, setup.origin, setup.env_id)
