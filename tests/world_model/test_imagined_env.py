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
from world_model.imagined_env import ImaginedEnv
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


def test_it_is_a_sound_gymnasium_environment(world: tuple[WorldModel, LatentEpisodes]) -> None:
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


def test_an_episode_is_the_open_loop_from_its_first_frame(world: tuple[WorldModel, LatentEpisodes]) -> None:
    model, data = world
    env = ImaginedEnv(model, data)
    env.reset(seed=1)
    later = [env.step(np.full(2, 0.3, np.float32))[0]["agent_pos"] for _ in range(4)]
    start = torch.tensor([env.begun_in])
    expected = imagine(model, data, start, torch.tensor([0]), torch.full((1, 4, 2), 0.3), seed=1)
    np.testing.assert_allclose(later, expected.state[0], atol=1e-4)


def test_seeds_that_begin_alike_differ_in_noise(
    world: tuple[WorldModel, LatentEpisodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = world
    env, begun = ImaginedEnv(model, data), dict[int, list[int]]()
    for seed in range(50):
        env.reset(seed=seed)
        begun.setdefault(env.begun_in, []).append(seed)
    assert len(begun) > 2
    alike = begun[2][:2]

    def first_pictures() -> list[np.ndarray]:
        pictures = []
        for seed in alike:
            env.reset(seed=seed)
            pictures.append(env.step(np.zeros(2, np.float32))[0]["pixels"]["front"])
        return pictures

    dynamics = model.dynamics
    for noise in (1.0, 0.0):
        monkeypatch.setattr(dynamics, "config", replace(dynamics.config, sampling_noise=noise))
        one, other = first_pictures()
        assert (one != other).any() == (noise > 0)


def test_episodes_end_by_success_and_time(
    world: tuple[WorldModel, LatentEpisodes], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = world
    action = np.zeros(2, np.float32)
    env = ImaginedEnv(model, data)
    env.reset(seed=500)
    steps = [env.step(action) for _ in range(12)]
    assert [own[3] for own in steps] == [False] * 11 + [True]
    assert not steps[-1][4]["is_lost"], "out of time is a failure"
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 1e-9)
    env.reset(seed=500)
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)


def test_an_episode_is_cut_where_its_pictures_are_strange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the heads are sure of success; a picture is strange if decoding and encoding it again changes it."""
    model = make_model()
    data = LatentEpisodes(toy_cache(tmp_path), model.autoencoder)
    model.dynamics.heads.outcome[-1].bias.data[1] = 100.0
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 0.5)
    env = ImaginedEnv(model, data)

    def first_step() -> tuple[bool, bool, bool, bool]:
        env.reset(seed=5)
        _, _, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        return terminated, truncated, info["is_success"], info["is_lost"]

    assert first_step() == (True, False, True, False)
    model.autoencoder.familiar.fill_(0.0)
    assert first_step() == (False, True, False, True)
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
    env.data = copy.copy(data)
    env.data.episodes = told
    robot = EnvRobot(env)
    for seed in (3, 1):
        robot.reset(seed)
        assert robot.read().task == f"task {env.begun_in}"
