"""Proximal policy optimization of a residual, where what it has to find is known."""

import pytest
import torch
from torch import Tensor, nn

from vla_rl import ppo

ACTION_STD = 0.2


class Offset(nn.Module):
    """A residual of two dimensions that proposes the same everywhere."""

    def __init__(self) -> None:
        super().__init__()
        self.offset = nn.Parameter(torch.zeros(2))

    def forward(self, rows: Tensor) -> Tensor:
        return self.offset + torch.zeros(len(rows), 2)


def tried(residual: Offset, seed: int, count: int = 400) -> ppo.Tried:
    """What goes further in the first dimension is better, the second is of no use."""
    rows = torch.zeros(count, 1)
    mean = residual(rows).detach()
    offset = mean + ACTION_STD * torch.randn(count, 2, generator=torch.Generator().manual_seed(seed))
    return ppo.Tried(rows, offset, mean, offset[:, 0])


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "BATCH_SIZE", 100)


def improved(updates: int = 1, **options: float) -> tuple[Tensor, dict[str, float]]:
    residual = Offset()
    optimizer = torch.optim.Adam(residual.parameters(), 1e-2)
    for seed in range(updates):
        generator = torch.Generator().manual_seed(seed)
        logs = ppo.update(residual, optimizer, tried(residual, seed), ACTION_STD, generator, **options)
    return residual.offset.detach(), logs


def test_it_goes_where_what_was_tried_was_better() -> None:
    offset, _ = improved(updates=10)
    assert offset[0] > 0.2
    assert abs(float(offset[1])) < 0.1


def test_the_divergence_is_the_true_one() -> None:
    offset, logs = improved()
    assert logs["divergence"] == pytest.approx(float((offset / ACTION_STD).square().sum() / 2), rel=1e-4)
    assert logs["epochs"] == 8
    assert 0 < logs["clipped"] < 1


def test_clipping_is_a_trust_region_and_epochs_stop_at_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ppo, "EPOCHS", 30)
    monkeypatch.setattr(ppo, "CLIP", 0.05)
    near, _ = improved()
    monkeypatch.setattr(ppo, "CLIP", 0.9)
    far, far_logs = improved()
    assert 0 < near[0] < 0.5 * far[0]
    _, logs = improved(target_kl=0.05)
    assert logs["epochs"] < 30
    assert 0.05 < logs["divergence"] < far_logs["divergence"]


def test_a_cost_on_the_distance_keeps_it_at_no_edit() -> None:
    assert improved(updates=5, kl_coef=30.0)[0][0] < 0.1 * improved(updates=5)[0][0]


def test_what_is_worth_the_same_teaches_nothing() -> None:
    residual = Offset()
    same = tried(residual, 0)._replace(advantage=torch.ones(400))
    ppo.update(residual, torch.optim.Adam(residual.parameters()), same, ACTION_STD, torch.Generator().manual_seed(0))
    assert not residual.offset.any()


def test_a_log_probability_is_summed_over_dimensions() -> None:
    normal = torch.distributions.Normal(torch.tensor([0.1, -0.2]), ACTION_STD)
    offset = torch.tensor([[0.3, 0.0], [0.0, 0.1]])
    expected = normal.log_prob(offset).sum(1)
    found = ppo.log_probability(offset, normal.loc.expand(2, -1), ACTION_STD)
    torch.testing.assert_close(found[0] - found[1], expected[0] - expected[1])
    other = torch.distributions.Normal(torch.zeros(2), ACTION_STD)
    divergence = ppo.divergence(normal.loc[None], torch.zeros(1, 2), ACTION_STD)
    torch.testing.assert_close(divergence[0], torch.distributions.kl_divergence(normal, other).sum())
