"""An attempt ends when a success detector has found success, and the robot is braked."""

import sys
from pathlib import Path
from typing import ClassVar

import gymnasium as gym
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "outcomes"))
sys.path.append(str(Path(__file__).parents[1] / "execution"))

from seen_success import played
from tiny_policy import make_model

import vla_rl as vla
from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from robot_io.mock_robot import MockRobot, MockRobotConfig
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.rollout import RolloutOrder, resolve_config, roll_out
from vla_rl.acting.stopping import StopsAtSuccess
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.types import Observation
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator
from vla_rl.outcomes import Judgment, SuccessDetector
from vla_rl.outcomes.deployed import DeployedDetector


class After:
    """Finds success from some observation on."""

    name = "after"

    def __init__(self, count: int) -> None:
        self.count = count

    def reset(self, state_dimensions: Dimensions) -> None:
        self.seen, self.state_dimensions = 0, state_dimensions

    def step(self, observation: Observation) -> Judgment:
        self.seen += 1
        return Judgment(True if self.seen > self.count else None, 0.5)


class Solved(gym.Env):
    """Reports success from a step on, and ends at the 20th. None: it reports at its end alone."""

    observation_space = gym.spaces.Dict({"state": gym.spaces.Box(-1, 1, (2,), np.float32)})
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    metadata: ClassVar = {"render_fps": 20}

    def __init__(self, solved_after: int | None, ends_after: int = 20) -> None:
        self.solved_after, self.ends_after = solved_after, ends_after

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.steps = 0
        return {"state": np.zeros(2, np.float32)}, {}

    def step(self, action: np.ndarray) -> tuple[dict, float, bool, bool, dict]:
        self.steps += 1
        ends = self.steps >= self.ends_after
        info = {"is_success": self.steps >= (self.solved_after or 0)} if self.solved_after or ends else {}
        return {"state": np.zeros(2, np.float32)}, 0.0, False, ends, info


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policy") / "policy"
    make_model().save(folder, {"policy_version": 0})
    return folder


def test_an_attempt_ends_when_success_is_found_and_its_outcome_stays_open(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("vla_rl.acting.rollout.DeployedDetector", lambda folder, rename: After(12))
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
    assert detector.state_dimensions == robot.state_dimensions != Dimensions()
    assert detector.seen == 3, "the first observation, and one after each command"
    assert not robot.terminated


@pytest.mark.parametrize(
    ("world", "ticks", "outcome"),
    [
        (Solved(3), 7, True),
        (Solved(9), 7, False),
        (Solved(7), 7, True),
        (Solved(None), 7, None),
        (Solved(9, ends_after=7), 7, False),
        (Solved(3, ends_after=5), 5, True),
    ],
    ids=["solved", "wrong stop", "last step", "not reported yet", "ends at the stop", "ends before"],
)
def test_a_world_that_the_detector_ended_is_judged_by_its_last_step(
    world: Solved, ticks: int, outcome: bool | None
) -> None:
    robot = StopsAtSuccess(EnvRobot(world), After(6))
    gate = SafetyGate(GateConfig(low=(-1.0, -1.0), high=(1.0, 1.0), max_velocity=(1.0, 1.0)), 20.0)
    still = Demonstrator(lambda: (np.zeros(2, np.float32),) * 2)
    for _ in range(2):  # the second attempt knows nothing of the first
        summary = run_episode(robot, still, gate, seed=0)
        assert (summary.ticks, summary.success) == (ticks, outcome)


def test_an_attempt_that_the_detector_did_not_end_fails_where_it_is_stopped() -> None:
    robot = StopsAtSuccess(EnvRobot(Solved(1)), After(6))
    robot.reset(0)
    robot.write(np.zeros(2, np.float32))
    robot.stop()
    assert robot.success is False


def test_a_fault_reaches_a_robot_that_is_watched(policy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_rl.acting.rollout.DeployedDetector", lambda folder, rename: After(10**6))
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
