"""Guidance against its formulas: weights and strength by hand, the gradient against finite differences."""

import math

import pytest
import torch

from vla_rl.core.errors import UserError
from vla_rl.core.flow_sampling import guidance_strength, guidance_weights
from vla_rl.policies.guidance import from_noise_time, guided_velocity, sample_guided


@pytest.mark.parametrize(("horizon", "delay", "executed"), [(8, 2, 3), (16, 4, 8), (50, 6, 25), (8, 0, 8), (8, 3, 5)])
def test_weights_follow_the_formula(horizon: int, delay: int, executed: int) -> None:
    weights = guidance_weights(horizon, delay, horizon - executed)
    for index in range(horizon):
        if index < delay:
            expected = 1.0
        elif index < horizon - executed:
            c = (horizon - executed - index) / (horizon - executed - delay + 1)
            expected = c * (math.exp(c) - 1) / (math.e - 1)
        else:
            expected = 0.0
        assert weights[index].item() == pytest.approx(expected, rel=1e-6, abs=0)


@pytest.mark.parametrize(("delay", "overlap"), [(5, 4), (-1, 4), (2, 9)])
def test_impossible_overlap_is_refused(delay: int, overlap: int) -> None:
    with pytest.raises(UserError, match="delay"):
        guidance_weights(8, delay, overlap)


def test_strength_is_the_ratio_up_to_beta() -> None:
    for tau in (0.2, 0.5, 0.8):
        r_squared = (1 - tau) ** 2 / (tau**2 + (1 - tau) ** 2)
        assert guidance_strength(tau, 100.0) == pytest.approx((1 - tau) / (tau * r_squared))
    assert guidance_strength(0.0, 5.0) == 5.0
    assert guidance_strength(0.01, 5.0) == 5.0


def _network(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(12, 32), torch.nn.Tanh(), torch.nn.Linear(32, 12)).double()


def test_gradient_against_finite_differences() -> None:
    network = _network(0)

    def velocity(actions: torch.Tensor, tau: float) -> torch.Tensor:
        return (network(actions.flatten(1)) * (1 + tau)).unflatten(1, (6, 2))

    generator = torch.Generator().manual_seed(1)
    actions, target = torch.randn(2, 3, 6, 2, generator=generator, dtype=torch.float64)
    weights, tau, beta = torch.from_numpy(guidance_weights(6, 1, 4)).double(), 0.4, 5.0
    guided = guided_velocity(velocity, actions, tau, target, weights, beta, exact_gradient=True)
    correction = (guided - velocity(actions, tau)) / guidance_strength(tau, beta)

    def half_distance(point: torch.Tensor) -> torch.Tensor:
        clean = point + (1 - tau) * velocity(point, tau)
        return 0.5 * (weights[:, None] * (target - clean) ** 2).sum()

    step = 1e-5
    for index in [(0, 0, 0), (1, 3, 1), (2, 5, 0)]:
        offset = torch.zeros_like(actions)
        offset[index] = step
        slope = (half_distance(actions + offset) - half_distance(actions - offset)) / (2 * step)
        assert correction[index].item() == pytest.approx(-slope.item(), rel=1e-3)


def test_identity_variant_drops_the_jacobian_only() -> None:
    def velocity(actions: torch.Tensor, tau: float) -> torch.Tensor:
        return 3.0 * actions

    actions, target, weights = torch.ones(1, 4, 1), torch.zeros(1, 4, 1), torch.from_numpy(guidance_weights(4, 2, 2))
    speed = velocity(actions, 0.5)
    exact = guided_velocity(velocity, actions, 0.5, target, weights, 1.0, exact_gradient=True) - speed
    identity = guided_velocity(velocity, actions, 0.5, target, weights, 1.0, exact_gradient=False) - speed
    torch.testing.assert_close(exact, identity * (1 + 0.5 * 3.0))
    assert identity[0, :2].abs().min() > 0
    assert identity[0, 2:].abs().max() == 0


@pytest.mark.parametrize("exact", [True, False])
def test_guidance_follows_the_old_plan_where_it_is_held(exact: bool) -> None:
    """The flow of data N(0, 0.5^2) has a known velocity; unguided samples ignore the plan, guided ones meet it."""

    def velocity(actions: torch.Tensor, tau: float) -> torch.Tensor:
        variance = 0.25 * tau**2 + (1 - tau) ** 2
        return actions * (0.25 * tau - (1 - tau)) / variance

    noise = torch.randn(64, 8, 2, generator=torch.Generator().manual_seed(0))
    target = torch.full_like(noise, 0.8)
    target[:, 4:] = math.nan  # what the old plan does not know must not be read
    weights = torch.from_numpy(guidance_weights(8, 2, 4))
    held = sample_guided(velocity, noise, target, weights, steps=10, exact_gradient=exact)
    free = sample_guided(velocity, noise, target, torch.zeros(8), steps=10, exact_gradient=exact)
    assert (held[:, :2] - 0.8).abs().mean() < 0.25 * (free[:, :2] - 0.8).abs().mean()
    assert torch.equal(held[:, 4:], free[:, 4:])


def test_reversed_time_is_the_same_flow() -> None:
    network = _network(2).float()

    def forward_field(actions: torch.Tensor, tau: float) -> torch.Tensor:
        return network(actions.flatten(1)).unflatten(1, (6, 2)) * tau

    def backward_field(actions: torch.Tensor, time: float) -> torch.Tensor:
        return -forward_field(actions, 1.0 - time)

    noise, plan = torch.randn(2, 1, 6, 2, generator=torch.Generator().manual_seed(3))
    weights = torch.from_numpy(guidance_weights(6, 1, 3))
    expected = sample_guided(forward_field, noise, plan, weights)
    torch.testing.assert_close(sample_guided(from_noise_time(backward_field), noise, plan, weights), expected)
