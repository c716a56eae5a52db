"""`vla-rl imagine` from end to end on the simulator, very small; what it needs to be right is tested in
tests/world_model.
"""

import functools
import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robot_io.gate import GateConfig
from vla_rl.acting.imagination.ground_truth import SimulatorTruth
from vla_rl.acting.imagination.near_success import (
    PerturbationConfig,
    PerturbedExpert,
    collect_counterfactuals,
    collect_near_success,
)
from vla_rl.acting.imagination.world_evaluation import WorldFolder, WorldJudge
from vla_rl.acting.task import make_env
from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.core.types import Origin, Source
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training.config import RunConfig, TaskConfig

TASK = TaskConfig(image_size=32, difficulty=0.0)
TINY = ["training.autoencoder_steps=4", "training.dynamics_steps=3", "training.window_frames=6"]
TINY += ["dynamics.width=32", "dynamics.layers=1", "autoencoder.widths=[16, 16]"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a few recorded episodes."""
    folder = RunFolder.create(tmp_path_factory.mktemp("run") / "run", RunConfig(task=TASK))
    config = RunConfig(task=TASK)
    for path, seed in ((folder.episodes, 10), (folder.evaluation, 20)):
        collect_near_success(TASK, config.gate, EpisodeStore(path), 2, seed)
    return folder.path


def test_true_positions_come_from_replay_and_strangers_are_refused(run: Path) -> None:
    truth = SimulatorTruth(TASK)
    store = EpisodeStore(run / "episodes")
    episode = store.read(store.ids()[0])
    positions = truth(episode)
    assert truth.names == ["grip_left", "grip_right", "socket", "peg"]
    np.testing.assert_allclose(positions[:, 0], episode.state[:, :3], atol=1e-5)
    assert truth.objects == [2, 3]
    with pytest.raises(UserError, match="does not replay"):
        truth(replace(episode, seed=12345))
    assert 0.001 < truth.metres_per_pixel(64) < 0.01


def test_only_near_successes_need_an_expert(tmp_path: Path) -> None:
    without, store = TaskConfig(env="vla_rl/AlohaInsertion-v0"), EpisodeStore(tmp_path)
    with pytest.raises(UserError, match="no expert"):
        collect_near_success(without, GateConfig(), store, 1, 0)
    collect_near_success(without, GateConfig(), store, 0, 0)
    assert store.ids() == []


def test_near_successes_teach_no_policy(run: Path) -> None:
    store = EpisodeStore(run / "episodes")
    for name in store.ids():
        episode = store.read(name)
        assert episode.origin is Origin.SIM
        assert (episode.source == Source.DEMO).all()
        assert (episode.action_policy != episode.action_sent).any()


def test_some_episodes_fling_the_arms_about_and_counterfactuals_never_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make_env(TASK)

    arms, grippers = [0, 1, 2, 4, 5, 6], [3, 7]

    def off(config: PerturbationConfig, dims: list[int]) -> float:
        """Median of the largest distance of what was sent from what the expert wanted, metres."""
        env.reset(seed=3)
        expert, steps = PerturbedExpert(env, config), []
        expert.reset(3)
        for _ in range(30):
            clean, sent = expert.act()
            steps.append(np.abs(sent - clean)[dims].max())
            env.step(sent)
        return float(np.median(steps))

    flung = PerturbationConfig(rough=1.0, rough_aim=(0.1, 0.1), accurate=1.0, slip=0.0, stall=0.0, blind=0.0)
    gentle = replace(flung, rough=0.0)
    assert off(flung, arms) > 0.05 > 5 * off(gentle, arms)
    assert off(flung, grippers) > 0.005
    assert off(gentle, grippers) == off(replace(flung, rough_grippers=0.0), grippers) == 0.0
    env.close()
    store = EpisodeStore(tmp_path)
    always = functools.partial(PerturbationConfig, rough=1.0)
    monkeypatch.setattr("vla_rl.acting.imagination.near_success.PerturbationConfig", always)
    parting = collect_counterfactuals(TASK, RunConfig().gate, store, 1, first_seed=30, before_end=20)
    spoilt = store.read(next(name for name in parting if name.endswith("-00000-spoilt")))
    sent = np.abs(spoilt.action_sent - spoilt.action_policy)[parting[spoilt.episode_id] :, [0, 1, 2, 4, 5, 6]]
    assert np.median(sent) < 0.02


@pytest.mark.slow
def test_a_blind_expert_closes_its_hands_on_nothing_and_goes_on_and_one_that_sees_does_not() -> None:
    env = make_env(TASK)

    def closed_and_empty(config: PerturbationConfig, seed: int) -> int:
        """The most steps on end in which a gripper told to close has nothing between its fingers."""
        env.reset(seed=seed)
        expert = PerturbedExpert(env, config)
        expert.reset(seed)
        most = steps = 0
        for _ in range(70):
            _, sent = expert.act()
            env.step(sent)
            nothing = (sent[[3, 7]] < 0.005) & (env.unwrapped.openings() < 0.01)
            steps = steps + 1 if nothing.any() else 0
            most = max(most, steps)
        return most

    blind = PerturbationConfig(blind=1.0, blind_aim=(0.05, 0.05), rough=0.0, slip=0.0, stall=0.0)
    seeds = range(3, 9)
    assert sum(closed_and_empty(blind, seed) > 20 for seed in seeds) >= 2
    assert all(closed_and_empty(replace(blind, blind=0.0), seed) == 0 for seed in seeds)
    assert closed_and_empty(blind, 4) == closed_and_empty(blind, 4), "the seed fixes it"
    stalled = PerturbedExpert(env, replace(blind, stall=1.0))
    env.reset(seed=4)
    stalled.reset(4)
    here = env.unwrapped.data.ctrl.copy()
    for _ in range(5):
        _, sent = stalled.act()
        env.step(sent)
    np.testing.assert_allclose(sent, here, atol=1e-6, err_msg="stalled arms hold what was sent here, not in the copy")
    stalled.close()
    env.close()


def test_counterfactuals_part_from_one_state(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    parting = collect_counterfactuals(TASK, RunConfig().gate, store, 1, first_seed=30, before_end=20)
    clean, spoilt = map(store.read, store.ids())
    step = parting[spoilt.episode_id]
    assert step == len(clean) - 20 == parting[clean.episode_id]
    assert clean.success
    np.testing.assert_array_equal(clean.state[: step + 1], spoilt.state[: step + 1])
    assert (clean.action_sent[step : step + 10] != spoilt.action_sent[step : step + 10]).any()
    off = np.abs(spoilt.action_sent - spoilt.action_policy)[step:, [0, 1, 2, 4, 5, 6]]
    assert np.median(off) < 0.02, "off by a little: the arms are not flung about"
    assert collect_counterfactuals(TASK, RunConfig().gate, store, 1, first_seed=30, before_end=20) == parting


@pytest.mark.slow
def test_train_evaluate_and_roll_out(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = tmp_path / "world"
    train = ["imagine", "train", str(run), "--out", str(world), "--near-success", "1", *TINY]
    assert main(train) == 0
    assert len(EpisodeStore(world / "episodes")) == 3
    (file,) = (world / "model").glob("*.safetensors")
    weights = file.read_bytes()
    assert main(train) == 0  # nothing is left to do
    assert file.read_bytes() == weights
    assert main([*train, "dynamics.width=64"]) == 2
    assert "with other settings; choose another --out" in capsys.readouterr().err
    grown = tmp_path / "grown"
    shutil.copytree(run, grown)
    EpisodeStore(grown / "episodes").label("near-00000", None)
    assert main([*train[:2], str(grown), *train[3:]]) == 2
    assert "of other episodes" in capsys.readouterr().err
    assert main([*train[:3], "--out", str(tmp_path / "no"), "--device", "nope"]) == 2
    assert "the device 'nope' cannot be used" in capsys.readouterr().err
    monkeypatch.setattr("world_model.probe._STEPS", 5)
    assert main(["imagine", "evaluate", str(world), "--windows", "3", "--pairs", "1"]) == 0
    assert "shuffled actions" in capsys.readouterr().out
    result = json.loads((world / "model" / "evaluation.json").read_text())
    assert result["horizons"]["windows"] == 3
    assert result["counterfactuals"]["episodes"] == 2
    sheet, clip = world / "sheet.png", world / "clip.webp"
    for out in (sheet, clip):
        assert main(["imagine", "rollout", str(world), "--out", str(out), "--episodes", "1", "--steps", "9"]) == 0
    with Image.open(sheet) as picture, Image.open(clip) as film:
        assert picture.size == (8 * 2 * 64, 2 * 64)
        assert film.n_frames > 1
    agreement = WorldJudge(WorldFolder(world)).outcomes([-1], episodes=1)
    assert agreement["-1"]["episodes"] == agreement["all"]["episodes"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["evaluat", "x"], "Did you mean 'evaluate'"),
        (["train", "nowhere", "--out", "x"], "holds no run"),
        (["train", "nowhere"], "needs --out"),
        (["evaluate", "nowhere"], "holds no world model"),
        (["rollout", "nowhere", "--out", "x.gif"], "neither .mp4 or .webp"),
        (["rollout", "nowhere", "--steps", "0"], "--steps is 0; it must be at least 1"),
        (["rollout", "nowhere", "--start", "-5"], "--start is -5"),
        (["evaluate", "nowhere", "--windows", "0"], "--windows is 0"),
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
