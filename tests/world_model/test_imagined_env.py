"""Imagined environments: seeds, starts, and one loop for all."""

import copy
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from tiny_world_model import make_model
from toy_episodes import toy_cache, toy_episode

from robot_io.env_robot import EnvRobot
from robot_io.gate import GateConfig, SafetyGate
from robot_io.recorder import Recorder
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import UserError
from vla_rl.core.robot_matching import declared
from vla_rl.core.types import Episode, Float32Array, Origin
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.loop import run_episode
from vla_rl.execution.sources import Demonstrator
from world_model import imagined_env
from world_model.imagined_env import ImaginedEnv, ImaginedVectorEnv
from world_model.model import WorldModel, load_world_model, save_world_model
from world_model.open_loop import imagine
from world_model.windows import LatentEpisodes, spec_of


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[WorldModel, LatentEpisodes]:
    model = make_model()
    model.dynamics.latent_change_std.fill_(0.1)
    return model, LatentEpisodes(toy_cache(tmp_path_factory.mktemp("toy")), model.autoencoder)


@pytest.fixture(autouse=True)
def never_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 2.0)


def test_the_single_view_is_a_sound_gymnasium_environment(world: tuple[WorldModel, LatentEpisodes]) -> None:
    model, data = world
    check_env(ImaginedEnv(model, data), skip_render_check=True)


