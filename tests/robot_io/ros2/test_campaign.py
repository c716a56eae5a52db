"""The campaign over topics, with the real node and rclpy: faults are met, and a node that overlooks one fails."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_io.faults import FAULTS, Sample, Settings, judge
from robot_io.limits import RobotLimits
from tests.fakes.ros2_rig import RMWS, run_with_ros
from tests.fakes.ros2_scripts import ros_or_skip

QUICK = ("camera_silent", "driver_silent", "joint_frozen", "effort", "clock_jump", "policy_nan", "node_paused")
MORE = (
    "policy_killed",
    "policy_hangs",
    "rival",
    "twin",
    "estop_pressed",
    "estop_gone",
    "estop_called",
    "deadman_released",
    "deadman_silent",
    "controller_idle",
    "manager_gone",
    "start_twice",
    "start_off",
    "loss_70",
)


def campaign(folder: Path, rmw: str, **asked: Any) -> dict[str, Any]:
    environment = ros_or_skip(rmw)
    arguments = json.dumps({"folder": str(folder), **asked})
    found: dict[str, Any] = run_with_ros("benchmarks.campaign", [arguments], environment, timeout_s=500.0)
    return found


@pytest.fixture(scope="module")
def refused_and_met(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return campaign(tmp_path_factory.mktemp("campaign"), RMWS[0], refusals=True, trials=dict.fromkeys(QUICK, 1))


def all_met(found: dict[str, Any], faults: list[str]) -> None:
    assert [trial for trial in found["trials"] if not trial["passed"]] == []
    assert [trial["fault"] for trial in found["trials"]] == faults
    assert max(found["first_jumps"]) <= 1.0 + 1e-4


@pytest.mark.slow
def test_faults_are_met_in_the_declared_time(refused_and_met: dict[str, Any]) -> None:
    all_met(refused_and_met, list(QUICK))


@pytest.mark.slow
def test_other_faults_are_met_on_the_other_middleware(tmp_path: Path) -> None:
    all_met(campaign(tmp_path, RMWS[1], trials=dict.fromkeys(MORE, 1)), list(MORE))


@pytest.mark.slow
def test_a_node_that_does_not_look_is_found_out(tmp_path: Path) -> None:
    """The limits of the node are not those that the campaign declares."""
    blind = {"overrides": ["gate.max_observation_age_ms=60000", "execution.cold_start_ticks=400"], "estop_topic": ""}
    found = campaign(tmp_path, RMWS[0], trials={"camera_silent": 1, "estop_pressed": 1, "effort": 1}, node=blind)
    camera, estop, effort = found["trials"]
    assert not camera["passed"]
    assert not estop["passed"]
    assert "too long" in camera["why_not"]
    assert effort["passed"], "what it does look at is still noticed after the trials that failed"


def test_a_command_that_was_under_way_does_not_hide_a_frozen_joint() -> None:
    """The observer sees one more command that follows the reading before the fault."""
    limits = RobotLimits(low=(-1.0,), high=(1.0,), max_velocity=(2.0,))
    samples = [
        Sample(tick * 50_000_000, np.float32([0.04 * tick]), np.float32([0.04 * min(tick, 3)])) for tick in range(16)
    ]
    finding = judge(FAULTS["joints_frozen"], samples[2].at_ns, samples, Settings(limits, 20.0, 16, 20))
    assert (finding.passed, finding.why_not) == (True, "")
    assert finding.reaction_ms == pytest.approx(600.0)
    thawed = [*samples, Sample(16 * 50_000_000, np.float32([0.7]), np.float32([0.5]))]
    finding = judge(FAULTS["joints_frozen"], samples[2].at_ns, thawed, Settings(limits, 20.0, 16, 20))
    assert finding.why_not == "the fault never showed"


@pytest.mark.slow
def test_the_launch_of_the_page_runs_as_installed(tmp_path: Path) -> None:
    asked = {"folder": str(tmp_path), "policy": "expert:sim:vla_rl/PegInsert-v0?difficulty=0.3", "episodes": 2}
    environment = ros_or_skip()
    found = run_with_ros("benchmarks.ros2_launch", [json.dumps(asked)], environment, timeout_s=300.0)
    assert found["episodes"]["episodes"] == 2
    assert int(found["loop"]["ticks"]) > 0
    assert set(found["latency_ms"]) == {"p50", "p99"}


@pytest.mark.slow
def test_what_has_to_be_refused_is_refused(refused_and_met: dict[str, Any]) -> None:
    found = refused_and_met["refusals"]
    assert len(found) > 40
    assert [entry["refusal"] for entry in found if not entry["refused"]] == []
