"""A residual trained on policy by real episodes: tried offsets are recovered exactly, better ones are learned."""

import copy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from playing import CHUNKS, TICKS, planned, recorded
from tiny_world import MIXED, make_model, tiny
from vla_rl_baselines.residual_ppo import generalized_advantages, played_chunks

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.normalization import Statistics
from vla_rl.core.types import Observation, Source
from vla_rl.policies.acting import ActingPolicy, exploration_noise
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.folders import load_policy
from vla_rl.training.algorithms import adopt_saved, make_algorithm, save_learned

ACTION_STD = 0.3


def play(policy: ActingPolicy, name: str, seed: int):
    """An episode that succeeds where the offsets of the first dimension that were added to the policy's own chunks are
    above 0 together. Returns it, and these offsets [n, A].
    """
    actions = planned(policy, seed)
    plain = planned(make_model().acting(), seed)
    offsets = (actions - plain)[:, 0] / np.asarray(policy.model.statistics.action.std, np.float32)
    return recorded(policy, name, seed, actions, bool(np.sum(offsets, 0)[0] > 0)), offsets


def acting(residual=None, exploration: float = ACTION_STD, version: int = 0) -> ActingPolicy:
    policy = make_model().acting(version=version)
    policy.exploration = exploration
    if residual is not None:
        policy.selector = BestOfN(None, BestOfNConfig(num_samples=1, offset_std=0.0), residual, TICKS)
    return policy


def learner(cache, number: int = 1, **changes: dict):
    algorithm = make_algorithm("residual_ppo", tiny("residual_ppo", **changes), make_model(), cache, 0)
    algorithm.begin_round(cache, number)
    return algorithm


def pushing(algorithm, *amounts: float):
    """The algorithm's residual, which now wants every dimension moved by about so much."""
    algorithm.residual.net[-1].bias.data = torch.tensor(amounts)
    algorithm.residual.net[-1].weight.data.normal_(0, 0.1)
    return algorithm.residual


def test_what_was_tried_of_each_chunk_is_told_exactly(make_cache) -> None:
    residual = pushing(learner(make_cache([])), 0.2, -0.1)
    episode, offsets = play(acting(residual), "round-0", 5)
    cache = make_cache([episode])
    algorithm = learner(cache)
    algorithm.residual.load_state_dict(residual.state_dict())
    (stretch,) = algorithm._stretches()
    assert stretch.action_std == pytest.approx(ACTION_STD, abs=1e-5)
    drawn = [exploration_noise(5, tick, 2)[0] for tick in range(0, CHUNKS * TICKS, TICKS)]
    np.testing.assert_array_equal(stretch.noise, np.array(drawn))
    np.testing.assert_allclose(stretch.mean + ACTION_STD * stretch.noise, offsets, atol=1e-5)
    assert float(stretch.mean.detach().std(0)[0]) > 0, "the residual says something else of each chunk"
    played = played_chunks(cache.episodes[0], algorithm.data, algorithm.model, algorithm.residual)
    assert played.step.tolist() == [0, 2, 4, 6]


def test_what_another_edit_or_nobody_tried_is_left_out(make_cache) -> None:
    residual = pushing(learner(make_cache([])), 0.2, -0.1)
    cache = make_cache([play(acting(residual), "round-0", 5)[0], play(acting(exploration=0.0), "round-1", 6)[0]])
    algorithm = learner(cache)
    assert [stretch.action_std for stretch in algorithm._stretches()] == [0.0, 0.0]
    with pytest.raises(UserError, match=r"exploration=0\.15") as caught:
        algorithm.update(0)
    assert "\n" not in str(caught.value)


