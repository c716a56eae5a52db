"""Re-timed demonstrations: what they command, and that the robot still does with them what was shown."""

import gymnasium
import numpy as np
import pytest

import sim
from sim.operators import Operator, OperatorConfig
from vla_rl.acting.retiming import kept_rows, retimed
from vla_rl.core.types import Episode, Origin, Source

TASK = "vla_rl/PickPlace-v0"


def as_episode(actions, success=True):
    actions = np.asarray(actions, np.float32)
    size, state = len(actions), np.arange(len(actions), dtype=np.float32)[:, None]
    source = np.full(size, Source.DEMO, np.uint8)
    return Episode(
        "demo", {}, state, actions, actions, source, "", success, True, Origin.DEMO, -1, 0, 20.0, TASK,
        {"tick": np.arange(size)},
    ).validate()  # fmt: skip


def test_contacts_keep_their_timing():
    action = np.zeros((60, 2), np.float32)
    action[30:, 1] = 1.0
    rows = kept_rows(action, 2.0, [1], 8)
    assert rows.tolist() == [*range(0, 22, 2), *range(22, 39), *range(39, 60, 2)]


@pytest.mark.parametrize("closing_steps", [1, 5, 15, 25])
def test_a_gripper_that_shuts_slowly_keeps_its_timing_too(closing_steps):
    """As one does that a person works by a leader arm; a little shaking of it is no change."""
    action = np.zeros((120, 2), np.float32)
    action[:, 1] = np.clip((np.arange(120) - 50) / closing_steps, 0, 1)
    action[:, 1] += 0.02 * np.sin(np.arange(120))
    rows = kept_rows(action, 2.0, [1], 8)
    assert set(range(44, 50 + closing_steps + 6)) <= set(rows)
    assert len(rows) < 120 - (120 - closing_steps - 40) // 2
    assert np.diff(rows)[:15].tolist() == [2] * 15
    assert np.diff(rows)[-15:].tolist() == [2] * 15


def test_targets_are_the_last_of_those_merged_and_steps_add_up():
    action = np.stack([np.arange(9.0), np.ones(9)], axis=1)
    fast = retimed(as_episode(action), 3.0, [], [1])
    assert fast.state[:, 0].tolist() == fast.extras["tick"].tolist()
    assert fast.action_sent[-1, 0] == 8
    assert fast.action_sent[:, 1].sum() == 9
    assert len(fast) == 3
    np.testing.assert_array_equal(retimed(as_episode(action), 1.0, [], [1]).action_sent, action)


def test_steps_that_would_add_up_to_more_than_can_be_sent_stay_as_they_were():
    action = np.zeros((12, 2), np.float32)
    action[:, 0] = [0.2] * 4 + [0.8] * 4 + [-0.4] * 4
    bounds = np.full(2, -1.0, np.float32), np.ones(2, np.float32)
    fast = retimed(as_episode(action), 2.0, [], [0, 1], bounds)
    assert fast.state[:, 0].tolist() == [0, 2, 4, 5, 6, 7, 8, 10]
    np.testing.assert_allclose(fast.action_sent[:, 0], [0.4, 0.4, 0.8, 0.8, 0.8, 0.8, -0.8, -0.8])
    # Targets are merged whatever they are.
    assert len(retimed(as_episode(action), 2.0, [], [], bounds)) == 6


@pytest.mark.parametrize("speed", [1.5, 2.0])
def test_a_slow_demonstration_still_solves_the_task_in_fewer_steps(speed):
    env = gymnasium.make(TASK, difficulty=0.2).unwrapped
    env.drawing, env.max_episode_steps = False, 300
    slow = Operator(sim.make_expert(env), OperatorConfig(speed=(0.5, 0.5), reaction_s=(0.5, 0.5)))
    solved = 0
    for seed in range(5):
        env.reset(seed=seed)
        slow.reset(seed)
        sent, success = [], False
        while not success:
            sent.append(slow.act()[1])
            success = env.step(sent[-1])[2]
        fast = retimed(as_episode(sent), speed, env.gripper_dims, [])
        assert len(fast) < (0.9 if speed == 1.5 else 0.75) * len(sent)
        env.reset(seed=seed)
        # Where the robot lags behind what it is told, the last command holds a little longer.
        steps = [*fast.action_sent, *[fast.action_sent[-1]] * 10]
        solved += any(env.step(command)[2] for command in steps)
    env.close()
    assert solved >= 4
