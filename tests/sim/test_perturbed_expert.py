"""The perturbed expert: large errors, blind grasps and stalls."""

from dataclasses import replace

import numpy as np
import pytest

from sim.experts.perturbed import PerturbationConfig, PerturbedExpert
from vla_rl.acting.task import make_env
from vla_rl.acting.task_config import TaskConfig

TASK = TaskConfig(image_size=32, difficulty=0.0)


def test_rough_episodes_have_large_errors_of_arms_and_grippers() -> None:
    env = make_env(TASK)

    arms, grippers = [0, 1, 2, 4, 5, 6], [3, 7]

    def off(config: PerturbationConfig, dims: list[int]) -> float:
        """Median of the largest distance of the sent action from the expert's, meters."""
        env.reset(seed=3)
        expert, steps = PerturbedExpert(env, config), []
        expert.reset(3)
        for _ in range(30):
            clean, sent = expert.act()
            steps.append(np.abs(sent - clean)[dims].max())
            env.step(sent)
        return float(np.median(steps))

    rough = PerturbationConfig(rough=1.0, rough_aim=(0.1, 0.1), accurate=1.0, slip=0.0, stall=0.0, blind=0.0)
    gentle = replace(rough, rough=0.0)
    assert off(rough, arms) > 0.05 > 5 * off(gentle, arms)
    assert off(rough, grippers) > 0.005
    assert off(gentle, grippers) == off(replace(rough, rough_grippers=0.0), grippers) == 0.0
    env.close()


@pytest.mark.slow
def test_only_a_blind_expert_closes_its_hands_on_nothing_and_goes_on() -> None:
    env = make_env(TASK)

    def closed_and_empty(config: PerturbationConfig, seed: int) -> int:
        """The most steps on end in which a gripper told to close has nothing between its fingers."""
        env.reset(seed=seed)
        expert = PerturbedExpert(env, config)
        expert.reset(seed)
        most = steps = 0
        for _ in range(70):
            _, sent = expert.act()
            env.step(sent)
            nothing = (sent[[3, 7]] < 0.005) & (env.unwrapped.openings() < 0.01)
            steps = steps + 1 if nothing.any() else 0
            most = max(most, steps)
        return most

    blind = PerturbationConfig(blind=1.0, blind_aim=(0.05, 0.05), rough=0.0, slip=0.0, stall=0.0)
    seeds = range(3, 9)
    assert sum(closed_and_empty(blind, seed) > 20 for seed in seeds) >= 2
    assert all(closed_and_empty(replace(blind, blind=0.0), seed) == 0 for seed in seeds)
    assert closed_and_empty(blind, 4) == closed_and_empty(blind, 4), "the seed fixes it"
    stalled = PerturbedExpert(env, replace(blind, stall=1.0))
    env.reset(seed=4)
    stalled.reset(4)
    here = env.unwrapped.data.ctrl.copy()
    for _ in range(5):
        _, sent = stalled.act()
        env.step(sent)
    np.testing.assert_allclose(sent, here, atol=1e-6, err_msg="stalled arms hold what was sent here, not in the copy")
    stalled.close()
    env.close()
