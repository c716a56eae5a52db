"""What actor and critics may read of a cache."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_world import MIXED, D, H, P, make_episode, make_model, tiny

from vla_rl.algorithms.cloning import MixtureConfig, weights_without_failures
from vla_rl.algorithms.round_data import RoundData
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.types import Episode, Origin
from vla_rl.credit import ActorKind
from vla_rl.data.statistics import data_statistics
from vla_rl.policies.base import Indicator
from vla_rl.training.algorithms import make_algorithm

CREDIT = tiny("habc").credit


def read(cache, model=None):
    return RoundData(cache, CREDIT, model or make_model())


def test_chunks_end_where_the_persons_steps_end(make_cache):
    data = read(make_cache([make_episode("a", [P] * 4 + [H] * 5 + [P] * 6, False)]))
    valid = data.policy_batch(np.array([4, 6, 8, 9, 13])).valid.all(2).sum(1)
    assert valid.tolist() == [4, 3, 1, 4, 2]


def test_after_a_success_the_last_action_is_held(make_cache):
    episode = make_episode("a", [P] * 4 + [H] * 5 + [P] * 6, True)
    batch = read(make_cache([episode])).policy_batch(np.array([7, 13]))
    assert batch.valid.all(2).sum(1).tolist() == [2, 4]  # the person's steps still end; the success is held
    np.testing.assert_array_equal(batch.actions[1, 1:].numpy(), np.repeat(episode.action_sent[-1:], 3, axis=0))


def test_after_a_success_steps_hold_still_and_targets_are_repeated(make_cache):
    episode = make_episode("a", [P] * 6, True)
    model = make_model()
    model.spec = replace(model.spec, delta_dims=(1,))
    actions = read(make_cache([episode]), model=model).policy_batch(np.array([4])).actions[0].numpy()
    np.testing.assert_array_equal(actions[:2], episode.action_sent[4:])
    np.testing.assert_array_equal(actions[2:], [[episode.action_sent[5, 0], 0.0]] * 2)
    sent, _ = read(make_cache([episode]), model=model).sent_chunks(np.array([4]), 4)
    np.testing.assert_array_equal(sent[0], actions, "and so it is judged")


def test_pauses_are_told_by_what_was_commanded(make_cache):
    """A target that stays is a pause, a step of 0 too; a target that moves by a hair is one as well."""
    episode = make_episode("a", [D] * 10, True, origin=Origin.DEMO)
    commands = np.stack([np.arange(10.0), np.zeros(10)], axis=1).astype(np.float32)
    commands[3:7] = commands[2] + np.arange(4)[:, None] * 1e-4
    episode = replace(episode, action_policy=commands, action_sent=commands)
    model = make_model()
    model.spec = replace(model.spec, delta_dims=(1,))
    data = RoundData(make_cache([episode]), replace(CREDIT, idle_steps=4), model)
    assert np.flatnonzero(data.credit.actor_kind == ActorKind.EXCLUDED).tolist() == [3, 4, 5, 6]


def test_only_what_a_person_commanded_is_imitated(make_cache):
    """One arm was taken over: the other one's commands during that are nobody's example."""
    episode = make_episode("a", [P] * 4 + [H] * 8, True)
    data = RoundData(make_cache([episode]), replace(CREDIT, intervention_dims=(1,)), make_model())
    valid = data.policy_batch(np.array([0, 4])).valid.numpy()
    assert valid[1].tolist() == [[False, True]] * 4
    model = make_model()
    data = RoundData(make_cache([episode]), replace(CREDIT, intervention_dims=(1,)), model)
    batch = data.policy_batch(np.array([4]))
    loss = model.loss(batch, torch.Generator().manual_seed(0))[0]
    loss.sum().backward()
    head = next(p for name, p in reversed(list(model.expert.named_parameters())) if p.ndim == 1)
    assert head.grad.view(-1, 2)[:, 0].abs().max() == 0
    assert head.grad.view(-1, 2)[:, 1].abs().max() > 0


def test_a_smaller_robot_is_filled_up_with_what_is_zero_to_the_network(make_cache):
    large = make_episode("a", [D] * 6, True)
    small = make_episode("b", [D] * 5, True, state=large.state[:5, :1] + 3, action=large.action_sent[:5, :1] - 3)
    cache = make_cache([large, small])
    statistics = data_statistics(cache, ())
    both = np.concatenate([large.state[:, 0], small.state[:, 0]])
    assert statistics.state.mean == pytest.approx((both.mean(), large.state[:, 1].mean()), abs=1e-6)
    assert statistics.action.std[1] == pytest.approx(large.action_policy[:, 1].std(), abs=1e-6)
    model = make_model()
    model.spec, model.statistics = replace(model.spec, sizes=((1, 1), (2, 2))), statistics
    batch = read(cache, model=model).policy_batch(np.array([0, 7]))
    np.testing.assert_array_equal(batch.state[0].numpy(), large.state[0])
    np.testing.assert_allclose(batch.state[1].numpy(), [small.state[1, 0], statistics.state.mean[1]], rtol=1e-6)
    np.testing.assert_array_equal(batch.actions[1, :3, 0].numpy(), small.action_policy[1:4, 0])
    np.testing.assert_allclose(batch.actions[1, :, 1].numpy(), statistics.action.mean[1], rtol=1e-6)
    chunks, inside = read(cache, model=model).sent_chunks(np.array([0, 9]), 3)
    np.testing.assert_array_equal(chunks[0], large.action_sent[:3])
    np.testing.assert_array_equal(chunks[1, :2, 0], small.action_sent[[3, 4], 0])
    np.testing.assert_allclose(chunks[1, :, 1], statistics.action.mean[1], rtol=1e-6)
    np.testing.assert_array_equal(inside[1], [True, True, False])


def test_the_usual_change_of_an_action_is_taken_within_episodes_and_over_the_robots_that_have_it(make_cache):
    ramp = np.stack([np.arange(8.0), 10 * np.arange(8.0)], 1).astype(np.float32)
    large = make_episode("a", [D] * 8, True, state=ramp, action=ramp)
    small = make_episode("b", [D] * 8, True, state=ramp[:, :1], action=3 * ramp[:, :1])
    cache = make_cache([large, small])
    assert data_statistics(cache, (), ticks=3).change == pytest.approx((np.sqrt((3**2 + 9**2) / 2), 30))
    assert data_statistics(cache, (), ticks=8).change == (), "no episode is that long"
    assert data_statistics(cache, ()).change == ()
    assert cache.store.summary()[1].change == pytest.approx((np.sqrt((6**2 + 18**2) / 2), 60)), "as for a run"


def test_few_episodes_tell_little_of_the_scale_of_a_goal(make_cache):
    named = Dimensions(("hand", "goal", "step", "angle"), ("m", "m", "m", "deg"))
    hand = np.linspace(-1, 1, 8, dtype=np.float32)

    def episode(name: str, goal: float, dimensions: Dimensions) -> Episode:
        fixed = np.full(8, goal, np.float32)
        step = np.where(np.arange(8) < 7, fixed, fixed + 0.01).astype(np.float32)
        made = make_episode(name, [D] * 8, True, state=np.stack([hand, fixed, step, fixed], 1))
        return replace(made, state_dimensions=dimensions)

    def scales(dimensions: Dimensions) -> np.ndarray:
        goals = {"a": 0.1, "b": 0.11, "c": 0.12, "d": 0.13}
        cache = make_cache([episode(name, goal, dimensions) for name, goal in goals.items()])
        return data_statistics(cache, ()).state.scale

    own, std = np.std([0.1, 0.11, 0.12, 0.13]), hand.std()
    assert scales(named)[:2] == pytest.approx([std, std / 2], rel=1e-5), "four episodes: half of the hand's scale"
    assert scales(named)[2] == pytest.approx(max(0.02 * std, own), rel=0.1), "what changes in an episode is no goal"
    assert scales(named)[3] == pytest.approx(own, rel=1e-5), "no other dimension has this unit"
    assert scales(Dimensions(named.names))[1] == pytest.approx(own, rel=1e-5), "no unit is declared"


def test_outcomes_are_credited_to_what_was_sent_and_not_to_what_is_to_be_imitated(make_cache):
    """A demonstrator's command is sent with noise, so that recoveries are shown; imitation gets it clean."""
    episode = make_episode("a", [D] * 6, True, origin=Origin.DEMO)
    episode = replace(episode, action_sent=episode.action_policy + np.float32(0.5))
    data = read(make_cache([episode]))
    np.testing.assert_array_equal(data.sent_chunks(np.array([1]), 3)[0][0], episode.action_sent[1:4])
    np.testing.assert_array_equal(data.policy_batch(np.array([1])).actions[0, :3].numpy(), episode.action_policy[1:4])


