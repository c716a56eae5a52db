"""What is measured of branches' values: known answers."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from benchmarks.branch_values import CHUNKS, _agreement, _branch, _play_on, keys, table
from vla_rl.algorithms.model_rollouts import Imagination, Starts
from world_model.protocol import Observations, OneStep, Prediction


class Counted(NamedTuple):
    seen: torch.Tensor


class Counting:
    """One feature; a chunk adds its mean action, and 3 is success."""

    members = 1

    def encode(self, observations: Observations, member: torch.Tensor | None = None) -> Counted:
        del member
        return Counted(torch.from_numpy(observations.steps.state[observations.frames]))

    def predict(self, state: Counted, actions: torch.Tensor) -> Prediction[Counted]:
        later = state.seen + actions.mean((1, 2))[:, None]
        return Prediction(Counted(later), (later[:, 0] >= 3).float(), lambda: torch.zeros(len(later)))

    def decode(self, state: Counted) -> torch.Tensor:
        raise NotImplementedError


def counting(value_of_success: float = 0.5) -> Imagination:
    """The policy adds nothing."""
    return Imagination(
        Counting(),
        lambda state: state.seen,
        draw=lambda seen: torch.zeros(len(seen), 2, 1),
        value=lambda seen, tick, fold: torch.full((len(seen),), value_of_success),
        chunk_ticks=2,
        last_tick=20,
    )


def test_a_branch_that_has_succeeded_is_worth_1_and_stays_so() -> None:
    moments = Observations(OneStep({}, np.zeros((2, 1), np.float32)), np.arange(2))
    starts = Starts(moments, torch.zeros(2), torch.zeros(2, dtype=torch.int64))
    values, state, won = _branch(counting(), starts, torch.tensor([2.0, 0.5])[:, None, None])
    assert values.tolist() == [[0.5, 0.5], [1.0, 0.5], [1.0, 0.5]]
    assert won.tolist() == [True, False]
    outcome = _play_on(counting(), state, starts.tick + CHUNKS * 2, won)
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
