"""The judges: judged successes, windows, the probe and its errors; and the second generator."""

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor
from toy_episodes import toy_cache
from toy_world import SPEC, TINY, tiny_world

from benchmarks.world_horizons import HorizonConfig, choose_windows, horizon_curves, judge_successes, probe_floor
from benchmarks.world_judge import SimulatorTruth, WorldJudge, collect_counterfactuals
from benchmarks.world_probe import position_error, read_positions, train_probe, true_positions
from robot_io.gate import GateConfig
from vla_rl.acting.task_config import TaskConfig
from vla_rl.acting.world_folder import WorldFolder, collect_near_success
from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Float32Array
from vla_rl.data.cache import FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.training.config import RunConfig
from vla_rl.training.world_model import train_on_run
from world_model.protocol import Observations

TASK = TaskConfig(image_size=32, difficulty=0.0)


def toy_truth(episode: Episode) -> Float32Array:
    """The square's place, [T, 1, 3]."""
    return episode.state[:, None, :].copy()


def test_false_successes_are_counted_among_failures() -> None:
    truth, score = np.array([True, True, False, False, False, False]), np.array([0.9, 0.2, 0.8, 0.1, 0.1, 0.1])
    judged = judge_successes(score, truth)
    assert judged["false_success_rate"] == 0.25
    assert judged["missed_success_rate"] == 0.5
    assert judged["agreement"] == pytest.approx(4 / 6)
    assert judge_successes(score[:2], truth[:2])["false_success_rate"] is None


@pytest.mark.slow
def test_the_probe_reads_positions_and_curves_have_all_rivals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.world_probe._STEPS", 150)
    cache = toy_cache(tmp_path, episodes=20)
    positions = true_positions(cache, toy_truth)
    probe = train_probe(SPEC, cache, positions)
    frames = np.arange(cache.total_frames)
    read = read_positions(probe, Observations(cache, frames).pictures(SPEC.cameras))
    still = position_error(np.broadcast_to(positions.mean(0), positions.shape), positions, [0]).mean()
    assert position_error(read, positions, [0]).mean() < 0.3 * still
    model = tiny_world(cache, tmp_path / "world")
    config = HorizonConfig(horizons=(1, 4), windows=12, moving_m=0.05, moving_steps=4)
    curves = horizon_curves(model, cache, probe, positions, {"square": [0]}, config)
    assert curves["windows"] == 12
    assert {"true", "shuffled", "persistence", "teacher_forced", "ratio"} == set(curves["square"])
    assert all(len(curve) == 2 for curve in curves["square"].values())
    floor = probe_floor(model, cache, probe, positions)
    assert floor["real_m"] < floor["reconstruction_m"]  # the tiny decoder is not trained


def test_windows_move_and_fit(tmp_path: Path) -> None:
    cache = toy_cache(tmp_path, episodes=6)
    positions = true_positions(cache, toy_truth)
    start = choose_windows(cache, positions, HorizonConfig(horizons=(1, 5), moving_m=0.3, moving_steps=5))
    assert (cache.position[start] + 5 < 12).all()
    assert (np.linalg.norm(positions[start + 5] - positions[start], axis=-1).max(-1) > 0.3).all()
    with pytest.raises(UserError, match="lasts 50 steps"):
        choose_windows(cache, positions, HorizonConfig(horizons=(50,)))


def test_a_spec_with_other_sizes_gives_another_probe() -> None:
    wide = replace(SPEC, image_size=(32, 16), cameras=("front",))
    from benchmarks.world_probe import StateProbe

    assert StateProbe(wide, 2)(torch.zeros(3, 1, 32, 16, 3, dtype=torch.uint8)).shape == (3, 2, 3)


class Foresight:
    """A model that knows the future: after the action that was really sent, the next frame; after others, nowhere.

    Args:
        cache: Of the episodes.
        off: What it adds to the state of the robot.
    """

    members = 1

    def __init__(self, cache: FrameCache, off: Float32Array) -> None:
        self.cache, self.off = cache, off

    def encode(self, observations: Observations) -> SimpleNamespace:
        return self._at(torch.from_numpy(observations.frames))

    def predict(self, state: SimpleNamespace, actions: Tensor) -> SimpleNamespace:
        assert actions.shape[1] == 1
        return SimpleNamespace(state=self._at(torch.where(actions[:, 0, 0] == state.frame, state.frame + 1, -100)))

    def decode(self, state: SimpleNamespace) -> Tensor:
        return state.frame

    def _at(self, frame: Tensor) -> SimpleNamespace:
        state = self.cache.state[frame.clamp(min=0).numpy()] + self.off
        return SimpleNamespace(frame=frame, proprioception=torch.from_numpy(state))


