"""The value of real outcomes is judged by, and valued with, what it has not learned from."""

import pytest
import torch

from vla_rl.critics.outcome import OutcomeValueConfig, fit_outcome_value

EPISODES, LENGTH, FOLDS = 60, 10, 3


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vla_rl.critics.outcome._HIDDEN", (32,))
    monkeypatch.setattr("vla_rl.critics.outcome._LEARNING_RATE", 3e-3)


def fitted(informative: bool, steps: int = 300):
    generator = torch.Generator().manual_seed(0)
    label = (torch.rand(EPISODES, generator=generator) < 0.5).float().repeat_interleave(LENGTH)
    rows = torch.randn(EPISODES, 8, generator=generator).repeat_interleave(LENGTH, 0)
    if informative:
        rows[:, 0] = 2 * label - 1 + 0.5 * rows[:, 0]
    fold = (torch.arange(EPISODES) % FOLDS).repeat_interleave(LENGTH)
    torch.manual_seed(0)
    config = OutcomeValueConfig(steps)
    value, brier = fit_outcome_value(rows, label, fold, FOLDS, config, torch.Generator().manual_seed(1))
    return value, brier, rows, label, fold


def test_what_outcomes_depend_on_is_learnt() -> None:
    value, brier, rows, _, fold = fitted(informative=True)
    assert brier < 0.12
    better = value(rows + torch.tensor([2.0, *[0.0] * 7]), fold)
    assert (better > value(rows - torch.tensor([2.0, *[0.0] * 7]), fold)).all()


def test_outcomes_known_by_heart_are_not_believed() -> None:
    value, brier, rows, label, fold = fitted(informative=False)
    assert 0.2 < brier < 0.35
    seen = value(rows, (fold + 1) % FOLDS)  # by those who learned from them
    unseen = value(rows, fold)
    assert (seen - label).abs().mean() < (unseen - label).abs().mean()
    assert abs(float(torch.corrcoef(torch.stack([unseen, label]))[0, 1])) < 0.35
