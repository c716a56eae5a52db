"""HABC as a whole: it prefers the faster of two ways; its critics see what credit lets them see."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_world import MIXED, TINY, D, H, P, make_episode, make_model, tiny

from vla_rl.algorithms.cloning import MixtureConfig, bounded_weights
from vla_rl.algorithms.hierarchical import CriticSteps, CriticTrainingConfig
from vla_rl.core.errors import ConfigError
from vla_rl.training.algorithms import make_algorithm

FAST, SLOW = 3, 9


def two_routes():
    """From one start the action +1 leads to success in 3 steps and -1 in 9. One-hot states: start, fast, slow."""
    episodes = []
    for index in range(6):
        route, direction, first = [(FAST, 1.0, 1), (SLOW, -1.0, FAST)][index % 2]
        numbers = [0, *range(first, first + route - 1)]
        state = np.eye(FAST + SLOW - 1, dtype=np.float32)[numbers]
        action = np.full((route, 1), direction, dtype=np.float32)
        episode = make_episode(f"round-{index}", [P] * route, True, state=state, action=action)
        dark = np.zeros_like(episode.images["front"])  # nothing but the state tells where we are
        episodes.append(replace(episode, images={"front": dark}))
    return episodes


TABULAR = {"backbone": "state"}
MONTE_CARLO = {"efficiency_unit_steps": 4.0, "efficiency_return_steps": 100}


def trained_on_two_routes(name, make_cache):
    cache = make_cache(two_routes())
    config = tiny(
        name,
        advantage={"warmup_steps": 0},
        critic=TABULAR if name == "no_ve" else TABULAR | MONTE_CARLO,
        critic_training={"batch_size": 32},
        actor={"batch_size": 2, "learning_rate": 5e-3},
    )
    algorithm = make_algorithm(name, config, make_model(state_dim=FAST + SLOW - 1, action_dim=1), cache, seed=0)
    algorithm.begin_round(cache, 1)
    for _ in range(600):
        algorithm.critics.update()
    starts = np.array([episode.start for episode in cache.episodes])
    fast, slow = algorithm.weigh(starts)[0].reshape(3, 2).T
    return algorithm, cache, float(fast.mean()), float(slow.mean())


@pytest.mark.slow
@pytest.mark.usefixtures("fast_critics")
def test_habc_prefers_the_faster_of_two_routes(make_cache):
    algorithm, cache, fast, slow = trained_on_two_routes("habc", make_cache)
    assert fast > 1.8
    assert slow < 0.2
    trace = algorithm.trace(cache, np.arange(FAST + SLOW))
    assert trace["efficiency"][0] == pytest.approx(-5, abs=2)  # half of its targets are -2, half -8
    np.testing.assert_allclose(trace["efficiency"][1:FAST], [-1, 0], atol=0.7)
    np.testing.assert_allclose(trace["efficiency"][FAST + 1 :], np.arange(-7, 1), atol=0.7)
    assert trace["viability"].min() > 0.95


def gates_by_efficiency(name, make_cache):
    """Gates [T] of an algorithm's steps before and after its efficiency head was changed."""
    cache = make_cache(MIXED)
    algorithm = make_algorithm(name, tiny(name), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    frames = np.arange(cache.total_frames)
    before = algorithm.trace(cache, frames)["advantage_gate"]
    with torch.no_grad():
        algorithm.critics.critic.efficiency_head.out.weight.normal_().abs_().mul_(-1)
    return before, algorithm.trace(cache, frames)["advantage_gate"]


def test_the_gate_reads_the_efficiency_value(make_cache):
    before, after = gates_by_efficiency("habc", make_cache)
    assert (before != after).any()


def drawn_by_critics(algorithm, updates=40):
    batches = [algorithm.critics._sampler.sample(update, 16) for update in range(updates)]
    return np.unique(np.concatenate(batches))


def test_critics_never_draw_steps_without_a_label(make_cache):
    cache = make_cache(MIXED)
    algorithm = make_algorithm("habc", tiny("habc"), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    credit = algorithm.data.credit
    seen = drawn_by_critics(algorithm)
    assert (credit.viability_mask | credit.efficiency_mask)[seen].all()
    assert set(seen) == set(np.flatnonzero(credit.viability_mask | credit.efficiency_mask))


def test_weights_follow_the_kind_of_step(make_cache):
    cache = make_cache(MIXED)
    algorithm = make_algorithm("habc", tiny("habc"), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    algorithm.updates = 1000  # after the warm-up
    weight = algorithm.trace(cache, np.arange(cache.total_frames))["weight"]
    source, credit = cache.source, algorithm.data.credit
    assert (weight[source == D] == 1).all()
    assert (weight[source == H] == 1).all()
    assert not weight[(source == P) & (credit.actor_kind == 0)].any()
    failed = (credit.actor_kind == 1) & ~credit.actor_outcome
    assert failed.any()
    assert not weight[failed].any()


def test_policy_backbone_gets_no_gradient_and_saves_no_weights(make_cache):
    cache = make_cache(MIXED)
    config = tiny("habc", critic={"backbone": "policy"})
    model = make_model()
    algorithm = make_algorithm("habc", config, model, cache, seed=0)
    algorithm.begin_round(cache, 1)
    before = [parameter.clone() for parameter in model.parameters()]
    for _ in range(3):
        algorithm.critics.update()
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    learner = algorithm.critics
    assert not any(name.startswith("backbone") for name in learner.state_dict()["critic"])
    assert learner.target.backbone is learner.critic.backbone
    algorithm.update(0)
    assert np.isfinite(list(algorithm.update(1).values())).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"efficiency_return_steps": 100},
        {"target_tau": None},
        {"backbone": "state"},
    ],
    ids=str,
)
def test_every_option_of_the_critic_trains(options, make_cache):
    cache = make_cache(MIXED)
    algorithm = make_algorithm("habc", tiny("habc", critic=options), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    logs = [algorithm.update(step) for step in range(5)]
    assert np.isfinite([list(log.values()) for log in logs]).all()


def test_the_learning_rate_falls_in_every_round_and_a_resume_is_no_new_round(make_cache):
    cache, more = make_cache(MIXED), make_cache([*MIXED, make_episode("round-9", [P] * 4, True)])
    actor = {"learning_rate": 1e-3, "warmup_steps": 0, "decay_steps": 4, "schedule_every_round": True}
    config = tiny("filtered_bc", actor=actor)
    algorithm = make_algorithm("filtered_bc", config, make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    first = [algorithm.update(step)["learning_rate"] for step in range(5)]
    assert first == sorted(first, reverse=True)
    assert first[-1] == pytest.approx(1e-4)
    algorithm.begin_round(more, 2)
    assert algorithm.update(5)["learning_rate"] == first[0]
    resumed = make_algorithm("filtered_bc", config, make_model(), more, seed=0)
    resumed.load_state_dict(algorithm.state_dict())
    resumed.begin_round(more, 2)
    assert resumed.update(6)["learning_rate"] == first[1]


def test_a_round_without_new_episodes_is_a_round(make_cache):
    """The control that only imitates demonstrations gets the same schedule as the algorithms that collect."""
    cache = make_cache(MIXED)
    actor = {"learning_rate": 1e-3, "warmup_steps": 0, "decay_steps": 4, "schedule_every_round": True}
    algorithm = make_algorithm("sft", tiny("sft", actor=actor), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    first = [algorithm.update(step)["learning_rate"] for step in range(3)]
    algorithm.begin_round(cache, 2)
    assert algorithm.update(3)["learning_rate"] == first[0]


def test_critic_steps_are_counted_in_fractions():
    counter = CriticSteps(CriticTrainingConfig(steps_per_actor_step=0.25, steps_before_round=3))
    assert [counter.take() for _ in range(8)] == [0, 0, 0, 1] * 2
    assert counter.take(begins_round=True) == 3
    resumed = CriticSteps(CriticTrainingConfig(steps_per_actor_step=0.25))
    resumed.load_state_dict(counter.state_dict())
    assert [resumed.take() for _ in range(3)] == [0, 0, 1]


def test_the_critics_of_a_round_learn_before_the_gate_acts(make_cache):
    """And once, also for a run that was killed behind the first update."""
    cache = make_cache(MIXED)
    critics = {"steps_before_round": 5, "steps_per_actor_step": 1.0}
    config = tiny("habc", critic_training=critics, advantage={"warmup_steps": 0})
    algorithm = make_algorithm("habc", config, make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    logs = algorithm.update(0)
    learner = algorithm.critics
    assert learner._updates == 6
    assert logs["gate_mean"] != 1.0
    algorithm.update(1)
    assert learner._updates == 7
    resumed = make_algorithm("habc", config, make_model(), cache, seed=0)
    resumed.load_state_dict(algorithm.state_dict())
    for each in (algorithm, resumed):
        each.begin_round(cache, 1)
        each.update(2)
        assert each.critics._updates == 8
        each.begin_round(cache, 2)
        each.update(3)
        assert each.critics._updates == 14


def test_the_gate_acts_when_the_warm_up_is_over(make_cache):
    cache, young = make_cache(MIXED), TINY["advantage"]["warmup_steps"]
    algorithm = make_algorithm("habc", tiny("habc"), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    gates = [algorithm.update(step)["gate_mean"] for step in range(young + 3)]
    assert set(gates[:young]) == {1.0}
    assert 1.0 not in gates[young:]


def test_a_small_group_is_not_drawn_without_bound():
    weights, sizes = {"demonstrations": 0.4, "interventions": 0.3, "rollouts": 0.3}, {"demonstrations": 440}
    sizes |= {"interventions": 15, "rollouts": 2545}
    found = bounded_weights(weights, sizes, 8)
    assert found["interventions"] == pytest.approx(8 * 15 / 3000)
    assert sum(found.values()) == pytest.approx(1)
    assert found["demonstrations"] / found["rollouts"] == pytest.approx(4 / 3), "the others keep their proportion"
    assert bounded_weights(weights, {**sizes, "interventions": 300}, 8) == pytest.approx(weights)
    alone = bounded_weights(weights, {"demonstrations": 10, "interventions": 0, "rollouts": 0}, 1)
    assert alone == {"demonstrations": 1.0, "interventions": 0.0, "rollouts": 0.0}
    uniform = bounded_weights({"a": 0.9, "b": 0.1}, {"a": 10, "b": 30}, 1)
    assert uniform == pytest.approx({"a": 0.25, "b": 0.75}), "a bound of 1 is uniform"
    unused = bounded_weights({"a": 0.9, "b": 0.1, "c": 0.0}, {"a": 10, "b": 30, "c": 960}, 1)
    assert unused == pytest.approx({"a": 0.25, "b": 0.75, "c": 0.0}), "what is never drawn counts for nothing"


def test_the_mixture_that_is_drawn_is_bounded(make_cache):
    cache = make_cache(MIXED)
    config = tiny("filtered_bc", mixture={"largest_oversampling": 1.0})
    algorithm = make_algorithm("filtered_bc", config, make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    sizes = [len(frames) for frames in algorithm._sampler._frames]
    assert algorithm._sampler.probabilities == pytest.approx(np.array(sizes) / sum(sizes))
    with pytest.raises(ConfigError, match="largest_oversampling"):
        MixtureConfig(largest_oversampling=0.5)