def test_curves_compare_every_future_with_its_own_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A point is where the number of its frame is."""
    cache = toy_cache(tmp_path)
    number = np.arange(cache.total_frames, dtype=np.float32)
    cache.action_sent = number[:, None].repeat(2, 1)
    positions = number[:, None, None].repeat(3, 2)
    monkeypatch.setattr(
        "benchmarks.world_horizons.read_positions", lambda probe, seen: seen.numpy()[:, None, None].repeat(3, 2)
    )
    config = HorizonConfig(horizons=(1, 3, 5), windows=6)
    off = np.array([2 * cache.state[:, 0].std(), 0.0, 9.0], np.float32)  # the last dimension never moves
    curves = horizon_curves(Foresight(cache, off), cache, None, positions, {"all": [0]}, config)  # type: ignore[arg-type]
    assert curves["all"]["true"] == curves["all"]["teacher_forced"] == [0.0, 0.0, 0.0]
    assert curves["all"]["persistence"] == pytest.approx(np.sqrt(3) * np.array([1, 3, 5]))
    assert min(curves["all"]["shuffled"]) > 100
    assert curves["state"] == pytest.approx([np.sqrt(2)] * 3), "two standard deviations in one of two dimensions"


def test_true_positions_come_from_replay_and_strangers_are_refused(tmp_path: Path) -> None:
    truth = SimulatorTruth(TASK)
    store = EpisodeStore(tmp_path)
    collect_near_success(TASK, GateConfig(), store, 1, 10)
    episode = store.read(store.ids()[0])
    positions = truth(episode)
    assert truth.names == ["grip_left", "grip_right", "socket", "peg"]
    np.testing.assert_allclose(positions[:, 0], episode.state[:, :3], atol=1e-5)
    assert truth.objects == [2, 3]
    with pytest.raises(UserError, match="does not replay"):
        truth(replace(episode, seed=12345))
    assert 0.001 < truth.meters_per_pixel(64) < 0.01


def test_counterfactuals_part_from_one_state(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path)
    parting = collect_counterfactuals(TASK, GateConfig(), store, 1, first_seed=30, before_end=20)
    clean, perturbed = map(store.read, store.ids())
    step = parting[perturbed.episode_id]
    assert step == len(clean) - 20 == parting[clean.episode_id]
    assert clean.success
    np.testing.assert_array_equal(clean.state[: step + 1], perturbed.state[: step + 1])
    assert (clean.action_sent[step : step + 10] != perturbed.action_sent[step : step + 10]).any()
    off = np.abs(perturbed.action_sent - perturbed.action_policy)[step:, [0, 1, 2, 4, 5, 6]]
    assert np.median(off) < 0.02, "errors are small: the episode is not a rough one"
    assert collect_counterfactuals(TASK, GateConfig(), store, 1, first_seed=30, before_end=20) == parting


@pytest.mark.slow
def test_a_folder_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.world_probe._STEPS", 5)
    run, folder = RunFolder.create(tmp_path / "run", RunConfig(task=TASK)), WorldFolder(tmp_path / "world")
    for path, seed in ((run.episodes, 10), (run.evaluation, 20)):
        collect_near_success(TASK, GateConfig(), EpisodeStore(path), 2, seed)
    FlowVLA.build(TINY, *EpisodeStore(run.episodes).summary()).save(run.policy(0), {"policy_version": 0})
    train_on_run(run.path, folder.path, ["dynamics.steps=3", "dynamics.members=2", "decoder_steps=2"], near_success=0)
    judge = WorldJudge(folder)
    assert judge.horizons(HorizonConfig(windows=3))["windows"] == 3
    assert judge.counterfactuals(1)["episodes"] == 2
    agreement = judge.outcomes([-1], episodes=1)
    assert agreement["-1"]["episodes"] == agreement["all"]["episodes"] == 1
    for part in (folder.model, folder.encoder):  # older folders have no encoder
        shutil.rmtree(part)
        with pytest.raises(UserError, match="no finished world model"):
            WorldJudge(folder)
