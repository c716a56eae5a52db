"""The campaign over topics, with the real node and rclpy: faults are met, and a node that overlooks one fails."""

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robot_io.faults import FAULTS, Sample, Settings, judge
from robot_io.limits import RobotLimits
from tests.fakes.ros2_rig import RMWS, run_with_ros
from tests.fakes.ros2_scripts import ros_or_skip, side_by_side

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


# The limits of the node that does not look are not those that the campaign declares.
BLIND = {"overrides": ["gate.max_observation_age_ms=60000", "execution.cold_start_ticks=400"], "estop_topic": ""}
CAMPAIGNS = {
    "refusals": (RMWS[0], {"refusals": True}),
    "quick": (RMWS[0], {"trials": dict.fromkeys(QUICK, 1)}),
    "more": (RMWS[1], {"trials": dict.fromkeys(MORE, 1)}),
    "blind": (RMWS[0], {"trials": {"camera_silent": 1, "estop_pressed": 1, "effort": 1}, "node": BLIND}),
}


@pytest.fixture(scope="module")
def campaigns(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Future[dict[str, Any]]]:
    begun = {}
    for name, (rmw, asked) in CAMPAIGNS.items():
        arguments = json.dumps({"folder": str(tmp_path_factory.mktemp(name)), **asked})
        begun[name] = side_by_side.submit(run_with_ros, "benchmarks.campaign", [arguments], ros_or_skip(rmw), 500.0)
    return begun


@pytest.mark.slow
@pytest.mark.parametrize(("name", "faults"), [("quick", QUICK), ("more", MORE)], ids=RMWS)
def test_faults_are_met_in_the_declared_time(
    campaigns: dict[str, Future[dict[str, Any]]], name: str, faults: tuple[str, ...]
) -> None:
    found = campaigns[name].result()
    assert [trial for trial in found["trials"] if not trial["passed"]] == []
    assert [trial["fault"] for trial in found["trials"]] == list(faults)
    assert max(found["first_jumps"]) <= 1.0 + 1e-4


@pytest.mark.slow
def test_a_node_that_does_not_look_is_found_out(campaigns: dict[str, Future[dict[str, Any]]]) -> None:
    camera, estop, effort = campaigns["blind"].result()["trials"]
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
def test_what_has_to_be_refused_is_refused(campaigns: dict[str, Future[dict[str, Any]]]) -> None:
    found = campaigns["refusals"].result()["refusals"]
    assert len(found) > 40
    assert [entry["refusal"] for entry in found if not entry["refused"]] == []