def test_dimensions_that_never_change_are_not_tried(make_cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What keeps still in all demonstrations cannot be moved: no offset reaches it, and none is looked for there."""
    action = np.random.default_rng(0).normal(size=(50, 2))
    action[:, 1] = 0.5
    usual = make_model()

    def make_still() -> FlowVLA:
        torch.manual_seed(0)
        return FlowVLA(usual.config, usual.spec, Statistics.from_arrays(np.eye(50, 2), action))

    monkeypatch.setitem(globals(), "make_model", make_still)
    residual = pushing(learner(make_cache([])), 0.2, -0.1)
    episode = recorded(acting(residual), "round-0", 5, planned(acting(residual), 5), True)
    assert (episode.action_policy[:, 1] == np.float32(0.5)).all()
    algorithm = learner(make_cache([episode]))
    algorithm.residual.load_state_dict(residual.state_dict())
    (stretch,) = algorithm._stretches()
    assert stretch.action_std == pytest.approx(ACTION_STD, abs=1e-5)
    assert not stretch.noise[:, 1].any()
    assert not stretch.mean[:, 1].any()


def test_each_dimension_is_as_likely_as_it_was_tried(make_cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a chunk changes little is tried by little, and the ratio knows that."""
    usual, given = make_model(), []

    def make_slow() -> FlowVLA:
        torch.manual_seed(0)
        change = (usual.statistics.action.std[0] / 30, 9.0)
        return FlowVLA(usual.config, usual.spec, replace(usual.statistics, change=change))

    monkeypatch.setitem(globals(), "make_model", make_slow)
    monkeypatch.setattr("vla_rl.ppo.update", lambda *parts, **_: given.append(parts) or {})
    learner(make_cache([play(acting(), "round-0", 5)[0]])).update(0)
    _, _, tried, sigma, _ = given[0]
    drawn = [exploration_noise(5, tick, 2)[0] for tick in range(0, CHUNKS * TICKS, TICKS)]
    np.testing.assert_allclose(((tried.offset - tried.mean) / sigma).detach(), np.array(drawn), atol=1e-3)


def played(policy: ActingPolicy, count: int, version: int):
    return [play(policy, f"round{version:03d}-{index:03d}", 1000 * version + index)[0] for index in range(count)]


@pytest.mark.slow
def test_the_edit_goes_where_outcomes_were_better(make_cache, tmp_path: Path, monkeypatch) -> None:
    """Two rounds, the second one of the policy that the first has saved."""
    monkeypatch.setattr("vla_rl.ppo.LEARNING_RATE", 1e-3)
    monkeypatch.setattr("vla_rl.ppo.BATCH_SIZE", 64)
    options = {
        "ppo": {"chunk_ticks": TICKS},
        "value": {"steps": 50},
    }
    episodes = played(acting(), 32, 0)
    algorithm = learner(make_cache(episodes), **options)
    first = algorithm.update(0)
    save_learned(algorithm, tmp_path / "policy", 1)
    policy = load_policy(tmp_path / "policy")
    policy.exploration = ACTION_STD
    episodes += played(policy, 32, 1)
    algorithm.begin_round(make_cache(episodes), 2)
    assert [bool(stretch.action_std) for stretch in algorithm._stretches()] == [False] * 32 + [True] * 32
    second = algorithm.update(1)
    assert first["residual_divergence"] > 0.001
    assert second["residual_action_std"] == pytest.approx(ACTION_STD, abs=1e-4)
    means = torch.cat([algorithm.residual(algorithm._tried(each)[0]) for each in algorithm._played.values()]).detach()
    assert float(means[:, 0].mean()) > 0.03
    assert abs(float(means[:, 1].mean())) < 0.5 * float(means[:, 0].mean())
    save_learned(algorithm, tmp_path / "later", 2)
    plain, moved = acting(exploration=0.0), load_policy(tmp_path / "later")
    observation = Observation({"front": np.zeros((8, 8, 3), np.uint8)}, np.zeros(2, np.float32), "put it in", 0)
    for each in (plain, moved):
        each.reset(3)
    moved = moved.infer(observation).actions - plain.infer(observation).actions
    np.testing.assert_allclose(moved, moved[:1].repeat(4, 0), atol=1e-5)
    assert moved[0, 0] > 0.02


def test_after_a_takeover_another_part_begins_and_what_led_there_failed(make_cache) -> None:
    episode, _ = play(acting(), "round-0", 5)
    source = episode.source.copy()
    source[4:6] = 1
    algorithm = learner(make_cache([replace(episode, source=source, success=True)]), credit={"min_human_steps": 2})
    assert [(s.part.start, s.part.stop, s.outcome) for s in algorithm._stretches()] == [(0, 2, 0.0), (2, 3, 1.0)]


def test_waiting_for_a_plan_ends_no_part(make_cache) -> None:
    episode, _ = play(acting(), "round-0", 5)
    source = episode.source.copy()
    source[3] = Source.HOLD
    (stretch,) = learner(make_cache([replace(episode, source=source)]))._stretches()
    assert (stretch.part.start, stretch.part.stop) == (0, CHUNKS)


def test_where_nothing_ever_succeeds_nothing_is_learnt(make_cache) -> None:
    """A value of failures alone differs from state to state by chance, and chance is not followed."""
    played = [planned(acting(), seed) for seed in range(6)]
    episodes = [recorded(acting(), f"round-{seed}", seed, actions, False) for seed, actions in enumerate(played)]
    algorithm = learner(make_cache(episodes))
    logs = algorithm.update(0)
    assert logs["residual_chunks"] == 6 * CHUNKS
    assert not algorithm.residual.corrects


@pytest.mark.slow
def test_it_learns_once_in_a_round_and_goes_on_as_if_never_interrupted(make_cache) -> None:
    cache = make_cache(played(acting(), 12, 0))
    whole, resumed = learner(cache), learner(cache)
    whole.update(0)
    once = copy.deepcopy(whole.state_dict())
    resumed.load_state_dict(copy.deepcopy(once))
    resumed.begin_round(cache, 1)
    for algorithm in (whole, resumed):
        algorithm.update(1)
        assert all(torch.equal(tensor, once["edit"][name]) for name, tensor in algorithm.residual.state_dict().items())
    again = learner(cache)
    again.update(0)
    assert all(torch.equal(tensor, once["edit"][name]) for name, tensor in again.residual.state_dict().items())


def test_it_goes_on_from_a_policy_that_had_to_stay(make_cache, tmp_path: Path) -> None:
    cache = make_cache(played(acting(), 12, 0))
    algorithm = learner(cache)
    algorithm.model.save(tmp_path / "plain")
    algorithm.update(0)
    save_learned(algorithm, tmp_path / "edited", 1)
    learned = copy.deepcopy(algorithm.residual.state_dict())
    torch.manual_seed(1)
    adopt_saved(algorithm, tmp_path / "plain")
    assert not algorithm.residual.corrects
    fresh = learner(cache).residual.state_dict()
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in algorithm.residual.state_dict().items()), (
        "its own seed decides"
    )
    adopt_saved(algorithm, tmp_path / "edited")
    assert all(torch.equal(tensor, learned[name]) for name, tensor in algorithm.residual.state_dict().items())


