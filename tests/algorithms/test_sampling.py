import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.algorithms.sampling import MixtureSampler
from vla_rl.core.errors import ConfigError

GROUPS = {"demo": np.arange(0, 10), "rollout": np.arange(10, 100), "human": np.arange(100, 103)}


def test_a_step_is_a_pure_function_of_seed_and_step() -> None:
    weights = {"demo": 1.0, "rollout": 2.0, "human": 1.0}
    one, other = (MixtureSampler(GROUPS, weights, seed=7) for _ in range(2))
    forwards = [one.sample(step, 64) for step in range(5)]
    backwards = [other.sample(step, 64) for step in reversed(range(5))][::-1]
    np.testing.assert_array_equal(forwards, backwards)
    assert not np.array_equal(forwards[0], forwards[1])
    assert not np.array_equal(forwards[0], MixtureSampler(GROUPS, weights, seed=8).sample(0, 64))


def test_groups_come_in_proportion_to_their_weights_and_frames_evenly() -> None:
    frames = MixtureSampler(GROUPS, {"demo": 1.0, "rollout": 2.0, "human": 5.0}, seed=0).sample(0, 80_000)
    counts = np.bincount(frames, minlength=103)
    shares = [counts[group].sum() / len(frames) for group in GROUPS.values()]
    np.testing.assert_allclose(shares, [1 / 8, 2 / 8, 5 / 8], atol=0.01)
    np.testing.assert_allclose(counts[:10], 1000, rtol=0.15)


def test_the_weight_of_an_empty_group_is_shared_out() -> None:
    groups = GROUPS | {"human": np.array([], dtype=np.int64)}
    sampler = MixtureSampler(groups, {"demo": 1.0, "rollout": 3.0, "human": 4.0}, seed=0)
    np.testing.assert_allclose(sampler.probabilities, [0.25, 0.75, 0.0])
    assert sampler.sample(0, 1000).max() < 100


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"demo": 1.0, "rollout": 1.0}, "'human' has no weight"),
        ({"demo": 1.0, "rollout": 1.0, "human": 1.0, "humans": 1.0}, "no group 'humans'.*Did you mean 'human'"),
        ({"demo": -1.0, "rollout": 1.0, "human": 1.0}, "'demo' is -1"),
        ({"demo": np.nan, "rollout": 1.0, "human": 1.0}, "'demo' is nan"),
        ({"demo": 0.0, "rollout": 0.0, "human": 0.0}, "nothing to sample from"),
    ],
)
def test_what_does_not_fit_is_refused(weights: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MixtureSampler(GROUPS, weights, seed=0)


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
    shares = [weights[name] if len(groups[name]) else 0.0 for name in names]
    if sum(shares) == 0:
        with pytest.raises(ConfigError, match="nothing to sample"):
            MixtureSampler(groups, weights, seed)
        return
    frames = MixtureSampler(groups, weights, seed).sample(step, 33)
    allowed = np.concatenate([groups[name] for name, share in zip(names, shares, strict=True) if share > 0])
    assert np.isin(frames, allowed).all()
