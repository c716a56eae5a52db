"""Statistics and the affine maps: exact round trips, constant dimensions, grippers, damaged files."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.normalization import Statistics, VectorStatistics
from vla_rl.policies.layers import Normalizer

COLUMN = arrays(np.float32, (20, 3), elements=st.floats(-100, 100, width=32))


@settings(max_examples=60, deadline=None)
@given(COLUMN)
def test_round_trip_of_everything_seen(column: np.ndarray) -> None:
    normalizer = Normalizer(VectorStatistics.from_array(column, "action"))
    raw = torch.from_numpy(column)
    back = normalizer.denormalize(normalizer.normalize(raw))
    tolerance = 1e-5 * (1 + np.abs(column).max())
    torch.testing.assert_close(back, raw, rtol=1e-4, atol=tolerance)


def test_units_are_standard_deviations_from_the_mean() -> None:
    column = np.random.default_rng(0).normal([1.0, -5.0], [2.0, 0.1], size=(10_000, 2))
    statistics = VectorStatistics.from_array(column, "state")
    normalized = Normalizer(statistics).normalize(torch.from_numpy(column).float())
    torch.testing.assert_close(normalized.mean(0), torch.zeros(2), atol=1e-3, rtol=0)
    torch.testing.assert_close(normalized.std(0), torch.ones(2), atol=1e-3, rtol=0)


def test_a_constant_dimension_stays_constant() -> None:
    column = np.stack([np.linspace(-1, 1, 50), np.full(50, 0.3)], 1)
    normalizer = Normalizer(VectorStatistics.from_array(column, "action"))
    assert normalizer.normalize(torch.tensor([0.0, 0.7]))[1] == 0.0
    assert normalizer.denormalize(torch.tensor([0.0, 123.0]))[1] == pytest.approx(0.3)


def test_discrete_dimensions_map_their_levels_to_plus_and_minus_one() -> None:
    gripper = np.where(np.arange(100) < 5, 0.1, 0.0)  # closed in 95 of 100 steps
    action = np.stack([np.linspace(0, 1, 100), gripper], 1)
    statistics = Statistics.from_arrays(np.zeros((100, 1)), action, discrete_dims=(1,))
    normalizer = Normalizer(statistics.action, statistics.discrete_dims)
    torch.testing.assert_close(normalizer.normalize(torch.tensor([0.5, 0.0]))[1], torch.tensor(-1.0))
    torch.testing.assert_close(normalizer.normalize(torch.tensor([0.5, 0.1]))[1], torch.tensor(1.0))


def test_statistics_survive_json_bit_for_bit() -> None:
    rng = np.random.default_rng(3)
    statistics = Statistics.from_arrays(rng.normal(size=(30, 4)), rng.normal(size=(30, 2)), (1,))
    assert Statistics.from_dict(json.loads(json.dumps(statistics.to_dict()))) == statistics


@pytest.mark.parametrize(
    ("state", "action", "dims"),
    [
        (np.zeros((0, 2)), np.zeros((0, 2)), ()),
        (np.full((3, 2), np.nan), np.zeros((3, 2)), ()),
        (np.zeros((3, 2)), np.zeros((3, 2)), (2,)),
        (np.zeros((3, 2)), np.zeros((3, 2)), (-1,)),
    ],
)
def test_unusable_data_is_refused(state: np.ndarray, action: np.ndarray, dims: tuple[int, ...]) -> None:
    with pytest.raises(UserError):
        Statistics.from_arrays(state, action, dims)


def test_an_offset_is_no_larger_than_what_actions_change_in_a_chunk() -> None:
    """The scale of an absolute target is the whole motion, of which a chunk executes a part."""
    action = np.random.default_rng(0).normal(0.0, [2.0, 2.0, 2.0], (50, 3))
    statistics = Statistics.from_arrays(action, action, (2,))
    std = action.std(0)
    np.testing.assert_allclose(statistics.offset_scale(), [std[0], std[1], 0], rtol=1e-6)
    known = replace(statistics, change=(0.1, 1.0, 0.1))
    np.testing.assert_allclose(known.offset_scale(), [0.3, std[1], 0], rtol=1e-6)
    held = replace(known, change=(0.0, 1.0, 0.0))  # one target in all of an episode, another one in the next
    np.testing.assert_allclose(held.offset_scale(), [std[0], std[1], 0], rtol=1e-6)
    raw = known.to_dict()
    assert Statistics.from_dict(json.loads(json.dumps(raw))) == known
    del raw["change"]  # as it was saved before
    assert Statistics.from_dict(raw) == statistics
    for change in ([0.1], [0.1, -1.0, 0.1], [0.1, float("nan"), 0.1]):
        with pytest.raises(CheckpointError, match="statistics of action are damaged: change"):
            Statistics.from_dict({**raw, "change": change})


def test_damaged_statistics_are_refused() -> None:
    raw = Statistics.from_arrays(np.random.default_rng(0).normal(size=(9, 2)), np.zeros((9, 2))).to_dict()
    for damage in (
        lambda data: data["state"].pop("mean"),
        lambda data: data["state"].update(mean=[0.0]),
        lambda data: data["action"].update(std=["x", 1.0]),
        lambda data: data["action"].update(std=[float("nan"), 1.0]),
        lambda data: data.pop("discrete_dims"),
        lambda data: data.update(state=[1, 2]),
    ):
        damaged = json.loads(json.dumps(raw))
        damage(damaged)
        with pytest.raises(CheckpointError):
            Statistics.from_dict(damaged)
