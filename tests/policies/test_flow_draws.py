"""The random part of training, and the options of Xiaomi-Robotics-0 and training-time prefixes."""

from typing import Any

import pytest
import torch
from tiny_policy import TINY, make_batch, make_model
from torch import Tensor

from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig
from vla_rl.policies.flow_vla.flow import FlowDraw, difficulty_weights, draw_flow

XIAOMI: dict[str, Any] = {
    "expert": ExpertConfig(width=32, layers=1, heads=2, actions_per_token=1, window=4, rotary=True),
    "prefix_max": 6,
    "prefix_law": "xiaomi",
}


def draw(size: int = 4000, **options: Any) -> FlowDraw:
    return draw_flow(FlowVLAConfig(**(TINY | options)), size, 2, torch.Generator().manual_seed(0))


@pytest.mark.parametrize(("distribution", "mean"), [("uniform", 0.5), ("beta", 0.4), ("logit_normal", 0.5)])
def test_flow_times_follow_their_distribution(distribution: str, mean: float) -> None:
    time = draw(time_distribution=distribution, flow_samples=4).time
    assert ((time >= 0) & (time <= 1)).all()
    assert (time == time[:, :1]).all()
    assert time.mean().item() == pytest.approx(mean, abs=0.01)
    strata = time[:, 0].unflatten(0, (-1, 4)).mean(0)
    assert strata.diff().abs().min() > 0.1


@pytest.mark.parametrize(
    ("law", "shares"),
    [("linear", [4 / 10, 3 / 10, 2 / 10, 1 / 10]), ("exponential", None), ("xiaomi", [1 / 2, 1 / 6, 1 / 6, 1 / 6])],
)
def test_prefix_lengths_follow_their_law(law: str, shares: list[float] | None) -> None:
    parts = draw(prefix_max=3, prefix_law=law, expert=ExpertConfig(width=32, heads=2, actions_per_token=1))
    lengths = parts.committed.sum(1)
    assert torch.equal(parts.committed, torch.arange(8) < lengths[:, None])
    assert (parts.time[parts.committed] == 1).all()
    found = torch.bincount(lengths, minlength=4) / len(lengths)
    expected = torch.tensor(shares) if shares else torch.softmax(-torch.arange(4.0), 0)
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


def test_half_of_a_long_prefix_is_hidden_but_never_its_end() -> None:
    parts = draw(**XIAOMI)
    lengths = parts.committed.sum(1, keepdim=True)
    may_hide = torch.arange(8) < lengths - 2
    assert not parts.hidden[~may_hide].any()
    assert parts.hidden[may_hide].float().mean().item() == pytest.approx(0.5, abs=0.03)


def test_difficulty_weights_follow_the_formula() -> None:
    actions = torch.zeros(1, 4, 2)
    rollout = torch.tensor([0.1, 1.0, 2.0, 40.0])[None, :, None].expand(1, 4, 2)
    counted = torch.tensor([[True, True, True, False]])
    mean = (0.1 + 1.0 + 2.0) / 3
    expected = torch.tensor([[0.5, 1.0 / mean, 2.0 / mean, 5.0]])
    torch.testing.assert_close(difficulty_weights(rollout, actions, counted), expected)
    assert torch.isfinite(difficulty_weights(actions, actions, torch.zeros_like(counted))).all()


def influence(model: FlowVLA, time: Tensor, hidden: Tensor | None = None) -> Tensor:
    """Which action token's velocity depends on which action, bool [H, H]."""
    batch = make_batch(model, 1)
    prefix = model.encode(batch.images, batch.state, batch.text)
    noisy = torch.randn(1, 8, 2, generator=torch.Generator().manual_seed(2)).requires_grad_()
    velocity = model.velocity(noisy, time, prefix, hidden)
    rows = [torch.autograd.grad(velocity[0, i].sum(), noisy, retain_graph=True)[0][0].abs().sum(-1) for i in range(8)]
    return torch.stack(rows) > 0


def test_the_mask_is_a_window_beside_the_prefix() -> None:
    back = torch.arange(8)[:, None] - torch.arange(8)
    assert torch.equal(influence(make_model(**XIAOMI), torch.full((1, 8), 0.3)), (back >= 0) & (back < 4))
    full = make_model(expert=ExpertConfig(width=32, layers=1, heads=2, actions_per_token=1))
    assert influence(full, torch.full((1, 8), 0.3)).all()


def test_hidden_actions_are_hidden_from_undecided_ones_only() -> None:
    model = make_model(expert=ExpertConfig(width=32, layers=1, heads=2, actions_per_token=1))
    time = torch.full((1, 8), 0.3)
    time[:, :4] = 1.0
    hidden = torch.zeros(1, 8, dtype=torch.bool)
    hidden[:, 1] = True
    seen = influence(model, time, hidden)
    assert not seen[4:, 1].any()
    assert seen[:4].all()
    assert seen[:, [0, 2, 3, 4, 5, 6, 7]].all()


def test_undecided_actions_stand_further_along(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the shift the same actions at the same times read differently; positions are relative, so all shifted is
    none.
    """
    model = make_model(**XIAOMI)
    batch = make_batch(model, 2)
    noisy = torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(2))
    time = torch.full((2, 8), 0.4)
    time[:, :3] = 1.0
    found = []
    for shift in (0, 10):
        monkeypatch.setattr("vla_rl.policies.flow_vla.expert.NOISY_SHIFT", shift)
        found.append(model.velocity(noisy, time, model.encode(batch.images, batch.state, batch.text)))
    torch.testing.assert_close(found[0][:, :3], found[1][:, :3])
    assert (found[0][:, 3:] - found[1][:, 3:]).abs().max() > 1e-4


@pytest.mark.parametrize("options", [XIAOMI, XIAOMI | {"flow_samples": 2}])
def test_the_options_train_and_keep_committed_actions(options: dict[str, Any]) -> None:
    model = make_model(**options)
    batch = make_batch(model)
    per_sample, _ = model.loss(batch, torch.Generator().manual_seed(0))
    per_sample.mean().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    noise = torch.randn(4, 8, 2, generator=torch.Generator().manual_seed(1))
    committed = batch.actions[:, :3]
    chunk = model.sample(model.encode(batch.images, batch.state, batch.text), noise, committed)
    assert (chunk[:, :3] - committed).abs().max() < 1e-6