def test_batches_carry_the_sentence_and_the_raw_columns(make_cache):
    episodes = [
        make_episode("a", [D] * 3, True, task="put it in"),
        make_episode("b", [P] * 3, True, task="take it out"),
    ]
    model = make_model()
    data = read(make_cache(episodes), model=model)
    batch = data.policy_batch(np.array([1, 4]))
    assert torch.equal(batch.text, model.tokenize(["put it in", "take it out"]))
    np.testing.assert_array_equal(batch.state[1].numpy(), episodes[1].state[1])
    np.testing.assert_array_equal(batch.actions[0, 0].numpy(), episodes[0].action_policy[1])
    np.testing.assert_array_equal(batch.images["front"][1].numpy(), episodes[1].images["front"][1])
    assert batch.indicator is None


def test_what_is_imitated_is_positive_for_a_policy_with_an_indicator(make_cache):
    data = read(make_cache(MIXED), model=make_model(indicator=True))
    assert (data.policy_batch(np.arange(5)).indicator == int(Indicator.POSITIVE)).all()


def test_returns_and_transitions_stop_at_the_end_of_the_episode(make_cache):
    data = read(make_cache([make_episode("a", [P] * 4, True), make_episode("b", [P] * 3, False)]))
    np.testing.assert_allclose(data.discounted_return(np.arange(7), 0.5), [0.125, 0.25, 0.5, 1.0, 0, 0, 0])
    later, elapsed, ended = data.transition(np.arange(7), 2)
    assert later.tolist() == [2, 3, 3, 3, 6, 6, 6]
    assert elapsed.tolist() == [2, 2, 1, 0, 2, 1, 0]
    assert ended.tolist() == [False, False, True, True, False, True, True]