def test_episodes_that_say_nothing_of_chunks_are_passed_over(make_cache) -> None:
    algorithm = learner(make_cache(MIXED))
    assert algorithm.update(0) == {}
    assert not algorithm.residual.corrects


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError):
        tiny("residual_ppo", ppo={"chunk_ticks": 0})


def test_more_ticks_than_a_chunk_has_are_refused(make_cache) -> None:
    with pytest.raises(ConfigError, match="chunks have 4 actions"):
        learner(make_cache([]), ppo={"chunk_ticks": 6})


def test_generalized_advantages_are_those_of_the_equation() -> None:
    value = torch.tensor([0.2, 0.5, 0.4])
    one_step = generalized_advantages(value, 1.0, 0.9, 0.0)
    torch.testing.assert_close(one_step, torch.tensor([0.9 * 0.5 - 0.2, 0.9 * 0.4 - 0.5, 1 - 0.4]))
    whole = generalized_advantages(value, 1.0, 0.9, 1.0)
    torch.testing.assert_close(whole, torch.tensor([0.81, 0.9, 1.0]) - value)
    mixed = generalized_advantages(value, 0.0, 0.9, 0.5)
    torch.testing.assert_close(mixed[1], torch.tensor(0.9 * 0.4 - 0.5 + 0.45 * (0 - 0.4)))
