"""What is measured of branches' values: known answers."""

import numpy as np
import pytest
import torch

from benchmarks.branch_values import CHUNKS, _agreement, _branch, _play_on, keys, table
from vla_rl.algorithms.model_rollouts import Starts, World


def counting(value_of_success: float = 0.5) -> World:
    """One feature; a chunk adds its mean action, the policy adds nothing; 3 is success."""

    def step(seen: torch.Tensor, chunk: torch.Tensor, member: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        del member
        later = seen + chunk.mean((1, 2))[:, None]
        return later, (later[:, 0] >= 3).float()

    return World(
        draw=lambda seen: torch.zeros(len(seen), 2, 1),
        step=step,
        value=lambda seen, tick, fold: torch.full((len(seen),), value_of_success),
        members=1,
        chunk_ticks=2,
        last_tick=20,
    )


def test_a_branch_that_has_succeeded_is_worth_1_and_stays_so() -> None:
    starts = Starts(torch.zeros(2, 1), torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    values, features, won = _branch(counting(), starts, torch.tensor([2.0, 0.5])[:, None, None])
    assert values.tolist() == [[0.5, 0.5], [1.0, 0.5], [1.0, 0.5]]
    assert won.tolist() == [True, False]
    outcome = _play_on(counting(), features, starts.tick + CHUNKS * 2, won)
    assert outcome.tolist() == [1.0, 0.0], "the policy by itself gets nowhere"


def test_agreement_is_that_within_starts() -> None:
    outcome = np.array([[1.0, 0, 0, 1], [1, 0, 1, 1], [0, 0, 1, 0]])
    shift = np.array([[0.0], [5.0], [-5.0]])  # starts differ in what they are worth, and that is not asked
    found = _agreement(np.stack([outcome + shift, 0 * outcome + shift + [[1, 2, 3, 4]], -outcome + shift]), outcome)
    assert found["within"][0] == pytest.approx(1)
    assert found["within"][2] == pytest.approx(-1)
    assert found["agreement"] == 0
    assert found["intervals"][0] == pytest.approx((1, 1))
    assert _agreement(np.stack([outcome + shift] * CHUNKS), outcome)["agreement"] == 1


def test_nothing_is_told_before_something_is_measured() -> None:
    assert keys([]) == {}
    part = {"within": [0.1, 0.2, 0.3], "auc": 0.75, "agreement": 0.625}
    assert keys([{"learnt": part, "true": part}] * 2)["outcome_auc_branches"] == 0.75
    assert "| learnt dynamics | 0.10, 0.20, 0.30 | 0.62 | 0.75 |" in table([{"learnt": part, "true": part}])
