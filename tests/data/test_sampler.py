import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.core.errors import ConfigError
from vla_rl.data.sampler import MixtureSampler

GROUPS = {"demo": np.arange(0, 10), "rollout": np.arange(10, 100), "human": np.arange(100, 103)}


def test_a_step_is_a_pure_function_of_seed_and_step() -> None:
    weights = {"demo": 1.0, "rollout": 2.0, "human": 1.0}
    one, other = (MixtureSampler(GROUPS, weights, seed=7) for _ in range(2))
    forwards = [one.sample(step, 64) for step in range(5)]
    backwards = [other.sample(step, 64) for step in reversed(range(5))][::-1]
    for (frames, groups), (frames_again, groups_again) in zip(forwards, backwards, strict=True):
        np.testing.assert_array_equal(frames, frames_again)
        np.testing.assert_array_equal(groups, groups_again)
    assert not np.array_equal(forwards[0][0], forwards[1][0])
    assert not np.array_equal(forwards[0][0], MixtureSampler(GROUPS, weights, seed=8).sample(0, 64)[0])


def test_groups_come_in_proportion_to_their_weights_and_frames_evenly() -> None:
    frames, groups = MixtureSampler(GROUPS, {"demo": 1.0, "rollout": 2.0, "human": 5.0}, seed=0).sample(0, 80_000)
    shares = np.bincount(groups, minlength=3) / len(groups)
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 5 / 8], atol=0.01)
    counts = np.bincount(frames[groups == 0], minlength=10)
    np.testing.assert_allclose(counts, 1000, rtol=0.15)


def test_the_weight_of_an_empty_group_is_shared_out() -> None:
    groups = GROUPS | {"human": np.array([], dtype=np.int64)}
    sampler = MixtureSampler(groups, {"demo": 1.0, "rollout": 3.0, "human": 4.0}, seed=0)
    np.testing.assert_allclose(sampler.probabilities, [0.25, 0.75, 0.0])
    assert set(np.unique(sampler.sample(0, 1000)[1])) == {0, 1}


def test_priorities_draw_in_proportion() -> None:
    sampler = MixtureSampler(
        {"a": np.array([5, 6, 7, 8])}, {"a": 1.0}, seed=0, priorities={"a": np.array([0.0, 1.0, 0.0, 3.0])}
    )
    frames, _ = sampler.sample(3, 40_000)
    shares = np.bincount(frames, minlength=9)[5:] / len(frames)
    np.testing.assert_allclose(shares, [0, 0.25, 0, 0.75], atol=0.01)
    assert shares[0] == shares[2] == 0


def test_a_group_without_any_priority_counts_as_empty() -> None:
    sampler = MixtureSampler(GROUPS, dict.fromkeys(GROUPS, 1.0), seed=0, priorities={"demo": np.zeros(10)})
    np.testing.assert_allclose(sampler.probabilities, [0, 0.5, 0.5])


@pytest.mark.parametrize(
    ("weights", "priorities", "message"),
    [
        ({"demo": 1.0, "rollout": 1.0}, None, "'human' has no weight"),
        ({"demo": 1.0, "rollout": 1.0, "human": 1.0, "humans": 1.0}, None, "no group 'humans'.*Did you mean 'human'"),
        ({"demo": -1.0, "rollout": 1.0, "human": 1.0}, None, "'demo' is -1"),
        ({"demo": np.nan, "rollout": 1.0, "human": 1.0}, None, "'demo' is nan"),
        ({"demo": 0.0, "rollout": 0.0, "human": 0.0}, None, "nothing to sample from"),
        ({"demo": 1.0, "rollout": 1.0, "human": 1.0}, {"demo": np.ones(9)}, r"shape \[9\]"),
        ({"demo": 1.0, "rollout": 1.0, "human": 1.0}, {"human": np.array([1, -1, 1])}, "finite and >= 0"),
        ({"demo": 1.0, "rollout": 1.0, "human": 1.0}, {"human": np.array([1, np.inf, 1])}, "finite and >= 0"),
        ({"demo": 1.0, "rollout": 1.0, "human": 1.0}, {"hunam": np.ones(3)}, "Did you mean 'human'"),
    ],
)
def test_what_does_not_fit_is_refused(weights: dict, priorities: dict | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixtureSampler(GROUPS, weights, seed=0, priorities=priorities)


@given(
    sizes=st.lists(st.integers(0, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**63),
    step=st.integers(0, 2**40),
    data=st.data(),
)
def test_only_what_may_be_drawn_is_drawn(sizes: list[int], seed: int, step: int, data: st.DataObject) -> None:
    names = [f"g{index}" for index in range(len(sizes))]
    groups = {name: 100 * index + np.arange(size) for index, (name, size) in enumerate(zip(names, sizes, strict=True))}
    some_weight = st.sampled_from([0.0, 0.1, 1.0, 7.5])
    weights = {name: data.draw(some_weight) for name in names}
    priorities = {
        name: np.array(data.draw(st.lists(some_weight, min_size=size, max_size=size)))
        for name, size in zip(names, sizes, strict=True)
        if data.draw(st.booleans())
    }
    values = {name: priorities.get(name, np.ones(len(groups[name]))) for name in names}
    shares = [weights[name] if values[name].sum() > 0 else 0.0 for name in names]
    if sum(shares) == 0:
        with pytest.raises(ConfigError, match="nothing to sample"):
            MixtureSampler(groups, weights, seed, priorities)
        return
    frames, group_index = MixtureSampler(groups, weights, seed, priorities).sample(step, 33)
    for frame, index in zip(frames, group_index, strict=True):
        assert shares[index] > 0
        member = int(np.flatnonzero(groups[names[index]] == frame)[0])
        assert values[names[index]][member] > 0
