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
from toy_episodes import toy_cache

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
from world_model.model import VideoModel, load_world_model, save_world_model
from world_model.protocol import Observations


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[VideoModel, FrameCache]:
    model = make_model()
    model.dynamics.latent_change_std.fill_(0.1)
    return model, toy_cache(tmp_path_factory.mktemp("toy"))


@pytest.fixture(autouse=True)
def never_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 2.0)


def test_it_is_a_sound_gymnasium_environment(world: tuple[VideoModel, FrameCache]) -> None:
    model, cache = world
    check_env(ImaginedEnv(model, model.spec, cache), skip_render_check=True)


def test_an_imagined_robot_has_the_names_of_the_real_one(
    world: tuple[VideoModel, FrameCache], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    state, action = Dimensions(("x", "y", "grip"), ("m", "m", "")), Dimensions(("x", "y"))
    model, cache = world
    monkeypatch.setattr(model, "spec", replace(model.spec, dimensions=(state, action)))
    robot = EnvRobot(ImaginedEnv(model, model.spec, cache))
    assert declared(robot) == (state, action)
    save_world_model(tmp_path, model)
    assert load_world_model(tmp_path).spec == model.spec


def test_an_episode_is_the_open_loop_from_its_first_frame(world: tuple[VideoModel, FrameCache]) -> None:
    model, cache = world
    env = ImaginedEnv(model, model.spec, cache)
    env.reset(seed=1)
    later = [env.step(np.full(2, 0.3, np.float32))[0]["agent_pos"] for _ in range(4)]
    state = model.encode(Observations(cache, np.array([cache.episodes[env.begun_in].start])))
    np.testing.assert_array_equal(later[3:], model.predict(state, torch.full((1, 4, 2), 0.3)).state.proprioception)


def test_a_state_is_never_changed_and_a_moment_has_its_past(world: tuple[VideoModel, FrameCache]) -> None:
    """Streams of other ages beside it change nothing, and prediction goes on from one state as often as wanted."""
    model, cache = world
    frames = np.array([cache.episodes[0].start + 4, cache.episodes[1].start, cache.episodes[2].start + 2])
    state, actions = model.encode(Observations(cache, frames)), torch.full((3, 4, 2), 0.3)
    first, again = model.predict(state, actions).state, model.predict(state, actions).state
    assert torch.equal(first.latents, again.latents)
    for row, frame in enumerate(frames):
        begin = frame - cache.position[frame]
        alone = model.encode(Observations(cache, np.array([begin])))
        for sent in cache.action_sent[begin:frame].copy():
            alone = model.predict(alone, torch.from_numpy(sent)[None, None]).state
            now = model.encode(Observations(cache, np.array([begin := begin + 1])))
            alone = alone._replace(latents=now.latents, proprioception=now.proprioception)
        alone = model.predict(alone, actions[:1]).state
        torch.testing.assert_close(alone.latents[0], first.latents[row], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(alone.proprioception[0], first.proprioception[row], atol=1e-4, rtol=1e-4)


def test_episodes_end_by_success_and_time(
    world: tuple[VideoModel, FrameCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache = world
    action = np.zeros(2, np.float32)
    env = ImaginedEnv(model, model.spec, cache)
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
    cache = toy_cache(tmp_path)
    model.dynamics.heads.outcome[-1].bias.data[1] = 100.0
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 0.5)
    env = ImaginedEnv(model, model.spec, cache)

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


def test_actions_that_are_not_finite_are_refused(world: tuple[VideoModel, FrameCache]) -> None:
    model, cache = world
    env = ImaginedEnv(model, model.spec, cache)
    env.reset(seed=0)
    with pytest.raises(UserError, match="not finite"):
        env.step(np.array([np.nan, 0.0], np.float32))


def test_the_one_loop_runs_in_imagination(world: tuple[VideoModel, FrameCache], tmp_path: Path) -> None:
    model, cache = world
    env = ImaginedEnv(model, model.spec, cache)
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


def test_an_episode_has_the_sentence_of_the_one_that_it_begins_in(world: tuple[VideoModel, FrameCache]) -> None:
    model, cache = world
    env = ImaginedEnv(model, model.spec, cache)
    told = [replace(episode, task=f"task {index}") for index, episode in enumerate(cache.episodes)]
    env.episodes = copy.copy(cache)
    env.episodes.episodes = told
    robot = EnvRobot(env)
    for seed in (3, 1):
        robot.reset(seed)
        assert robot.read().task == f"task {env.begun_in}"
