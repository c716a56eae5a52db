"""The baselines: what each of them imitates, and how much."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_habc import gates_by_efficiency, trained_on_two_routes
from tiny_world import MIXED, D, H, P, make_episode, make_model, tiny
from vla_rl_baselines.awr import AwrConfig, exponential_weight
from vla_rl_baselines.distributional import DistributionalConfig
from vla_rl_baselines.recap import improvement_indicator, n_step_advantage
from vla_rl_baselines.threshold import ThresholdConfig, keep

from vla_rl.cli.main import main
from vla_rl.core.errors import ConfigError
from vla_rl.credit import ActorKind
from vla_rl.policies.base import Indicator
from vla_rl.training.algorithms import make_algorithm


@pytest.mark.parametrize("name", ["awr", "threshold"])
def test_every_rollout_is_drawn_failures_too(name, make_cache):
    cache = make_cache(MIXED)
    algorithm = make_algorithm(name, tiny(name), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    drawn = np.unique(np.concatenate([algorithm.actor_frames(step) for step in range(60)]))
    assert set(cache.source[drawn]) == {D, H, P}
    failures = (algorithm.data.credit.actor_kind == ActorKind.ROLLOUT) & ~algorithm.data.credit.actor_outcome
    assert failures[drawn].any()


def test_exponential_weights():
    returns, value = np.float32([1.0, 0.0, 1.0, 1.0]), np.float32([0.5, 0.5, 1.0, -9.0])
    found = exponential_weight(returns, value, AwrConfig(temperature=0.5, max_weight=20.0))
    np.testing.assert_allclose(found, [np.e, 1 / np.e, 1.0, 20.0], rtol=1e-5)
    found = exponential_weight(returns, value, AwrConfig(temperature=0.5, baseline=False))
    np.testing.assert_allclose(found, np.exp(2 * returns), rtol=1e-5)
    tensors = exponential_weight(torch.from_numpy(returns), torch.from_numpy(value), AwrConfig())
    np.testing.assert_allclose(tensors.numpy(), exponential_weight(returns, value, AwrConfig()), rtol=1e-5)


def test_awr_weighs_successes_above_failures_after_the_warm_up(make_cache):
    cache = make_cache([make_episode("round-0", [P] * 8, True), make_episode("round-1", [P] * 8, False)])
    algorithm = make_algorithm("awr", tiny("awr"), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    frames = np.arange(16)
    assert algorithm.weigh(frames)[0].tolist() == [2.0] * 8 + [0.0] * 8, "while it is young, successes alone"
    algorithm.updates = 1000
    weight = algorithm.weigh(frames)[0]
    assert weight[:8].min() > weight[8:].max()
    assert float(weight.mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("name", ["awr", "threshold"])
def test_the_weights_that_are_shown_are_those_that_are_used(name, make_cache):
    """People's steps weigh 1 in both; only the mean of the rollouts is another one."""
    cache = make_cache(MIXED)
    algorithm = make_algorithm(name, tiny(name, advantage={"warmup_steps": 0}), make_model(), cache, seed=0)
    algorithm.begin_round(cache, 1)
    frames = np.arange(cache.total_frames)
    people = algorithm.data.credit.actor_kind != ActorKind.ROLLOUT
    assert (algorithm.trace(cache, frames)["weight"][people] == 1).all()


def test_threshold_rule():
    config = ThresholdConfig(epsilon=0.1, discount=0.5)
    no, yes = np.array([False]), np.array([True])
    one = np.float32([1])
    assert keep(np.float32([0.29]), np.float32([0.8]), 0 * one, no, one, config)  # .4 - .29 > .1
    assert not keep(np.float32([0.31]), np.float32([0.8]), 0 * one, no, one, config)
    assert keep(np.float32([0.89]), np.float32([0.0]), one, yes, 0 * one, config)  # success: 1 - .89
    assert not keep(np.float32([0.0]), np.float32([1.0]), 0 * one, yes, 0 * one, config)  # failure
    # Two steps before a success the value is gamma^2, so that nothing is gained by having known.
    assert keep(np.float32([0.14]), one, one, yes, 2 * one, config)
    assert not keep(np.float32([0.16]), one, one, yes, 2 * one, config)


def test_threshold_filter_drops_and_keeps(make_cache):
    cache = make_cache(MIXED)
    for epsilon, kept in ((-2.0, 1.0), (2.0, 0.0)):
        config = tiny("threshold", threshold={"epsilon": epsilon})
        algorithm = make_algorithm("threshold", config, make_model(), cache, seed=0)
        algorithm.begin_round(cache, 1)
        algorithm.updates = 1000
        weight, logs = algorithm.weigh(np.arange(cache.total_frames))
        assert logs["kept"] == kept
        demonstrations = torch.from_numpy(np.asarray(cache.source) == D)
        assert (weight[demonstrations] == 1).all()


def test_recap_advantage():
    value, later = torch.tensor([-0.5, -0.5, -0.5]), torch.tensor([-0.2, -0.2, -0.2])
    ended, success = torch.tensor([False, True, True]), torch.tensor([True, True, False])
    elapsed, task_steps = torch.tensor([10.0, 4.0, 4.0]), torch.tensor(100.0)
    found = n_step_advantage(value, later, elapsed, ended, success, task_steps)
    torch.testing.assert_close(found, torch.tensor([0.2, 0.46, -0.5]))


