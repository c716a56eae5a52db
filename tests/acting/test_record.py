"""Recording: only successes are kept, whoever drives and whatever he drives."""

from pathlib import Path

import numpy as np
import pytest

from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from tests.execution.toys import ReachEnv
from tests.fakes.scheduled import ScheduledTakeover
from vla_rl.acting.robots import RobotRequest, RobotSetup
from vla_rl.cli.main import main
from vla_rl.core.types import Float32Array, Origin, Source
from vla_rl.data.sources import find_store
from vla_rl.data.store import EpisodeStore

HERE = __name__


def arm(request: RobotRequest) -> RobotSetup:
    """A robot whose teleoperator finds the target in every second attempt."""
    assert request.policy is None, "nobody but a person drives"
    env = ReachEnv(limit=40)
    attempts = {"seen": 0}

    def drive(tick: int, still: Float32Array) -> Float32Array:
        attempts["seen"] += tick == 0
        return env.target if attempts["seen"] % 2 == 0 else still

    gate = SafetyGate(GateConfig(low=(-1, -1), high=(1, 1), max_velocity=(9, 9)), 20)
    return RobotSetup(EnvRobot(env), gate, Origin.REAL, "arm", lambda: ScheduledTakeover([(0, 99)], drive))


def unattended(request: RobotRequest) -> RobotSetup:
    gate = SafetyGate(GateConfig(low=(-1, -1), high=(1, 1), max_velocity=(9, 9)), 20)
    return RobotSetup(EnvRobot(ReachEnv()), gate, Origin.REAL, "arm")


def test_a_robot_is_recorded_with_its_own_teleoperator(tmp_path: Path) -> None:
    out = tmp_path / "store"
    assert main(["record", "--robot", f"{HERE}:arm", "--episodes", "2", "--out", str(out)]) == 0
    store = EpisodeStore(out, create=False)
    assert store.ids() == ["demo-000000", "demo-000001"]
    episode = store.read("demo-000001")
    assert (episode.origin, episode.success, episode.env_id, episode.seed) == (Origin.DEMO, True, "arm", 3)
    assert set(episode.source) == {Source.DEMO}


def test_an_expert_is_recorded_and_numbers_go_on(tmp_path: Path) -> None:
    command = ["record", "vla_rl/PickPlace-v0", "--episodes", "1", "--out", str(tmp_path), "task.image_size=16"]
    for seed in ([], [], ["--seed", "7"], []):
        assert main([*command, *seed]) == 0
    store = EpisodeStore(tmp_path, create=False)
    assert store.ids() == [f"demo-{number:06d}" for number in range(4)]
    assert [store.read_header(name).seed for name in store.ids()] == [0, 1, 7, 8]
    assert not np.array_equal(store.read("demo-000000").state[0], store.read("demo-000001").state[0])


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "name either a task or --robot NAME"),
        (["vla_rl/PickPlace-v0", "--robot", "mock"], "name either a task or --robot NAME"),
        (["vla_rl/PickPlace-v0", "--episodes", "0"], "--episodes is 0"),
        (["--robot", f"{HERE}:unattended"], "has no teleoperator: name it"),
        (["tests.execution.toys:ReachEnv"], "task.demonstrations=PATH"),
        (["vla_rl/PickPlace-v0", "--with", "keyboard"], "needs a terminal"),
        (["vla_rl/PickPlace-v0", "--with", "spacemose"], "no takeover source 'spacemose'"),
        (["vla_rl/PickPlace-v0", "task.difficulty=2"], "difficulty is 2"),
    ],
)
def test_what_cannot_be_recorded_is_said(
    arguments: list[str], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["record", *arguments, "--out", str(tmp_path / "store")]) == 2
    assert complaint in capsys.readouterr().err


def test_a_run_and_a_recording_never_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The store of the one would hide that of the other."""
    command = ["record", "vla_rl/PickPlace-v0", "--episodes", "1", "task.image_size=16", "--out"]
    run, store = tmp_path / "run", tmp_path / "store"
    run.mkdir()
    (run / "config.yaml").touch()
    assert main([*command, str(run)]) == 2
    assert f"{run} is a run; record into a folder of its own" in capsys.readouterr().err
    assert not (run / "store.json").exists()
    assert main([*command, str(store)]) == 0
    assert main(["train", "--config", "tiny", "--out", str(store)]) == 2
    assert f"{store} is an episode store; choose another --out" in capsys.readouterr().err
    assert not (store / "config.yaml").exists()
    EpisodeStore(run / "episodes")
    EpisodeStore(run)  # of a version that did not refuse it
    found = find_store(run)
    assert found is not None
    assert found.path == run / "episodes"


def test_a_script_that_keeps_failing_is_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hopeless = ["takeover.supervisor=scripted", "takeover.options.rescue_probability=0"]
    command = ["record", "vla_rl/PickPlace-v0", "--with", "scripted", *hopeless, "--out", str(tmp_path)]
    assert main([*command, "task.image_size=16"]) == 2
    assert "5 attempts in a row were no success" in capsys.readouterr().err
    assert not EpisodeStore(tmp_path).ids()
