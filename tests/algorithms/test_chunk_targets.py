"""What the critic of chunks learns that a chunk is worth: its outcome, or what is thought of a later chunk."""

import copy

import numpy as np
import pytest
import torch
from chunk_learner import TICKS, dark, learner, same
from tiny_world import MIXED, H, P, make_episode, make_model, tiny

from vla_rl.algorithms.chunk_critic import ChunkCriticTrainingConfig
from vla_rl.algorithms.chunk_windows import followers, windows
from vla_rl.algorithms.sampling import fold_of
from vla_rl.core.errors import ConfigError
from vla_rl.training.algorithms import make_algorithm


@pytest.mark.slow
@pytest.mark.parametrize("chunks", [0, 1, 3])
@pytest.mark.usefixtures("fast_critics")
def test_the_erring_chunk_is_worth_nothing_and_the_repair_everything(chunks: int, make_cache) -> None:
    """A policy that always errs in one state, and is always repaired: the episodes all succeed."""
    episodes = []
    for index in range(20):
        random = np.random.default_rng(index)
        erring, repair = np.full((8, 2), -1.0), np.full((8, 2), 1.0)
        action = np.concatenate([erring, repair]) + random.normal(0, 0.1, (16, 2))
        episode = make_episode(
            f"round-{index:02d}",
            [P] * 8 + [H] * 8,
            True,
            state=np.zeros((16, 2), np.float32),
            action=action.astype(np.float32),
        )
        episodes.append(dark(episode))
    cache = make_cache(episodes)
    algorithm = learner(cache, critic_training={"bootstrap_chunks": chunks})
    for step in range(300 if chunks else 100):
        algorithm.update(step)
    starts = np.array([episode.start for episode in cache.episodes])
    erring = np.concatenate([algorithm.trace(cache, starts + step)["viability"] for step in range(7)])
    repaired = np.concatenate([algorithm.trace(cache, starts + step)["viability"] for step in range(8, 16)])
    assert erring.max() < 0.1
    assert repaired.min() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize(("chunks", "first"), [(0, 0.0), (1, 0.5 * 0.9**3)])
@pytest.mark.usefixtures("fast_critics")
def test_what_a_chunk_led_to_is_worth_what_others_made_of_it(chunks: int, first: float, make_cache) -> None:
    """From either of two states a chunk leads into one and the same third one, where half of the episodes succeed; by
    chance none of those from the first state. Monte-Carlo never learns better, temporal differences do.
    """
    episodes = [
        dark(
            make_episode(
                f"round-{index:02d}",
                [P] * 4,
                bool(index % 2),
                state=np.float32([[index % 2 * 2 - 1, 0]] * 2 + [[0, 1]] * 2),
                action=np.zeros((4, 2), np.float32),
            )
        )
        for index in range(20)
    ]
    cache = make_cache(episodes)
    training = {"bootstrap_chunks": chunks}
    algorithm = make_algorithm(
        "chunk_critic",
        tiny("chunk_critic", critic={"members": 1, "hidden": (32,)}, critic_training=training, discount=0.9),
        make_model(),
        cache,
        0,
    )
    algorithm.begin_round(cache, 1)
    for step in range(600):
        algorithm.update(step)
    starts = np.array([episode.start for episode in cache.episodes[::2]])
    middle = algorithm.trace(cache, starts + 2)["discounted_value"]
    np.testing.assert_allclose(middle, 0.5 * 0.9, atol=0.08)
    np.testing.assert_allclose(algorithm.trace(cache, starts)["discounted_value"], first, atol=0.08)


def test_no_backup_crosses_from_one_actor_to_the_next_or_beyond_the_end(make_cache) -> None:
    cache = make_cache(
        [
            make_episode("round-0", [P] * 6 + [H] * 5 + [P] * 3, True),
            make_episode("round-1", [P] * 4, None),
            make_episode("round-2", [P] * 4, False),
        ]
    )
    data = learner(cache).data
    frames, _ = windows(data, TICKS, 1.0)
    for chunks in (1, 2):
        later = followers(data, frames, chunks * TICKS)
        found = {int(start): int(frames[index]) for start, index in zip(frames, later, strict=True) if index >= 0}
        policy, person, last = range(5), range(6, 10), range(18, 22)  # that begin a window
        suffix = range(11, 14)
        runs = (policy, person, suffix, last)
        ahead = chunks * TICKS
        assert found == {start: start + ahead for run in runs for start in run if start + ahead in run}


def test_the_target_of_a_member_is_what_its_own_slow_copy_says(make_cache) -> None:
    cache = make_cache([make_episode(f"round-{index}", [P] * 6, index % 2 == 0) for index in range(12)])
    algorithm = learner(cache, critic_training={"bootstrap_chunks": 1}, discount=0.5)
    every, members = torch.arange(len(algorithm._inputs)), torch.arange(algorithm.config.critic.members)
    algorithm.update(0)
    before, ends = algorithm.targets(every), torch.tensor([False] * 4 + [True] * 2).repeat(12)
    assert torch.equal(before[:, ends], algorithm._label[ends].expand(len(members), -1))
    for member in members:
        with torch.no_grad():
            algorithm.critic.head.out.bias[member] += 1.0
        assert torch.equal(algorithm.targets(every), before), "the critic itself is not asked"
        kept = algorithm._target.head.out.bias.detach().clone()
        with torch.no_grad():
            algorithm._target.head.out.bias[member] = 100.0
            after = algorithm.targets(every)
            algorithm._target.head.out.bias.copy_(kept)
        assert torch.equal(after[members != member], before[members != member])
        torch.testing.assert_close(after[member, ~ends], torch.full_like(after[member, ~ends], 0.5**TICKS))
    with pytest.raises(ConfigError, match="bootstrap_chunks is -1"):
        ChunkCriticTrainingConfig(bootstrap_chunks=-1)


@pytest.mark.parametrize("chunks", [0, 1])
@pytest.mark.usefixtures("fast_critics")
def test_how_an_episode_ends_never_reaches_the_member_that_judges_it(chunks: int, make_cache) -> None:
    """Neither by its own steps nor by what the other members think of theirs."""
    names = [f"round-{index}" for index in range(12)]
    judged = [name for name in names if fold_of(name, 5) == 0]
    assert 0 < len(judged) < len(names)
    weights = []
    for turned in (False, True):
        ends = {name: (index % 2 == 0) ^ (turned and name in judged) for index, name in enumerate(names)}
        cache = make_cache([make_episode(name, [P] * 6, success) for name, success in ends.items()])
        algorithm = learner(cache, critic_training={"bootstrap_chunks": chunks})
        assert algorithm.config.critic.members == 5
        for step in range(6):
            algorithm.update(step)
        weights.append(algorithm.critic.head.out.weight.detach())
    assert torch.equal(weights[0][0], weights[1][0])
    assert not torch.equal(weights[0][1], weights[1][1])


def test_a_resumed_critic_goes_on_with_the_targets_that_it_had(make_cache) -> None:
    cache = make_cache(MIXED)
    whole, resumed = (learner(cache, critic_training={"bootstrap_chunks": 1}) for _ in range(2))
    for step in range(3):
        whole.update(step)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    resumed.begin_round(cache, 1)
    assert same(whole._target, resumed._target)
    assert not same(whole._target, whole.critic)
    for algorithm in (whole, resumed):
        algorithm.update(3)
    assert same(whole.critic, resumed.critic)
    assert same(whole._target, resumed._target)
    assert "critic_target" not in learner(cache).state_dict()
