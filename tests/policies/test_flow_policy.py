"""The policy behind the loop's protocol: noise from (seed, tick), committed prefixes, guidance, and clear refusals."""

import dataclasses

import numpy as np
import pytest
from tiny_policy import make_model, make_observation

from vla_rl.core.errors import UserError
from vla_rl.core.protocols import Policy
from vla_rl.policies.flow_vla import FlowVLAPolicy


def test_it_is_a_policy_and_numbers_its_chunks() -> None:
    policy = FlowVLAPolicy(make_model(), version=4)
    assert isinstance(policy, Policy)
    policy.reset(1)
    chunks = [policy.infer(make_observation(tick=tick)) for tick in (0, 5)]
    assert [(chunk.start_tick, chunk.chunk_id, chunk.policy_version) for chunk in chunks] == [(0, 0, 4), (5, 1, 4)]
    assert chunks[0].actions.shape == (8, 2)
    assert chunks[0].actions.dtype == np.float32
    policy.reset(1)
    assert policy.infer(make_observation()).chunk_id == 0


def test_an_episode_replays_from_its_seed() -> None:
    """The noise depends on the seed and the tick, not on how often the policy has been asked."""
    policy = FlowVLAPolicy(make_model())
    policy.reset(11)
    early, late = policy.infer(make_observation(tick=0)).actions, policy.infer(make_observation(tick=9)).actions
    policy.reset(11)
    assert (policy.infer(make_observation(tick=9)).actions == late).all()
    assert (policy.infer(make_observation(tick=0)).actions == early).all()
    assert not (early == late).all()
    policy.reset(12)
    assert not (policy.infer(make_observation(tick=0)).actions == early).all()


@pytest.mark.parametrize("length", [0, 1, 4])
def test_committed_actions_open_the_chunk(length: int) -> None:
    policy = FlowVLAPolicy(make_model(prefix_max=4))
    committed = np.random.default_rng(0).normal(size=(length, 2)).astype(np.float32)
    actions = policy.infer(make_observation(), committed).actions
    assert np.abs(actions[:length] - committed).max(initial=0) < 1e-6
    if length == 0:
        assert (actions == policy.infer(make_observation()).actions).all()


@pytest.mark.parametrize("exact", [True, False])
def test_guidance_pulls_towards_the_earlier_plan(exact: bool) -> None:
    policy = FlowVLAPolicy(make_model(), steps=10)
    free = policy.infer(make_observation()).actions
    previous = free[:6] + 1.0
    guided = policy.infer_guided(make_observation(), previous, delay_ticks=3, exact_gradient=exact).actions
    assert np.abs(guided[:3] - previous[:3]).mean() < 0.3 * np.abs(free[:3] - previous[:3]).mean()


def test_guidance_without_overlap_is_plain_sampling() -> None:
    policy = FlowVLAPolicy(make_model())
    nothing = np.zeros((0, 2), np.float32)
    guided = policy.infer_guided(make_observation(), nothing, delay_ticks=0).actions
    np.testing.assert_allclose(guided, policy.infer(make_observation()).actions, atol=1e-5)


def test_the_indicator_asks_for_good_actions() -> None:
    plain = FlowVLAPolicy(make_model(indicator=True)).infer(make_observation()).actions
    guided = FlowVLAPolicy(make_model(indicator=True, guidance_scale=3.0)).infer(make_observation()).actions
    assert np.abs(plain - guided).max() > 1e-4


def test_weights_may_change_between_calls() -> None:
    model = make_model()
    policy = FlowVLAPolicy(model)
    before = policy.infer(make_observation()).actions
    model.load_state_dict(make_model(seed=3).state_dict())
    assert not (policy.infer(make_observation()).actions == before).all()


def test_what_does_not_fit_is_refused() -> None:
    policy = FlowVLAPolicy(make_model())
    good = make_observation()
    front = good.images["front"]
    for bad, message in [
        (dataclasses.replace(good, images={"front": front}), "top"),
        (dataclasses.replace(good, images={**good.images, "top": front[:8]}), "image size"),
        (dataclasses.replace(good, images={**good.images, "top": front.astype(np.float32)}), "uint8"),
        (dataclasses.replace(good, state=np.zeros(5, np.float32)), "state"),
    ]:
        with pytest.raises(UserError, match=message):
            policy.infer(bad)
    for committed in (np.zeros((9, 2), np.float32), np.zeros((2, 3), np.float32), np.zeros(2, np.float32)):
        with pytest.raises(UserError, match="given actions"):
            policy.infer(good, committed)


def test_robots_of_two_sizes_share_a_policy() -> None:
    """The small robot sees what it would if its missing dimensions were average, and gets its own action size back."""
    model = make_model()
    model.spec = dataclasses.replace(model.spec, sizes=((2, 1), (3, 2)))
    policy = FlowVLAPolicy(model)
    policy.reset(5)
    large = make_observation()
    small = dataclasses.replace(large, state=large.state[:2])
    average = dataclasses.replace(large, state=np.float32([*large.state[:2], model.statistics.state.mean[2]]))
    chunk = policy.infer(small).actions
    assert chunk.shape == (8, 1)
    np.testing.assert_array_equal(chunk, policy.infer(average).actions[:, :1])
    committed = np.full((2, 1), 0.5, np.float32)
    np.testing.assert_array_equal(policy.infer(small, committed).actions[:2], committed)
    with pytest.raises(UserError, match=r"made for \[2\] or \[3\]"):
        policy.infer(dataclasses.replace(large, state=large.state[:1]))
