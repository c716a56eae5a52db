"""An attempt ends when a success detector has found success, and the robot is braked."""

import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "outcomes"))
sys.path.append(str(Path(__file__).parents[1] / "execution"))

from seen_success import played
from tiny_policy import make_model

import vla_rl as vla
from robot_io.mock_robot import MockRobot, MockRobotConfig
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.rollout import RolloutOrder, resolve_config, roll_out
from vla_rl.acting.stopping import StopsAtSuccess
from vla_rl.core.errors import UserError
from vla_rl.core.types import Observation
from vla_rl.data.store import EpisodeStore
from vla_rl.outcomes import Judgment, SuccessDetector
from vla_rl.outcomes.deployed import DeployedDetector


class After:
    """Finds success from some observation on."""

    name = "after"

    def __init__(self, count: int) -> None:
        self.count = count

    def reset(self) -> None:
        self.seen = 0

    def step(self, observation: Observation) -> Judgment:
        self.seen += 1
        return Judgment(True if self.seen > self.count else None, 0.5)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    make_model().save(folder, {"policy_version": 0})
    return folder


def test_an_attempt_ends_when_success_is_found_and_its_outcome_stays_open(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vla_rl.acting.rollout.DeployedDetector", lambda folder: After(12))
    with caplog.at_level("INFO"):
        assert vla.rollout(policy, "mock", 2, out=tmp_path / "store", detector="ignored") == [None, None]
    store = EpisodeStore(tmp_path / "store")
    for name in store.ids():
        episode = store.read(name)
        assert len(episode) == 13, "12 commands, then the one of the tick that found it"
        assert episode.terminated
        assert episode.success is None
    assert "after found success after 12 ticks" in caplog.text


def test_what_is_seen_once_the_robot_is_stopped_is_not_judged() -> None:
    detector = After(3)
    robot = StopsAtSuccess(MockRobot(), detector)
    robot.reset(0)
    for _ in range(2):
        robot.write(np.zeros(6, np.float32))
        robot.read()
        robot.read()
    robot.stop()
    robot.read()
    assert detector.seen == 3, "the first observation, and one after each command"
    assert not robot.terminated


def test_a_fault_reaches_a_robot_that_is_watched(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_rl.acting.rollout.DeployedDetector", lambda folder: After(10**6))
    found = find_policy(policy)
    order = RolloutOrder(found, "mock", inject="joints_frozen", detector=Path("ignored"))
    (finding,) = roll_out(order, resolve_config(found)).findings
    assert finding.passed, finding


@pytest.mark.slow
def test_a_detector_that_cannot_see_is_refused_before_the_robot_moves(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    detector = SuccessDetector.fit([played(f"e{index}", index % 2 == 0, index) for index in range(24)], policy)
    detector.export(tmp_path / "detector")
    assert vla.rollout(policy, "mock", detector=tmp_path / "detector", settings={"robot.duration_s": 0.5}) == [None]
    robot = MockRobot(MockRobotConfig(joints=2, state_size=3, image_size=16))
    with pytest.raises(UserError, match=r"lacks the cameras \['top'\]"):
        StopsAtSuccess(robot, DeployedDetector(tmp_path / "detector")).reset(0)
    assert not robot.writes
