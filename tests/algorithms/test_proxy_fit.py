"""Step 1 of practice with a frozen base policy: its proxy imitates it, and stops when it is good enough."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from tiny_world import TINY_VISION, P, make_episode, tiny

from vla_rl.algorithms.proxy_fit import BAD, GOOD, ProxyFit
from vla_rl.core.errors import ConfigError
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import ActionChunk, Float32Array, Observation
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLAConfig
from vla_rl.policies.proxy import ProxiedPolicy, ProxyConfig
from vla_rl.training.algorithms import make_algorithm

SPEC = PolicySpec("tiny", ("front",), (8, 8), 2, 2)
NET = FlowVLAConfig(horizon=4, vision=TINY_VISION, expert=ExpertConfig(width=16, layers=1, heads=2), flow_samples=8)


class Turning:
    """A base policy that turns its state by a right angle. It keeps nothing."""

    version, horizon, spec = 0, 4, SPEC

    def reset(self, seed: int) -> None: ...

    def infer(self, observation: Observation, committed: Float32Array | None = None) -> ActionChunk:
        del committed
        x, y = observation.state
        return ActionChunk(np.tile(np.array([-y, x], np.float32), (4, 1)), observation.tick, 0, 0)


def episodes(count: int, version: int = 0) -> list[Any]:
    states = np.random.default_rng(version).normal(size=(count, 16, 2)).astype(np.float32)
    return [
        make_episode(f"v{version}-{index:02d}", [P] * 16, index % 2 == 0, version=version, state=state)
        for index, state in enumerate(states)
    ]


def learner(cache: Any, steps: int, **options: Any) -> Any:
    torch.manual_seed(0)
    rows = np.random.default_rng(0).normal(size=(99, 2))
    model = ProxiedPolicy(
        ProxyConfig(base=f"{__name__}:Turning", net=NET, **options), SPEC, Statistics.from_arrays(rows, rows)
    )
    model.base.asked = 0  # the process shares one base
    actor = {"batch_size": 64, "learning_rate": 1e-2}
    algorithm = make_algorithm(
        "imagined_edit", tiny("imagined_edit", distill_steps=steps, actor=actor), model, cache, 0
    )
    algorithm.begin_round(cache, 1)
    return algorithm


def fit_of(algorithm: Any) -> ProxyFit:
    found: ProxyFit = algorithm.proxy
    return found


@pytest.mark.slow
def test_it_imitates_until_it_is_good_enough_and_what_follows_imagines(make_cache: Any) -> None:
    algorithm = learner(make_cache(episodes(20)), 400)
    spent = []
    for step in range(400):
        before = copy.deepcopy(algorithm.model.state_dict())
        algorithm.update(step)
        spent.append(any(not torch.equal(value, before[name]) for name, value in algorithm.model.state_dict().items()))
    found = fit_of(algorithm)
    assert found.stopped
    assert found.unexplained <= GOOD
    steps = sum(spent)
    assert steps % 50 == 0
    assert spent == [True] * steps + [False] * (400 - steps)
    assert algorithm.model.base.asked == 20 * 16, "every observation, once"
    logs = algorithm.update(400)
    assert "imagined_gain" in logs
    assert logs["proxy_unexplained"] == found.unexplained


def test_a_bad_proxy_stops_imagination_alone(make_cache: Any, caplog: pytest.LogCaptureFixture) -> None:
    algorithm = learner(make_cache(episodes(20)), 1)
    algorithm.update(0)
    logs = algorithm.update(1)
    assert fit_of(algorithm).unexplained > BAD
    assert logs["imagined_stopped"] == 1
    assert "imagined_gain" not in logs
    assert logs["critic_loss"] > 0
    assert "nothing is imagined in round 1: the proxy leaves" in caplog.text


def test_a_slow_base_is_asked_as_often_as_may_be_and_the_proxy_stands_in(make_cache: Any) -> None:
    algorithm = learner(make_cache(episodes(20)), 1, asks_per_round=40)
    algorithm.update(0)
    assert algorithm.model.base.asked == 40
    assert len(algorithm.every_row()) == 20 * 16
    assert algorithm.model.base.asked == 40
    algorithm.begin_round(make_cache(episodes(20) + episodes(10, version=1)), 2)
    algorithm.update(1)
    assert 60 <= algorithm.model.base.asked <= 80, "only new observations are shown"


def test_a_proxy_without_gradient_steps_is_refused(make_cache: Any) -> None:
    with pytest.raises(ConfigError, match="distill_steps is 0"):
        learner(make_cache(episodes(2)), 0)
