"""Imagined environments: seeds, starts, and one loop for all."""

import copy
from dataclasses import replace
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from toy_episodes import toy_cache
from toy_world import SPEC, tiny_world

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
from world_model.feature_world import FeatureWorld, Trust
from world_model.imagined_env import ImaginedEnv
from world_model.protocol import Observations


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureWorld, FrameCache]:
    """Read only. It is lost nowhere."""
    cache = toy_cache(tmp_path_factory.mktemp("toy"))
    model = tiny_world(cache, tmp_path_factory.mktemp("world"))
    assert model.trust is not None
    return replace(model, trust=replace(model.trust, familiar=1e9)), cache


@pytest.fixture(autouse=True)
def never_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 2.0)


def test_it_is_a_sound_gymnasium_environment(world: tuple[FeatureWorld, FrameCache]) -> None:
    model, cache = world
    check_env(ImaginedEnv(model, SPEC, cache), skip_render_check=True)


def test_an_imagined_robot_has_the_names_of_the_real_one(world: tuple[FeatureWorld, FrameCache]) -> None:
    state, action = Dimensions(("x", "y", "grip"), ("m", "m", "")), Dimensions(("x", "y"))
    model, cache = world
    robot = EnvRobot(ImaginedEnv(model, replace(SPEC, dimensions=(state, action)), cache))
    assert declared(robot) == (state, action)


def test_an_episode_is_the_open_loop_from_its_first_frame(world: tuple[FeatureWorld, FrameCache]) -> None:
    model, cache = world
    env = ImaginedEnv(model, SPEC, cache)
    env.reset(seed=1)
    later = [env.step(np.full(2, 0.3, np.float32))[0]["agent_pos"] for _ in range(4)]
    state = model.encode(Observations(cache, np.array([cache.episodes[env.begun_in].start])))
    expected = model.predict(state, torch.full((1, 4, 2), 0.3)).state.proprioception
    np.testing.assert_allclose(later[3:], expected, rtol=1e-5)


def test_episodes_end_by_success_and_time(
    world: tuple[FeatureWorld, FrameCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, cache = world
    action = np.zeros(2, np.float32)
    env = ImaginedEnv(model, SPEC, cache)
    env.reset(seed=500)
    steps = [env.step(action) for _ in range(12)]
    assert [own[3] for own in steps] == [False] * 11 + [True]
    assert not steps[-1][4]["is_lost"], "out of time is a failure"
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 1e-9)
    env.reset(seed=500)
    _, reward, terminated, truncated, info = env.step(action)
    assert (reward, terminated, truncated, info["is_success"]) == (1.0, True, False, True)


def test_an_episode_is_cut_where_the_members_disagree(
    world: tuple[FeatureWorld, FrameCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where the model is sure of success."""
    model, cache = world
    assert model.trust is not None
    monkeypatch.setattr(imagined_env, "SUCCESS_THRESHOLD", 0.5)

    def first_step(familiar: float) -> tuple[bool, bool, bool, bool]:
        env = ImaginedEnv(replace(model, trust=Trust(1.0, 100.0, familiar)), SPEC, cache)
        env.reset(seed=5)
        _, _, terminated, truncated, info = env.step(np.zeros(2, np.float32))
        return terminated, truncated, info["is_success"], info["is_lost"]

    assert first_step(1e9) == (True, False, True, False)
    assert first_step(1e-9) == (False, True, False, True)


def test_actions_that_are_not_finite_are_refused(world: tuple[FeatureWorld, FrameCache]) -> None:
    model, cache = world
    env = ImaginedEnv(model, SPEC, cache)
    env.reset(seed=0)
    with pytest.raises(UserError, match="not finite"):
        env.step(np.array([np.nan, 0.0], np.float32))


def test_the_one_loop_runs_in_imagination(world: tuple[FeatureWorld, FrameCache], tmp_path: Path) -> None:
    model, cache = world
    env = ImaginedEnv(model, SPEC, cache)
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


def test_an_episode_has_the_sentence_of_the_one_that_it_begins_in(world: tuple[FeatureWorld, FrameCache]) -> None:
    model, cache = world
    env = ImaginedEnv(model, SPEC, cache)
    told = [replace(episode, task=f"task {index}") for index, episode in enumerate(cache.episodes)]
    env.episodes = copy.copy(cache)
    env.episodes.episodes = told
    robot = EnvRobot(env)
    for seed in (3, 1):
        robot.reset(seed)
        assert robot.read().task == f"task {env.begun_in}"