@pytest.mark.parametrize("groups_left_out", [(), ("interventions",), ("demonstrations",)])
def test_leaving_failures_out_keeps_the_expected_gradient(make_cache, groups_left_out):
    """In the limit of large batches each step's share in the loss is as if failures were drawn and weighed 0."""
    cache = make_cache(MIXED)
    data = read(cache)
    config = MixtureConfig(demonstrations=0.5, interventions=0.2, rollouts=0.3)
    gate = np.random.default_rng(0).uniform(0.1, 1.9, cache.total_frames)
    shares = []
    for rollouts in ("all", "successes"):
        groups = data.actor_groups(rollouts=rollouts)
        groups |= {name: np.empty(0, dtype=np.int64) for name in groups_left_out}
        weights = {name: getattr(config, name) for name in groups}
        if rollouts == "successes":
            weights = weights_without_failures(weights, groups, data)
        total = sum(weights[name] for name, frames in groups.items() if len(frames))
        drawn = np.zeros(cache.total_frames)
        for name, frames in groups.items():
            drawn[frames] = weights[name] / total / max(len(frames), 1)
        kind, success = data.credit.actor_kind, data.credit.actor_outcome
        pre = np.where(kind == ActorKind.ROLLOUT, gate * success, 1.0)
        practiced = (kind != ActorKind.DEMONSTRATION) & (drawn > 0)
        mean = (drawn * pre)[practiced].sum() / drawn[practiced].sum()
        shares.append(drawn * np.where(practiced, pre / mean, pre))
    np.testing.assert_allclose(shares[0], shares[1], atol=1e-12)


def test_habc_does_not_draw_failures(make_cache):
    cache = make_cache(MIXED)
    config = tiny("habc", mixture={"demonstrations": 0.0, "interventions": 0.0})
    habc = make_algorithm("habc", config, make_model(), cache, seed=0)
    habc.begin_round(cache, 1)
    drawn = np.concatenate([habc.actor_frames(step) for step in range(20)])
    assert habc.data.credit.actor_outcome[drawn].all()


def test_state_and_actions_may_be_ahead_of_the_images(make_cache, monkeypatch):
    """VLASH: images of a frame, with the state and the actions of one up to three steps later, in the same credit."""
    monkeypatch.setattr("vla_rl.algorithms.round_data.random_shift", lambda images, *_: images)
    episode = make_episode("a", [P] * 6 + [H] * 8, False)
    model = make_model(future_state_max=3)
    data = read(make_cache([episode]), model=model)
    frames = np.array([6, 9, 12, 13] * 25)
    batch = data.policy_batch(frames, torch.Generator().manual_seed(0))
    row = np.array([np.flatnonzero((episode.state == state).all(1))[0] for state in batch.state.numpy()])
    ahead = row - frames
    assert set(ahead[frames == 6]) == {0, 1, 2, 3}
    assert set(ahead[frames == 12]) == {0, 1}
    assert set(ahead[frames == 13]) == {0}
    np.testing.assert_array_equal(batch.actions[:, 0].numpy(), episode.action_sent[row])
    np.testing.assert_array_equal(batch.images["front"].numpy(), episode.images["front"][frames])
    assert (batch.valid.all(2).sum(1).numpy() == np.minimum(14 - row, 4)).all()
    plain = read(make_cache([episode])).policy_batch(frames, torch.Generator().manual_seed(0))
    np.testing.assert_array_equal(plain.state.numpy(), episode.state[frames])
