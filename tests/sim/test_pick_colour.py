"""One scene, three tasks: only the sentence says which cube is meant."""

import gymnasium
import numpy as np
import pytest

import sim
from sim.registration import COLOUR_TASKS
from sim.tasks.pick_colour import COLOURS
from tests.sim.test_experts import episode
from vla_rl.core.errors import UserError


def test_all_colours_are_registered():
    assert list(COLOUR_TASKS.values()) == list(COLOURS)


def test_pictures_do_not_say_what_is_asked_for_and_sentences_do():
    envs = [gymnasium.make(name, image_size=32).unwrapped for name in COLOUR_TASKS]
    first, *others = [env.reset(seed=4)[0] for env in envs]
    for other in others:
        assert np.array_equal(first["agent_pos"], other["agent_pos"])
        assert all(np.array_equal(first["pixels"][camera], other["pixels"][camera]) for camera in first["pixels"])
    assert [env.task_description for env in envs] == [f"put the {colour} cube into the tray" for colour in COLOURS]
    assert len({tuple(env.position(colour)) for env in envs[:1] for colour in COLOURS}) == 3


@pytest.mark.parametrize("difficulty", [0.0, 1.0])
@pytest.mark.parametrize("name", COLOUR_TASKS)
def test_its_expert_brings_the_cube_that_is_named_and_leaves_the_others(name, difficulty, blind_env):
    env = blind_env(name, difficulty=difficulty)
    expert = sim.make_expert(env, action_noise=0.003)
    taken = []
    for seed in range(6):
        success, steps = episode(env, expert, seed)
        assert success
        taken.append(steps)
        for colour in set(COLOURS) - {env.cube}:
            assert env.position(colour)[0] > 0.0  # not beside the tray
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


def test_a_colour_that_is_not_there_is_refused():
    with pytest.raises(UserError, match=r"no 'rd' cube.*red"):
        gymnasium.make("vla_rl/PickRed-v0", colour="rd")
