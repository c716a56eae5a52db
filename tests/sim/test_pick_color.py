"""One scene, three tasks: only the sentence says which cube is meant."""

import gymnasium
import numpy as np
import pytest

import sim
from sim.registration import COLOR_TASKS
from sim.tasks.pick_color import COLORS
from tests.sim.test_experts import episode
from vla_rl.core.errors import UserError


def test_all_colors_are_registered():
    assert list(COLOR_TASKS.values()) == list(COLORS)


def test_pictures_do_not_say_what_is_asked_for_and_sentences_do():
    envs = [gymnasium.make(name, image_size=32).unwrapped for name in COLOR_TASKS]
    first, *others = [env.reset(seed=4)[0] for env in envs]
    for other in others:
        assert np.array_equal(first["agent_pos"], other["agent_pos"])
        assert all(np.array_equal(first["pixels"][camera], other["pixels"][camera]) for camera in first["pixels"])
    assert [env.task_description for env in envs] == [f"put the {color} cube into the tray" for color in COLORS]
    assert len({tuple(env.position(color)) for env in envs[:1] for color in COLORS}) == 3


@pytest.mark.parametrize("difficulty", [0.0, 1.0])
@pytest.mark.parametrize("name", COLOR_TASKS)
def test_its_expert_brings_the_cube_that_is_named_and_leaves_the_others(name, difficulty, blind_env):
    env = blind_env(name, difficulty=difficulty)
    expert = sim.make_expert(env, action_noise=0.003)
    taken = []
    for seed in range(6):
        success, steps = episode(env, expert, seed)
        assert success
        taken.append(steps)
        for color in set(COLORS) - {env.cube}:
            assert env.position(color)[0] > 0.0  # not beside the tray
    assert np.mean(taken) < 1.4 * env.expert_steps


def test_another_cube_in_the_tray_is_no_success(blind_env):
    """What the expert of one sentence does is a failure under another."""
    asked, done = blind_env("vla_rl/PickRed-v0"), blind_env("vla_rl/PickViolet-v0")
    expert = sim.make_expert(done)
    asked.reset(seed=0)
    done.reset(seed=0)
    expert.reset(0)
    succeeded = False
    while not succeeded:
        action = expert.act()[1]
        _, _, wrong, truncated, _ = asked.step(action)
        _, _, succeeded, _, _ = done.step(action)
        assert not wrong
        assert not truncated


def test_a_color_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"no 'rd' cube.*red"):
        gymnasium.make("vla_rl/PickRed-v0", color="rd")
