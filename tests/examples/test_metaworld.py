"""Meta-World behind our interface; skipped where it is not installed."""

import subprocess
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from vla_rl_benchmarks.metaworld_tasks import IDS, TASKS

import sim
from sim.supervisor import ScriptedSupervisor, SupervisorConfig
from vla_rl.acting.expert_policy import find_expert
from vla_rl.core.errors import UserError
from vla_rl.core.types import Observation

META_WORLD = [f"vla_rl/MetaWorld{name}-v0" for name in ("ButtonPress", "DoorOpen", "DrawerOpen", "PegInsertSide")]
FIRST_FAST = [META_WORLD[0], *(pytest.param(name, marks=pytest.mark.slow) for name in META_WORLD[1:])]
MARKED = "vla_rl/MetaWorldReach-v0"


def make(name, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("metaworld")
    return gymnasium.make(name, **arguments).unwrapped


@pytest.mark.parametrize("name", FIRST_FAST)
def test_same_interface_as_our_tasks(name):
    env = make(name, image_size=32)
    env.action_space.seed(1)
    observation, info = env.reset(seed=1)
    assert info == {"is_success": False}
    for _ in range(3):
        assert env.observation_space.contains(observation)
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert env.render().shape == (32, 32, 3)
    assert env.task_description
    assert len(env.action_kind) == env.action_space.shape[0]
    assert env.action_space.contains(env.rest_action(observation["agent_pos"]))
    env.close()


@pytest.mark.parametrize("name", ["vla_rl/MetaWorldAssembly-v0", "vla_rl/MetaWorldCoffeePush-v0"])
def test_without_pictures_the_state_holds_objects_and_goal(name):
    env, seeing = make(name, pictures=False), make(name)
    goals = []
    for seed in range(3):
        env.reset(seed=seed)
        observation = env.step(env.action_space.high)[0]  # now it differs from the step before
        assert env.observation_space.contains(observation)
        assert set(observation) == {"agent_pos"}
        assert len(env.state_units) == len(env.state_names)
        state = dict(zip(env.state_names, observation["agent_pos"], strict=True))
        for prefix, place in (
            ("", env.native.get_endeff_pos()),
            ("object_1_", env.native._get_pos_objects()[:3]),
            ("goal_", env.native._target_pos),
        ):
            assert [state[f"{prefix}{axis}"] for axis in "xyz"] == pytest.approx(place, abs=1e-6)
        goals.append(env.native._target_pos)
        seeing.reset(seed=seed)
        assert seeing.step(env.action_space.high)[0]["agent_pos"] == pytest.approx(observation["agent_pos"][:4])
    assert np.ptp(goals, axis=0).max() > 0.01
    assert env.draw_now() == {}
    assert env.metadata["render_modes"] == []
    env.close()
    seeing.close()


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in IDS])
def test_every_meta_world_task_steps_and_has_an_expert(name):
    env = make(name, image_size=16)
    observation, _ = env.reset(seed=0)
    expert = sim.make_expert(env)
    for _ in range(3):
        assert env.observation_space.contains(observation)
        observation, reward, *_ = env.step(expert.act()[0])
        assert reward == 0.0
    env.close()


def test_the_expert_as_a_policy_plans_steps_that_end():
    make(META_WORLD[0]).close()
    folder, load = find_expert(f"expert:vla_rl_benchmarks.metaworld_tasks:{META_WORLD[0]}")
    assert folder.spec.delta_dims == (0, 1, 2)
    policy = load()
    for state in policy._states:  # it follows its own solution to the end
        actions = policy.infer(Observation({}, state, "", 0)).actions
    assert actions[0, :3].any()
    assert not actions[1:, :3].any()
    assert (actions[:, 3] == actions[0, 3]).all()


def test_meta_worlds_own_list_of_tasks_is_the_registered_one():
    make(META_WORLD[0]).close()
    from metaworld.policies import ENV_POLICY_MAP

    assert list(IDS.values()) == sorted(ENV_POLICY_MAP)
    assert IDS["vla_rl/MetaWorldPickOutOfHole-v0"] == "pick-out-of-hole-v3"
    assert set(IDS) < set(gymnasium.registry)


def test_every_meta_world_task_has_its_own_sentence_and_time_enough():
    assert len({task.sentence for task in TASKS.values()}) == len(TASKS)
    for task in TASKS.values():
        assert task.max_episode_steps >= max(250, 2.5 * task.expert_steps)


def test_importing_sim_imports_no_benchmark():
    code = "import sys, sim; print(*({'metaworld', 'gym_aloha', 'mujoco'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == ""


def test_a_mark_stands_where_a_hidden_goal_is():
    env = make(MARKED)
    mark = env.native.model.body("goal_mark")
    for seed in range(2):
        env.reset(seed=seed)
        np.testing.assert_array_equal(env.native.data.xpos[mark.id], env.native._target_pos)
        drawn = env.renderer.segment(env.native.data, "corner2") == mark.geomadr[0]
        assert drawn.any()


def test_static_bodies_are_drawn_where_the_reset_has_put_them():
    env = make("vla_rl/MetaWorldWindowOpen-v0")
    for seed in range(2):
        env.reset(seed=seed)
        model, data = env.native.model, env.native.data
        np.testing.assert_allclose(data.body("window").xpos, model.body("window").pos)


@pytest.mark.parametrize("name", META_WORLD[:1])
def test_the_seed_decides_the_scene(name):
    env = make(name, image_size=48)
    first, second, again = (env.reset(seed=seed)[0]["pixels"] for seed in (1, 2, 1))
    for camera in env.cameras:
        assert np.array_equal(first[camera], again[camera])
    assert any(not np.array_equal(first[camera], second[camera]) for camera in env.cameras)


@pytest.mark.slow
@pytest.mark.parametrize("name", FIRST_FAST)
def test_meta_worlds_experts_succeed(name, blind_env):
    make(name).close()
    env = blind_env(name)
    expert, successes = sim.make_expert(env), 0
    for seed in range(4):
        env.reset(seed=seed)
        expert.reset(seed)
        ended = False
        while not ended:
            _, reward, success, truncated, _ = env.step(expert.act()[1])
            assert reward == float(success)
            ended = success or truncated
        successes += success
    assert successes >= 3


@pytest.mark.slow
def test_meta_world_can_be_supervised(blind_env):
    make(META_WORLD[0]).close()
    env = blind_env(META_WORLD[0])
    supervisor = ScriptedSupervisor(env, SupervisorConfig(rescue_probability=1.0, hand_back_probability=0.0))
    rescued = 0
    for seed in range(3):
        env.reset(seed=seed)
        supervisor.reset(seed)
        ended = False
        while not ended:
            command = supervisor.command(env.elapsed_steps, np.zeros(4, np.float32))
            _, _, success, truncated, _ = env.step(np.zeros(4, np.float32) if command is None else command)
            ended = success or truncated
        rescued += success
    assert rescued >= 2


def test_the_rest_action_of_steps_is_no_motion():
    env = make(META_WORLD[0], image_size=32)
    observation, _ = env.reset(seed=0)
    assert env.action_kind == ("delta", "delta", "delta", "absolute")
    env.step(np.array([0.5, -0.5, 0.2, 0.7], np.float32))
    np.testing.assert_array_equal(env.rest_action(observation["agent_pos"]), np.float32([0, 0, 0, 0.7]))


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "metaworld", None)
    with pytest.raises(UserError, match=r"examples/benchmarks\[metaworld\]"):
        gymnasium.make(META_WORLD[0])
