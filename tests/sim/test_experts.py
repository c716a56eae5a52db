"""The scripted experts: they succeed, move smoothly, and recover."""

import sys

import gymnasium
import numpy as np
import pytest

import sim
from sim.experts.base import CorrelatedNoise
from vla_rl.core.errors import UserError


def episode(env, expert, seed):
    """Runs one; returns whether it succeeded and how many steps it took."""
    env.reset(seed=seed)
    expert.reset(seed)
    ended = False
    while not ended:
        _, _, success, truncated, _ = env.step(expert.act()[1])
        ended = success or truncated
    return success, env.elapsed_steps


@pytest.mark.parametrize("difficulty", [0.0, 1.0])
def test_expert_succeeds(task, blind_env, difficulty):
    env = blind_env(task, difficulty=difficulty)
    expert = sim.make_expert(env)
    results = [episode(env, expert, seed) for seed in range(10)]
    assert all(success for success, _ in results)
    assert np.mean([steps for _, steps in results]) < 1.4 * env.expert_steps


@pytest.mark.slow
def test_expert_succeeds_in_spite_of_its_noise(task, blind_env):
    env = blind_env(task)
    expert = sim.make_expert(env, action_noise=0.003)
    assert sum(episode(env, expert, seed)[0] for seed in range(10)) >= 9


@pytest.mark.slow
def test_expert_recovers_from_what_a_bad_policy_leaves_behind(task, blind_env):
    env = blind_env(task)
    expert = sim.make_expert(env)
    recovered = 0
    for seed in range(8):
        env.reset(seed=seed)
        expert.reset(seed)
        rng = np.random.default_rng(seed)
        for _ in range(3):
            target = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
            for _ in range(8):
                env.step(target)
        for _ in range(2 * env.max_episode_steps):
            if env.step(expert.act()[1])[2]:
                recovered += 1
                break
    assert recovered >= 7


def test_targets_stay_near_the_arms(task, blind_env):
    """The look-ahead bounds the speed: no target is further from its grip point than the fastest style allows."""
    env = blind_env(task)
    expert = sim.make_expert(env)
    env.reset(seed=1)
    expert.reset(1)
    for _ in range(40):
        clean, sent = expert.act()
        assert np.array_equal(clean, sent)
        ahead = clean.reshape(-1, 4)[:, :3] - env.grip_points()
        assert np.linalg.norm(ahead, axis=1).max() < 0.0125
        env.step(sent)


def test_noise_is_on_what_is_sent_and_not_on_the_label(blind_env):
    env = blind_env("vla_rl/PegInsert-v0")
    noisy, clean = sim.make_expert(env, 0.003), sim.make_expert(env)
    env.reset(seed=0)
    noisy.reset(4)
    clean.reset(4)
    for _ in range(10):
        label, sent = noisy.act()
        assert np.array_equal(label, clean.act()[0])
        assert not np.array_equal(label, sent)
        assert np.array_equal(label[[3, 7]], sent[[3, 7]])  # grippers are left alone
        env.step(sent)


def test_noise_wanders_with_the_scale_that_was_asked_for():
    noise = CorrelatedNoise(np.random.default_rng(0), 2.0, (1000,))
    values = np.stack([noise.draw() for _ in range(60)])[20:]
    assert values.std() == pytest.approx(2.0, rel=0.05)
    steps = np.mean(values[1:] * values[:-1]) / np.mean(values**2)
    assert steps == pytest.approx(CorrelatedNoise.memory, abs=0.02)


def test_styles_differ_between_seeds_and_repeat_with_one(blind_env):
    env = blind_env("vla_rl/PegInsert-v0")
    expert = sim.make_expert(env, 0.003)
    actions = []
    for seed in (0, 1, 0):
        env.reset(seed=7)
        expert.reset(seed)
        actions.append(expert.act()[1])
    assert np.array_equal(actions[0], actions[2])
    assert not np.array_equal(actions[0], actions[1])


def test_progress_grows_from_nought_to_one(task, blind_env):
    env = blind_env(task)
    expert = sim.make_expert(env)
    env.reset(seed=2)
    expert.reset(2)
    values, success = [expert.progress()], False
    while not success:
        _, _, success, truncated, _ = env.step(expert.act()[1])
        assert not truncated
        values.append(expert.progress())
    assert values[0] < 0.3
    assert values[-1] > 0.9
    assert np.diff(values).min() > -0.06  # closing the hand may shift an object a little


class Foreign(gymnasium.Env):
    """An environment of somebody else's."""


def test_an_environment_without_expert_is_told_how_to_declare_one():
    with pytest.raises(UserError, match=r"Foreign.*expert = 'module:Name'"):
        sim.make_expert(Foreign())


@pytest.mark.parametrize("expert", [lambda env, noise: (env, noise), "tests.sim.test_experts:bring"])
def test_anyones_environment_can_bring_its_expert(expert, monkeypatch):
    monkeypatch.setattr(Foreign, "expert", expert, raising=False)
    monkeypatch.setitem(sys.modules, "tests.sim.test_experts", sys.modules[__name__])
    env = Foreign()
    assert sim.make_expert(env, 0.5) == (env, 0.5)


def bring(env, noise):
    return env, noise


@pytest.mark.parametrize("expert", ["sim.experts.nowhere:Name", "sim.experts.base:Nobody", "nothing", ""])
def test_an_expert_that_does_not_load_is_named(expert, monkeypatch):
    monkeypatch.setattr(Foreign, "expert", expert, raising=False)
    with pytest.raises(UserError, match=f"expert '{expert}' does not load"):
        sim.make_expert(Foreign())
