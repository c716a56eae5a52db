"""The verb rollout: one loop, gate and recorder for every robot, by name."""

import gc
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robot_io.gate import GateConfig
from tests.fakes.scheduled import ScheduledTakeover
from vla_rl.acting import rollout
from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.robots import RobotRequest, set_up_robot
from vla_rl.cli.main import main
from vla_rl.core.clock import VirtualClock
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Policy, TakeoverSource
from vla_rl.core.types import Observation, Origin, Source
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.executor import Executor
from vla_rl.execution.inference_process import MessageLayout
from vla_rl.execution.plan import InlinePlanner, Planner
from vla_rl.execution.strategies import ExecutionConfig
from vla_rl.outcomes import Judgment
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, VisionConfig

TASK = "vla_rl/PegInsert-v0"


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of a few thousand weights for the default task, that has learnt nothing."""
    folder = tmp_path_factory.mktemp("policy")
    random = np.random.default_rng(0)
    vectors = random.uniform(-0.1, 0.2, (50, 8)).astype(np.float32)
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    torch.manual_seed(0)
    model = FlowVLA(
        config, PolicySpec(TASK, ("front", "top"), (32, 32), 8, 8), Statistics.from_arrays(vectors, vectors)
    )
    model.save(folder, {"policy_version": 5})
    return folder


@pytest.mark.slow
def test_episodes_are_recorded_through_gate_and_delay(policy: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    arguments = ["rollout", str(policy), "--robot", "sim", "--episodes", "2", "--seed", "7", "--out", str(store)]
    changes = ["latency.typical=3", "robot.difficulty=0.2"]
    assert main([*arguments, *changes]) == 0
    assert main([*arguments, "--strategy", "rtc", *changes]) == 0
    episodes = EpisodeStore(store, create=False)
    assert episodes.ids() == [f"rollout-00000{number}" for number in range(4)]
    first, again = episodes.read("rollout-000000"), episodes.read("rollout-000002")
    assert (first.seed, first.env_id, first.origin, first.policy_version) == (7, TASK, Origin.SIM, 5)
    assert (first.source[:3] == Source.HOLD).all(), "three ticks of delay, then the first chunk"
    assert first.source[3] == Source.POLICY
    assert {"chunk_id", "chunk_index", "observation_age_ms", "action_age_ms", "gate_reasons"} <= first.extras.keys()
    np.testing.assert_array_equal(first.images["front"][0], again.images["front"][0])


def test_wrong_stops_of_the_detector_are_counted(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Always:
        name = "always"

        def reset(self, state_dimensions: Dimensions) -> None: ...

        def step(self, observation: Observation) -> Judgment:
            return Judgment(True, 1.0)

    monkeypatch.setattr(rollout, "DeployedDetector", lambda folder, rename: Always())
    store = tmp_path / "store"
    arguments = ["rollout", str(policy), "--robot", "sim", "--episodes", "2", "--out", str(store)]
    assert main([*arguments, "--detector", "always"]) == 0
    assert "the detector ended 2: 2 wrongly, 0 without an outcome" in capsys.readouterr().out
    assert [(len(each), each.success) for each in EpisodeStore(store)] == [(2, False), (2, False)]
    assert main([*arguments[:2], "--robot", "mock", "--detector", "always", "robot.duration_s=0.5"]) == 0
    assert "the detector ended 1: 0 wrongly, 1 without an outcome" in capsys.readouterr().out


def test_grippers_that_nobody_declared_are_those_of_the_robots_gate(
    policy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ExecutionConfig] = []

    class Watched(Executor):
        def __init__(self, planner: Planner, config: ExecutionConfig, *others: Any) -> None:
            seen.append(config)
            super().__init__(planner, config, *others)

    monkeypatch.setattr(rollout, "Executor", Watched)
    start = ["rollout", str(policy), "--robot", "sim", "robot.difficulty=0.2"]
    assert main(start) == main([*start, "execution.discrete_dims=[7]"]) == 0
    assert [config.discrete_dims for config in seen] == [(3, 7), (7,)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy for robots of 4 and of 8 joints; the larger one has two grippers."""
    folder = tmp_path_factory.mktemp("shared")
    vectors = np.random.default_rng(0).uniform(-0.1, 0.2, (50, 8)).astype(np.float32)
    config = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))
    spec = PolicySpec(TASK, ("front", "top"), (32, 32), 8, 8, sizes=((4, 4), (8, 8)))
    FlowVLA(config, spec, Statistics.from_arrays(vectors, vectors, (3, 7))).save(folder)
    return folder


