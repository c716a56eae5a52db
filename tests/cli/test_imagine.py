"""`vla-rl imagine` from end to end on the simulator, very small; what it needs to be right is tested in
tests/world_model.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from robot_io.gate import GateConfig
from vla_rl.acting.world_folder import WorldFolder, collect_near_success, has_expert
from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.core.types import Origin, Source
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.flow_vla.config import ExpertConfig, FlowVLAConfig, VisionConfig
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.training import world_model
from vla_rl.training.config import RunConfig, TaskConfig

TASK = TaskConfig(image_size=32, difficulty=0.0)
TINY = ["dynamics.steps=3", "dynamics.members=2", "decoder_steps=2"]
POLICY = FlowVLAConfig(vision=VisionConfig(widths=(4,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a few recorded episodes and an untrained policy."""
    folder = RunFolder.create(tmp_path_factory.mktemp("run") / "run", RunConfig(task=TASK))
    config = RunConfig(task=TASK)
    for path, seed in ((folder.episodes, 10), (folder.evaluation, 20)):
        collect_near_success(TASK, config.gate, EpisodeStore(path), 2, seed)
    torch.manual_seed(0)
    FlowVLA.build(POLICY, *EpisodeStore(folder.episodes).summary()).save(folder.policy(0), {"policy_version": 0})
    return folder.path


def test_only_near_successes_need_an_expert(tmp_path: Path) -> None:
    without, store = TaskConfig(env="tests.execution.toys:ReachEnv"), EpisodeStore(tmp_path)
    with pytest.raises(UserError, match="no expert"):
        collect_near_success(without, GateConfig(), store, 1, 0)
    collect_near_success(without, GateConfig(), store, 0, 0)
    assert store.ids() == []


@pytest.mark.slow
def test_near_successes_teach_no_policy(run: Path) -> None:
    store = EpisodeStore(run / "episodes")
    for name in store.ids():
        episode = store.read(name)
        assert episode.origin is Origin.SIM
        assert (episode.source == Source.DEMO).all()
        assert (episode.action_policy != episode.action_sent).any()


@pytest.mark.slow
def test_train_and_roll_out(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    world = tmp_path / "world"
    train = ["imagine", "train", str(run), "--out", str(world), "--near-success", "1", *TINY]
    assert main(train) == 0
    assert len(EpisodeStore(world / "episodes")) == 3
    (file,) = (world / "model").glob("*.safetensors")
    weights = file.read_bytes()
    assert main(train) == 0  # nothing is left to do
    assert file.read_bytes() == weights
    assert main([*train, "decoder_steps=3"]) == 2
    assert "with other settings; choose another folder" in capsys.readouterr().err
    grown = tmp_path / "grown"
    shutil.copytree(run, grown)
    EpisodeStore(grown / "episodes").label("near-00000", None)
    assert main([*train[:2], str(grown), *train[3:]]) == 2
    assert "of other episodes" in capsys.readouterr().err
    other = tmp_path / "other"
    shutil.copytree(run, other)
    FlowVLA.build(POLICY, *EpisodeStore(other / "episodes").summary()).save(
        RunFolder(other).policy(1), {"policy_version": 1}
    )
    assert main([*train[:2], str(other), *train[3:]]) == 2
    assert "of another task or policy" in capsys.readouterr().err
    assert main([*train[:3], "--out", str(tmp_path / "no"), "--device", "nope"]) == 2
    assert "the device 'nope' cannot be used" in capsys.readouterr().err
    sheet, clip = world / "sheet.png", world / "clip.webp"
    for out in (sheet, clip):
        assert main(["imagine", "rollout", str(world), "--out", str(out), "--episodes", "1", "--steps", "9"]) == 0
    with Image.open(sheet) as picture, Image.open(clip) as film:
        assert picture.size == (8 * 2 * 64, 2 * 64)
        assert film.n_frames > 1


@pytest.mark.slow
def test_a_run_gets_its_own_world_once(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    own, train = tmp_path / "own", world_model.train_on_run
    shutil.copytree(run, own)
    trained = []

    def tiny(source: Path, out: Path) -> None:
        trained.append(out)
        train(source, out, TINY, near_success=0)

    monkeypatch.setattr(world_model, "train_on_run", tiny)
    for given in (own, own, own / "world"):
        assert world_model.world_of(given) == own / "world"
    assert trained == [own / "world"]
    caplog.clear()
    EpisodeStore(own / "episodes").label("near-00000", None)
    world_model.world_of(own)
    assert "remove it to train it anew" in caplog.text
    env = WorldFolder(own / "world").open_env()
    env.reset(seed=0)
    assert np.isfinite(env.step(env.action_space.sample())[0]["agent_pos"]).all()


def test_a_task_says_whether_it_has_an_expert() -> None:
    assert has_expert(TASK)
    assert not has_expert(TaskConfig(env="tests.execution.toys:ReachEnv"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rollou", "x"], "Did you mean 'rollout'"),
        (["train", "nowhere", "--out", "x"], "holds no run"),
        (["train", "nowhere"], "needs --out"),
        (["rollout", "nowhere"], "holds no world model"),
        (["rollout", "nowhere", "--out", "x.gif"], "neither .mp4 or .webp"),
        (["rollout", "nowhere", "--steps", "0"], "--steps is 0; it must be at least 1"),
        (["rollout", "nowhere", "--start", "-5"], "--start is -5"),
    ],
)
def test_bad_input_is_one_line(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["imagine", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_world_folder_is_not_anything(tmp_path: Path) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(UserError, match="holds no world model"):
        WorldFolder(tmp_path).task()
