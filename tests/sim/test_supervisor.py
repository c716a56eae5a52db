"""The scripted supervisor: when it takes over, how, and how often it helps."""

import dataclasses

import numpy as np
import pytest

import sim
from sim.experts.base import Expert
from sim.supervisor import MAX_STEP_M, ScriptedSupervisor, SupervisorConfig
from vla_rl.core.errors import ConfigError, UserError

TASK = "vla_rl/PegInsert-v0"
ALWAYS = SupervisorConfig(rescue_probability=1.0, hand_back_probability=0.0)


def supervise(env, supervisor, policy, seed):
    """Runs an episode; returns success and, for every tick, whether the person had control."""
    env.reset(seed=seed)
    supervisor.reset(seed)
    driving, ended = [], False
    while not ended:
        proposed = policy(env, len(driving))
        command = supervisor.command(len(driving), proposed)
        driving.append(command is not None)
        _, _, success, truncated, _ = env.step(proposed if command is None else command)
        ended = success or truncated
    return success, np.array(driving)


def idle(env, tick):
    """A policy that keeps its last command."""
    return env.data.ctrl.astype(np.float32)


def test_leaves_the_expert_alone(task, blind_env):
    env = blind_env(task)
    expert, supervisor = sim.make_expert(env), ScriptedSupervisor(env, ALWAYS)
    for seed in range(5):
        expert.reset(seed)
        success, driving = supervise(env, supervisor, lambda env, tick: expert.act()[0], seed)
        assert success
        assert not driving.any()


@pytest.mark.slow
def test_rescues_a_policy_that_does_nothing(task, blind_env):
    env = blind_env(task)
    supervisor = ScriptedSupervisor(env, ALWAYS)
    results = [supervise(env, supervisor, idle, seed) for seed in range(8)]
    assert all(driving.any() for _, driving in results)
    assert sum(success for success, _ in results) >= 5
    for _, driving in results:
        assert driving[np.argmax(driving) :].all()  # without handing back, it drives to the end


def test_rescues_a_policy_that_drops_what_it_holds(blind_env):
    env = blind_env(TASK)
    expert, supervisor = sim.make_expert(env), ScriptedSupervisor(env, ALWAYS)

    def butterfingers(env, tick):
        action = expert.act()[0]
        if tick >= 25:
            action[[3, 7]] = 0.1
        return action

    results = [supervise(env, supervisor, butterfingers, seed) for seed in range(6)]
    assert all(np.argmax(driving) >= 25 for _, driving in results)
    assert sum(success for success, _ in results) >= 4


def test_takes_over_only_after_stall_and_reaction_time(blind_env, monkeypatch):
    env, began = blind_env(TASK), []
    for reaction_s in (0.0, 0.5):
        monkeypatch.setattr("sim.supervisor._REACTION_S", (reaction_s, reaction_s))
        began.append(np.argmax(supervise(env, ScriptedSupervisor(env, ALWAYS), idle, 0)[1]))
    assert began[0] >= 20
    assert began[1] - began[0] == 10


def test_rescues_about_the_share_that_was_asked_for(blind_env):
    env = blind_env(TASK)
    supervisor = ScriptedSupervisor(env, SupervisorConfig(rescue_probability=0.5))
    rescued = 0
    for seed in range(200):
        env.reset(seed=0)
        supervisor.reset(seed)
        rescued += any(supervisor.command(tick, idle(env, tick)) is not None for tick in (0, 30, 60))
    assert 75 <= rescued <= 125  # 3.5 standard deviations


def test_same_seed_gives_the_same_supervision(blind_env):
    env = blind_env(TASK)
    supervisor = ScriptedSupervisor(env, SupervisorConfig(rescue_probability=1.0))
    first, second = (supervise(env, supervisor, idle, 3)[1] for _ in range(2))
    assert np.array_equal(first, second)


def test_commands_start_from_the_last_one_and_move_in_bounded_steps(blind_env, monkeypatch):
    monkeypatch.setattr("sim.supervisor._FUMBLE_PROBABILITY", 1.0)
    env = blind_env(TASK)
    supervisor = ScriptedSupervisor(env, ALWAYS)
    env.reset(seed=0)
    supervisor.reset(0)
    driven = 0
    for tick in range(70):
        last = env.data.ctrl.copy()
        command = supervisor.command(tick, idle(env, tick))
        if command is not None:
            driven += 1
            assert np.abs(command - last).max() <= MAX_STEP_M + 1e-6
            assert env.action_space.contains(command)
        env.step(idle(env, tick) if command is None else command)
    assert driven > 20


def test_hands_back_once_the_trouble_is_repaired(blind_env):
    env = blind_env(TASK)
    config = dataclasses.replace(ALWAYS, hand_back_probability=1.0)
    for seed in range(4):
        _, driving = supervise(env, ScriptedSupervisor(env, config), idle, seed)
        starts = np.flatnonzero(np.diff(driving.astype(int)) == 1)
        ends = np.flatnonzero(np.diff(driving.astype(int)) == -1)
        assert len(ends) >= 1
        assert len(starts) <= 3


@pytest.mark.parametrize(
    ("said", "message"), [({"follows_script": True}, "follows a script"), ({"stall_s": 1.5}, r"options\.stall_s=1\.5")]
)
def test_refuses_an_expert_whose_progress_misleads(blind_env, monkeypatch, said, message):
    for name, value in said.items():
        monkeypatch.setattr(Expert, name, value, raising=False)
    env = blind_env(TASK)
    with pytest.raises(UserError, match=message):
        ScriptedSupervisor(env, ALWAYS)


def test_waits_as_long_as_the_expert_stalls(blind_env, monkeypatch):
    monkeypatch.setattr(Expert, "stall_s", 1.5, raising=False)
    env = blind_env(TASK)
    _, driving = supervise(env, ScriptedSupervisor(env, dataclasses.replace(ALWAYS, stall_s=1.5)), idle, 0)
    assert 30 <= np.argmax(driving) <= 45


@pytest.mark.parametrize("bad", [{"rescue_probability": 1.5}, {"hand_back_probability": -0.1}])
def test_bad_configurations_are_refused(bad):
    with pytest.raises(ConfigError):
        SupervisorConfig(**bad)