SMALLER = ["--robot", "mock", "robot.joints=4", "robot.state_size=4", "robot.duration_s=1.5"]


def test_a_smaller_robot_has_its_own_grippers_of_a_shared_policy(shared: Path, tmp_path: Path) -> None:
    arguments = ["rollout", str(shared), "--strategy", "temporal_ensembling", "--out", str(tmp_path), *SMALLER]
    assert main(arguments) == main([*arguments, "execution.discrete_dims=[3,7]"]) == 0
    store = EpisodeStore(tmp_path, create=False)
    first, named = (store.read(name) for name in store.ids())
    assert first.action_sent.shape[1] == 4
    assert (first.source == Source.POLICY).sum() > 20
    np.testing.assert_array_equal(first.action_policy, named.action_policy)


@pytest.mark.slow
def test_messages_have_the_sizes_of_the_robot_that_acts(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[MessageLayout] = []

    def in_this_process(
        load: Callable[[], Policy], layout: MessageLayout, _: ExecutionConfig
    ) -> AbstractContextManager[Planner]:
        seen.append(layout)
        return nullcontext(InlinePlanner(load()))

    monkeypatch.setattr(rollout, "ProcessPlanner", in_this_process)
    soft = ["realtime.priority=0", "realtime.lock_memory=false", "robot.duration_s=0.2"]
    for robot in (SMALLER, ["--robot", "mock"]):
        assert main(["rollout", str(shared), "--realtime", "--strategy", "naive", *robot, *soft]) == 0
    assert [(layout.state_size, layout.action_size) for layout in seen] == [(4, 4), (8, 8)]


@pytest.mark.slow
def test_a_smaller_robot_acts_in_real_time(shared: Path, tmp_path: Path) -> None:
    soft = ["realtime.priority=0", "realtime.lock_memory=false", "execution.cold_start_ticks=10000"]
    arguments = ["rollout", str(shared), "--realtime", "--strategy", "naive", "--out", str(tmp_path)]
    assert main([*arguments, *SMALLER, *soft]) == 0
    episode = EpisodeStore(tmp_path, create=False).read("rollout-000000")
    assert episode.state.shape[1] == episode.action_sent.shape[1] == 4
    assert Source.POLICY in episode.source


def test_a_takeover_is_part_of_the_episode(policy: Path, tmp_path: Path) -> None:
    arguments = ["rollout", str(policy), "--robot", "sim", "--takeover", "--seed", "5", "--out", str(tmp_path)]
    assert main(arguments) == 0
    store = EpisodeStore(tmp_path, create=False)
    assert any((store.read(name).source == Source.HUMAN).any() for name in store.ids())


@pytest.mark.slow
def test_in_real_time_the_control_process_has_no_torch(policy: Path, tmp_path: Path) -> None:
    code = (
        "import sys; from vla_rl.cli.main import main; "
        f"assert main(['rollout', {str(policy)!r}, '--robot', 'mock', '--realtime', '--out', {str(tmp_path)!r}, "
        "'robot.duration_s=0.5', 'realtime.priority=0', 'execution.cold_start_ticks=10000']) == 0; "
        "assert 'torch' not in sys.modules and 'mujoco' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
    episode = EpisodeStore(tmp_path, create=False).read("rollout-000000")
    assert episode.control_hz == 20.0, "the policy's"
    assert set(episode.images) == {"front", "top"}


@pytest.fixture
def real(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The mock robot passes for a real one; what is put here becomes part of its setup."""
    changes: dict[str, Any] = {"origin": Origin.REAL}
    monkeypatch.setattr(rollout, "set_up_robot", lambda *asked: replace(set_up_robot(*asked), **changes))
    return changes


def test_a_real_robot_that_was_stopped_waits_for_a_person(
    policy: Path, tmp_path: Path, real: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["rollout", str(policy), "--robot", "mock", "--episodes", "3", "--out"]
    starved = ["latency.drop_probability=1", "execution.cold_start_ticks=5"]
    assert main([*arguments, str(tmp_path / "real"), *starved]) == 2
    error = capsys.readouterr().err
    assert "the robot was stopped: the policy gave no plan in time; look at the robot" in error
    assert len(EpisodeStore(tmp_path / "real", create=False).ids()) == 1
    real["origin"] = Origin.SIM
    assert main([*arguments, str(tmp_path / "sim"), *starved]) == 0
    assert len(EpisodeStore(tmp_path / "sim", create=False).ids()) == 3, "nobody stands beside a simulator"


def test_a_person_lets_every_attempt_of_a_real_robot_begin(
    policy: Path, tmp_path: Path, real: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stored: list[int] = []
    real["wait_for_person"] = lambda: stored.append(len(EpisodeStore(tmp_path / "store", create=False).ids()))
    arguments = ["rollout", str(policy), "--robot", "mock", "--episodes", "2", "--out", str(tmp_path / "store")]
    short = ["robot.duration_s=0.2"]
    assert main([*arguments, *short]) == 2, "there is no terminal"
    assert stored == []
    assert main([*arguments, "--unattended", *short]) == 0
    assert stored == []
    _, terminal = pty.openpty()
    with os.fdopen(terminal) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert main([*arguments, *short]) == 0
    assert stored == [2, 3], "asked before each of them, when the one before is over"


@pytest.mark.slow
def test_a_teleoperator_is_started_before_the_real_time_priority(
    policy: Path, tmp_path: Path, real: dict[str, Any]
) -> None:
    started: list[bool] = []

    def make_takeover() -> TakeoverSource:
        started.append(gc.isenabled())  # off while the control thread has its priority, which threads would inherit
        return ScheduledTakeover([(5, 10)], lambda tick, proposed: proposed)

    real["make_takeover"] = make_takeover
    arguments = ["rollout", str(policy), "--robot", "mock", "--realtime", "--takeover", "--out", str(tmp_path)]
    assert main([*arguments, "robot.duration_s=0.5", "realtime.priority=0", "realtime.lock_memory=false"]) == 0
    assert started == [True]
    assert Source.HUMAN in EpisodeStore(tmp_path, create=False).read("rollout-000000").source


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (["--robot", "moc"], "Did you mean 'mock'"),
        (["--robot", "mock", "--takeover"], "has no takeover source"),
        (["--robot", "sim", "--version", "3"], "is no run folder"),
        (["--robot", "sim", "--episodes", "0"], "must be at least 1"),
        (["--robot", "sim", "--strategy", "naiv"], "Did you mean 'naive'"),
        (["--robot", "sim", "--strategy", "a2c2"], "vla-rl corrector"),
        (["--robot", "mock", "robot.joint=3"], "unknown key 'joint'"),
        (
            ["--robot", "mock", "robot.joints=3"],
            "8 numbers of state and 3 of action, the policy was trained on 8",
        ),
        (
            ["--robot", "mock", "robot.cameras=[frnt,top]"],
            "needs a camera 'front', the robot has none. Did you",
        ),
        (["--robot", "sim", "latency.drop_probability=2"], "expected a number in [0, 1]"),
        (["--robot", "sim", "--limits", "nowhere.yaml"], "cannot read the config nowhere.yaml"),
    ],
)
def test_what_cannot_work_is_one_clear_line(
    policy: Path, change: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rollout", str(policy), *change]) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert message in error


def test_a_run_gives_its_newest_policy(policy: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("execution: {strategy: naive, execute_ticks: 5}\n")
    for version in (0, 2):
        folder = tmp_path / "policies" / f"version_{version:04d}"
        folder.mkdir(parents=True)
        (folder / "config.json").write_bytes((policy / "config.json").read_bytes())
    assert find_policy(tmp_path).path.name == "version_0002"
    found = find_policy(tmp_path, version=0)
    assert (found.path.name, found.horizon, found.run["execution"]["execute_ticks"]) == ("version_0000", 16, 5)
    with pytest.raises(UserError, match="has no policy version 1"):
        find_policy(tmp_path, version=1)
    (folder / "config.json").write_text(json.dumps({"spec": {}}))
    with pytest.raises(UserError, match=r"config\.json"):
        find_policy(tmp_path)


def test_the_mock_has_pictures_of_the_policys_own_shape() -> None:
    spec = PolicySpec("tall", ("left",), (24, 16), 3, 2, control_hz=7.0)
    robot = set_up_robot("mock", RobotRequest(spec, VirtualClock(), GateConfig())).robot
    assert robot.read().images["left"].shape == (24, 16, 3)
