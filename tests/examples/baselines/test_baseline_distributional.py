"""RECAP's distributional value: bins and returns."""

import pytest
import torch
from vla_rl_baselines.distributional import (
    DistributionalConfig,
    DistributionalCritic,
    bin_centres,
    bin_of,
    distributional_loss,
    normalized_return,
)

from vla_rl.core.errors import ConfigError
from vla_rl.critics.backbones import StateBackbone


def test_bins_reproduce_returns_within_half_a_bin():
    returns = torch.linspace(-1, 0, 5001)
    found = bin_centres(201)[bin_of(returns, 201)]
    assert (found - returns).abs().max() <= 0.5 / 201 + 1e-6


def test_returns_outside_go_to_the_outermost_bins():
    assert bin_of(torch.tensor([-7.0, -1.0, 0.0, 3.0]), 201).tolist() == [0, 0, 200, 200]


def test_normalized_returns():
    left, success = torch.tensor([0.0, 10.0, 50.0, 0.0]), torch.tensor([True, True, True, False])
    found = normalized_return(left, success, torch.tensor(40.0))
    assert found.tolist() == [0.0, -0.25, -1.0, -1.0]


@pytest.mark.slow
def test_the_distribution_of_two_outcomes_is_learnt():
    """A state from which half of the episodes take 20 of 40 steps and half fail: worth -(0.5 + 1) / 2, in two peaks."""
    torch.manual_seed(0)
    critic = DistributionalCritic(StateBackbone(1), DistributionalConfig(hidden=(32,)))
    state = torch.ones(2, 1)
    returns, mask = torch.tensor([-0.5, -1.0]), torch.ones(2, dtype=torch.bool)
    optimizer = torch.optim.Adam(critic.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        distributional_loss(critic({}, state, torch.zeros(0)), returns, mask).backward()
        optimizer.step()
    logits = critic({}, state[:1], torch.zeros(0)).detach()
    assert float(critic.value(logits)) == pytest.approx(-0.75, abs=0.01)
    assert set(logits[0].topk(2).indices.tolist()) == set(bin_of(returns, 201).tolist())


def test_no_samples_no_loss():
    assert float(distributional_loss(torch.randn(3, 201), torch.zeros(3), torch.zeros(3, dtype=torch.bool))) == 0.0


def test_one_bin_is_refused():
    with pytest.raises(ConfigError, match="bins"):
        DistributionalConfig(bins=1)
