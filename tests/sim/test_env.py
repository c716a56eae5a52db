"""The environments: interface, determinism, replay, arguments."""

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import sim
from sim.tasks.peg_insert import PegInsertEnv
from vla_rl.core.errors import UserError


def rollout(env, seed, n_steps):
    """Observations and rewards of an episode with random targets."""
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    record = [observation]
    for _ in range(n_steps):
        action = rng.uniform(env.action_space.low, env.action_space.high).astype(np.float32)
        record.append(env.step(action)[0])
    return record


def same(first, second):
    return np.array_equal(first["agent_pos"], second["agent_pos"]) and all(
        np.array_equal(first["pixels"][camera], second["pixels"][camera]) for camera in first["pixels"]
    )


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")  # the checker would like actions from -1 to 1; ours are meters
def test_gymnasiums_checker_accepts_the_task(task):
    check_env(gymnasium.make(task).unwrapped)


def test_observations_lie_in_their_space_even_in_wild_motion(task):
    env = gymnasium.make(task)
    for observation in rollout(env.unwrapped, 0, 40):
        assert env.observation_space.contains(observation)


def test_same_seed_and_actions_give_the_same_bytes(task):
    runs = [rollout(gymnasium.make(task).unwrapped, 5, 25) for _ in range(2)]
    assert all(same(*pair) for pair in zip(*runs, strict=True))
    other = rollout(gymnasium.make(task).unwrapped, 6, 0)
    assert not same(runs[0][0], other[0])


def test_an_episode_does_not_depend_on_the_one_before(task, blind_env):
    used, fresh = blind_env(task), blind_env(task)
    rollout(used, 1, 30)
    for first, second in zip(rollout(used, 2, 20), rollout(fresh, 2, 20), strict=True):
        assert np.array_equal(first["agent_pos"], second["agent_pos"])


def test_replay_from_a_state_is_exact(task, blind_env):
    env = blind_env(task)
    expert = sim.make_expert(env, 0.003)
    env.reset(seed=3)
    expert.reset(3)
    for _ in range(25):  # far enough for contacts
        env.step(expert.act()[1])
    state = env.get_state()
    actions = [env.action_space.sample() for _ in range(20)]
    first = [env.step(action)[0]["agent_pos"] for action in actions]
    end = env.get_state()
    env.reset(seed=9)
    env.set_state(state)
    second = [env.step(action)[0]["agent_pos"] for action in actions]
    assert np.array_equal(first, second)
    assert np.array_equal(end, env.get_state())


def test_a_state_of_another_task_is_refused(blind_env):
    state = blind_env("vla_rl/PickPlace-v0").get_state()
    with pytest.raises(UserError, match="same task"):
        blind_env("vla_rl/PegInsert-v0").set_state(state)


def test_time_limit_truncates_without_success(task, blind_env):
    env = blind_env(task)
    env.reset(seed=0)
    idle = env.data.ctrl.astype(np.float32)
    for step in range(1, env.max_episode_steps + 1):
        _, reward, terminated, truncated, info = env.step(idle)
        assert (reward, terminated, info["is_success"]) == (0.0, False, False)
        assert truncated == (step == env.max_episode_steps)


def test_nothing_leaves_the_table_under_random_actions(task, blind_env):
    env = blind_env(task, difficulty=1.0)
    for seed in range(3):
        rollout(env, seed, 60)
        for name in env.objects:
            x, y, z = env.position(name)
            assert abs(x) < 0.19
            assert abs(y) < 0.15
            assert z > -0.01


def test_difficulty_widens_the_starts(task, blind_env):
    spreads = []
    for difficulty in (0.0, 1.0):
        env = blind_env(task, difficulty=difficulty)
        starts = []
        for seed in range(30):
            env.reset(seed=seed)
            starts.append(env.position(env.objects[0]).copy())
        spreads.append(np.std(starts, axis=0)[:2].min())
    assert spreads[1] > 1.5 * spreads[0]


def test_both_arms_are_needed_to_insert_the_peg(blind_env):
    env = blind_env("vla_rl/PegInsert-v0")
    env.reset(seed=0)
    socket = env._object_start["socket"]
    peg = env._object_start["peg"]
    env.data.qpos[peg : peg + 2] = env.data.qpos[socket : socket + 2]
    env.data.qpos[peg + 2] = 0.03  # inside the socket, which stands on the table
    env.set_state(env.get_state())
    assert env.insertion_depth() > 0.03
    assert not env.is_success()
    env.data.qpos[[socket + 2, peg + 2]] += 0.05
    env.set_state(env.get_state())
    assert env.is_success()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"difficulty": 1.5}, "from 0"),
        ({"difficulty": "hard"}, "from 0"),
        ({"image_size": 3}, "pixels"),
        ({"cameras": ("fornt",)}, "Did you mean 'front'"),
        ({"cameras": ()}, "cameras"),
        ({"renderer": "rayscast"}, "Did you mean 'raycast'"),
        ({"render_mode": "human"}, "rgb_array"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(UserError, match=message):
        PegInsertEnv(**arguments)


def test_a_target_that_is_not_a_number_is_refused(blind_env):
    env = blind_env("vla_rl/PickPlace-v0")
    env.reset(seed=0)
    with pytest.raises(UserError, match="not a number"):
        env.step(np.full(4, np.nan, np.float32))


def test_cameras_and_size_are_as_asked():
    env = gymnasium.make("vla_rl/PickPlace-v0", image_size=32, cameras=("top",))
    observation, _ = env.reset(seed=0)
    assert {camera: picture.shape for camera, picture in observation["pixels"].items()} == {"top": (32, 32, 3)}


def test_actions_are_targets_and_the_rest_action_is_the_last_one(task, blind_env):
    env = blind_env(task)
    observation, _ = env.reset(seed=0)
    size = env.action_space.shape[0]
    assert env.action_kind == ("absolute",) * size
    assert env.gripper_dims == tuple(range(3, size, 4))
    np.testing.assert_allclose(env.rest_action(observation["agent_pos"]), observation["agent_pos"], atol=1e-7)
    closing = observation["agent_pos"].copy()
    closing[list(env.gripper_dims)] = 0.0
    observation = env.step(closing)[0]
    assert (observation["agent_pos"][list(env.gripper_dims)] > 0.02).all()  # still on their way
    np.testing.assert_allclose(env.rest_action(observation["agent_pos"]), closing, atol=1e-7)