def test_indicator_is_forced_positive_for_corrections():
    advantage, threshold = torch.tensor([0.1, 0.3, 0.1]), torch.tensor([0.2, 0.2, 0.2])
    found = improvement_indicator(advantage, threshold, torch.tensor([False, False, True]))
    assert found.tolist() == [Indicator.NEGATIVE, Indicator.POSITIVE, Indicator.POSITIVE]


@pytest.mark.parametrize("fraction", [0.2, 0.4])
def test_recap_quantile_gives_the_asked_fraction_per_task_and_corrections_are_positive(fraction, make_cache):
    episodes = [make_episode(f"round-{i}", [P] * 20, i % 3 == 0, task=("one", "two")[i % 2]) for i in range(10)]
    episodes += [make_episode("round-a", [P] * 5 + [H] * 5, True, task="one"), make_episode("demo", [D] * 6, True)]
    cache = make_cache(episodes)
    options = {"positive_fraction": fraction, "warmup_steps": 4, "threshold_every": 1000, "threshold_frames": 512}
    config = tiny("recap", recap={**options, "lookahead": 5})
    algorithm = make_algorithm("recap", config, make_model(indicator=True), cache, seed=0)
    algorithm.begin_round(cache, 1)
    frames = np.arange(cache.total_frames)
    kind = algorithm.data.credit.actor_kind
    early, _ = algorithm.indicate(frames)
    assert (early.numpy()[kind == ActorKind.ROLLOUT] == Indicator.NONE).all()
    for step in range(4):
        algorithm.update(step)
    algorithm._estimate_thresholds(4)
    indicator = algorithm.indicate(frames)[0].numpy()
    assert set(indicator[kind == ActorKind.INTERVENTION]) == {Indicator.POSITIVE}
    assert set(indicator[kind == ActorKind.DEMONSTRATION]) == {Indicator.POSITIVE}
    for task in ("one", "two"):
        members = (kind == ActorKind.ROLLOUT) & (algorithm.data.task_index(frames) == cache.tasks.index(task))
        assert (indicator[members] == Indicator.POSITIVE).mean() == pytest.approx(fraction, abs=0.02)
    assert set(algorithm.thresholds) == {"one", "two"}


@pytest.mark.slow
@pytest.mark.usefixtures("fast_critics")
def test_recap_learns_returns(make_cache):
    """Of two states one leads to success in a step and the other to failure: worth about 0 and -1."""
    ups, downs = np.float32([[1, 0]] * 4), np.float32([[0, 1]] * 4)
    episodes = [make_episode("round-0", [P] * 4, True, state=ups), make_episode("round-1", [P] * 4, False, state=downs)]
    cache = make_cache(episodes)
    critic = DistributionalConfig(backbone="state", hidden=(16,))
    config = tiny("recap", recap={"critic": critic})
    algorithm = make_algorithm("recap", config, make_model(indicator=True), cache, seed=0)
    algorithm.begin_round(cache, 1)
    for _ in range(300):
        algorithm._update_critic()
    assert algorithm.evaluate(np.array([0]))[0] > -0.5
    assert algorithm.evaluate(np.array([4]))[0] < -0.95


def test_recap_needs_an_indicator(make_cache):
    with pytest.raises(ConfigError, match="indicator=true"):
        make_algorithm("recap", tiny("recap"), make_model(), make_cache(MIXED), seed=0)


@pytest.mark.slow
@pytest.mark.usefixtures("fast_critics")
def test_without_the_efficiency_value_the_routes_are_equal(make_cache):
    _, _, fast, slow = trained_on_two_routes("no_ve", make_cache)
    assert fast == pytest.approx(1.0, abs=0.1)
    assert slow == pytest.approx(1.0, abs=0.1)


def test_the_gate_of_no_ve_reads_no_efficiency_value(make_cache):
    """Equal weights of two routes alone would not show it: an untrained V_e is the same everywhere."""
    before, after = gates_by_efficiency("no_ve", make_cache)
    assert (before == after).all()


@pytest.mark.slow
@pytest.mark.usefixtures("fast_critics")
def test_the_actor_takes_the_faster_route(make_cache):
    """Weighted by the gate, the flow policy's action at the start moves from the mean of both to the fast one."""
    means = {}
    for name in ("habc", "no_ve"):
        algorithm, *_ = trained_on_two_routes(name, make_cache)
        algorithm.config = replace(algorithm.config, actor=replace(algorithm.config.actor, batch_size=16))
        for step in range(100):
            algorithm.update(step)
        model = algorithm.actor.model.eval()
        with torch.no_grad():
            images, state, text = algorithm.data.inputs(np.zeros(64, dtype=np.int64))
            noise = torch.randn(64, 4, 1, generator=torch.Generator().manual_seed(0))
            means[name] = float(model.sample(model.encode(images, state, text), noise)[:, 0].mean())
    assert means["habc"] > means["no_ve"] + 0.5


@pytest.mark.parametrize(
    ("algorithm", "option"),
    [
        ("no_ve", "critic.efficiency_unit_steps=10"),
        ("awr", "advantage.efficiency_scale=1"),
        ("threshold", "awr.temperature=1"),
        ("recap", "critic.members=2"),
    ],
)
def test_options_that_are_not_read_are_refused(algorithm, option, tmp_path, capsys):
    start = ["train", "--config", "tiny", "--out", str(tmp_path / "run"), f"algorithm={algorithm}"]
    assert main([*start, f"learning.{option}"]) == 2
    assert "unknown key 'learning." in capsys.readouterr().err