def test_an_imagined_robot_has_the_names_of_the_real_one(
    world: tuple[WorldModel, LatentEpisodes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state, action = Dimensions(("x", "y", "grip"), ("m", "m", "")), Dimensions(("x", "y"))
    model, data = world
    monkeypatch.setattr(model, "spec", replace(model.spec, dimensions=(state, action)))
    robot = EnvRobot(ImaginedEnv(model, data))
    assert declared(robot) == (state, action)
    save_world_model(tmp_path, model)
    assert load_world_model(tmp_path).spec == model.spec
    store = EpisodeStore(tmp_path / "named")
    store.add(toy_episode("e", 1, state_dimensions=state, action_dimensions=action))
    cache = FrameCache(store, tmp_path / "cache")
    cache.refresh()
    assert spec_of(cache).dimensions == (state, action)


def test_an_environment_does_not_depend_on_those_beside_it(world: tuple[WorldModel, LatentEpisodes]) -> None:
    model, data = world
    vector = ImaginedVectorEnv(model, data, 4)
    single = ImaginedEnv(model, data)
    seeds = [101, 7, 33, 50]
    vector.reset(seed=[1, 2, 3, 4])
    actions = np.random.default_rng(0).uniform(-1, 1, (9, 2)).astype(np.float32)
    vector.step(np.zeros((4, 2), np.float32))
    rows, _ = vector.reset(seed=seeds)
    for row, seed in enumerate(seeds):
        alone, _ = single.reset(seed=seed)
        assert single.vector.begun_in[0] == vector.begun_in[row]
        np.testing.assert_array_equal(rows["pixels"]["front"][row], alone["pixels"]["front"])
    last = {}
    for row, seed in enumerate(seeds):
        single.reset(seed=seed)
        for action in actions:
            last[row] = single.step(action)[0]
    for action in actions:
        rows, *_ = vector.step(np.tile(action, (4, 1)))
    for row in range(4):
        np.testing.assert_allclose(rows["agent_pos"][row], last[row]["agent_pos"], atol=1e-4)


def test_one_environment_restarts_while_the_others_go_on(world: tuple[WorldModel, LatentEpisodes]) -> None:
    model, data = world
    undisturbed = ImaginedVectorEnv(model, data, 2)
    disturbed = ImaginedVectorEnv(model, data, 2)
    action = np.full((2, 2), 0.3, np.float32)
    for env in (undisturbed, disturbed):
        env.reset(seed=[100, 200])
        for _ in range(3):
            env.step(action)
    disturbed.reset(seed=[None, 1], options={"reset_mask": np.array([False, True])})
    for _ in range(4):
        calm, rows = undisturbed.step(action)[0], disturbed.step(action)[0]
    np.testing.assert_allclose(rows["agent_pos"][0], calm["agent_pos"][0], atol=1e-5)
    start = torch.from_numpy(disturbed.begun_in[1:])
    expected = imagine(model, data, start, torch.tensor([0]), torch.full((1, 4, 2), 0.3), seed=1)
    np.testing.assert_allclose(rows["agent_pos"][1], expected.state[0, -1], atol=1e-4)


def test_seeds_that_begin_alike_differ_in_noise(
    world: tuple[WorldModel, LatentEpisodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = world
    many = ImaginedVectorEnv(model, data, 50)
    many.reset(seed=0)
    assert len(set(many.begun_in)) > 2
    alike = np.flatnonzero(many.begun_in == 2)[:2].tolist()
    env = ImaginedVectorEnv(model, data, 2)
    first, _ = env.reset(seed=alike)
    np.testing.assert_array_equal(first["pixels"]["front"][0], first["pixels"]["front"][1])
    dynamics = model.dynamics
    for noise in (1.0, 0.0):
        monkeypatch.setattr(dynamics, "config", replace(dynamics.config, sampling_noise=noise))
        env.reset(seed=alike)
        later = env.step(np.zeros((2, 2), np.float32))[0]["pixels"]["front"]
        assert (later[0] != later[1]).any() == (noise > 0)


def test_episodes_end_by_success_and_time(
    world: tuple[WorldModel, LatentEpisodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = world
    action = np.zeros((1, 2), np.float32)
    env = ImaginedVectorEnv(model, data, 1)
    env.reset(seed=500)
    steps = [env.step(action) for _ in range(12)]
    assert [own[3][0] for own in steps] == [False] * 11 + [True]
    assert not steps[-1][4]["is_lost"][0], "out of time is a failure"
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 1e-9)
    env.reset(seed=500)
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward[0], terminated[0], truncated[0], info["is_success"][0]) == (1.0, True, False, True)


def test_an_episode_is_cut_where_its_pictures_are_strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the heads are sure of success; a picture is strange if decoding and encoding it again changes it."""
    model = make_model()
    data = LatentEpisodes(toy_cache(tmp_path), model.autoencoder)
    model.dynamics.heads.outcome[-1].bias.data[1] = 100.0
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 0.5)

    def first_step() -> dict[str, bool]:
        vector = ImaginedVectorEnv(model, data, 2)
        vector.reset(seed=5)
        _, _, terminated, truncated, info = vector.step(np.zeros((2, 2), np.float32))
        found = {"terminated": terminated, "truncated": truncated, **info}
        assert all((found[name] == found[name][0]).all() for name in nothing), "both environments alike"
        return {name: bool(found[name][0]) for name in nothing}

    nothing = dict.fromkeys(("terminated", "truncated", "is_success", "is_lost"), False)
    assert first_step() == nothing | {"terminated": True, "is_success": True}
    model.autoencoder.familiar.fill_(0.0)
    assert first_step() == nothing | {"truncated": True, "is_lost": True}
    frames = torch.randint(0, 256, (3, 2, 16, 16, 3), dtype=torch.uint8)
    latents = model.autoencoder.encode(frames)
    again = model.autoencoder.encode(model.autoencoder.decode(latents))
    torch.testing.assert_close(model.autoencoder.strangeness(frames), (again - latents).square().mean((1, 2)))


def test_actions_that_are_not_finite_are_refused(world: tuple[WorldModel, LatentEpisodes]) -> None:
    model, data = world
    env = ImaginedEnv(model, data)
    env.reset(seed=0)
    with pytest.raises(UserError, match="not finite"):
        env.step(np.array([np.nan, 0.0], np.float32))


def test_the_one_loop_runs_in_imagination(world: tuple[WorldModel, LatentEpisodes], tmp_path: Path) -> None:
    model, data = world
    env = ImaginedEnv(model, data)
    robot = EnvRobot(env)
    gate = SafetyGate(GateConfig().filled(env.action_space.low, env.action_space.high, env.gripper_dims), 20.0)

    def act() -> tuple[Float32Array, Float32Array]:
        action = np.full(2, 0.5, np.float32)
        return action, action

    def attempt(name: str, seed: int) -> Episode:
        recorder = Recorder(Origin.SIM, "toy", robot.control_hz)
        recorder.begin(name, seed, 3)
        gate.rearm()
        run_episode(robot, Demonstrator(act), gate, seed=seed, subscribers=[recorder])
        assert recorder.episode is not None
        return recorder.episode

    first, again, other = attempt("a", 400), attempt("b", 400), attempt("c", 401)
    EpisodeStore(tmp_path).add(first)
    header = EpisodeStore(tmp_path).read_header("a")
    assert (header.origin, header.success, header.length, header.policy_version) == (Origin.SIM, False, 12, 3)
    assert first.images["front"].tobytes() == again.images["front"].tobytes()
    assert first.images["front"].tobytes() != other.images["front"].tobytes()
    assert isinstance(env, gymnasium.Env)


def test_an_episode_has_the_sentence_of_the_one_that_it_begins_in(world: tuple[WorldModel, LatentEpisodes]) -> None:
    model, data = world
    env = ImaginedEnv(model, data)
    told = [replace(episode, task=f"task {index}") for index, episode in enumerate(data.episodes)]
    env.vector.data = copy.copy(data)
    env.vector.data.episodes = told
    robot = EnvRobot(env)
    for seed in (3, 1):
        robot.reset(seed)
        assert robot.read().task == f"task {env.vector.begun_in[0]}"
