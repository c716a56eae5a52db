"""Calibration of the critics' forecasts."""

import numpy as np
import pytest

from vla_rl.core.errors import UserError
from vla_rl.critics.calibration import auc, calibration_record, expected_calibration_error, reliability_curve


def test_calibrated_predictions_have_no_error():
    probability = np.repeat([0.25, 0.75], 4)
    label = np.array([1, 0, 0, 0, 1, 1, 1, 0])
    assert expected_calibration_error(probability, label) == pytest.approx(0.0)


def test_error_is_weighted_by_samples():
    probability = np.array([0.9, 0.9, 0.9, 0.1])
    label = np.array([0, 0, 0, 0])
    assert expected_calibration_error(probability, label) == pytest.approx(0.75 * 0.9 + 0.25 * 0.1)


def test_reliability_curve_leaves_empty_bins_out_and_keeps_the_edges():
    curve = reliability_curve([0.0, 1.0, 1.0], [0, 1, 0], bins=4)
    assert curve.predicted.tolist() == [0.0, 1.0]
    assert curve.observed.tolist() == [0.0, 0.5]
    assert curve.samples.tolist() == [1, 2]


def test_what_a_run_logs_of_its_forecasts():
    record = calibration_record(np.float32([0.25, 0.25, 0.75, 0.75]), np.float32([0, 1, 1, 1]), bins=4)
    assert record == {
        "steps": 4,
        "calibration_error": pytest.approx(0.25),
        "brier": pytest.approx((0.0625 + 0.5625 + 0.0625 + 0.0625) / 4),
        "auc": pytest.approx((0.5 + 1 + 1) / 3),
        "mean_predicted": 0.5,
        "mean_observed": 0.75,
        "predicted": [0.25, 0.75],
        "observed": [0.5, 1.0],
        "samples": [2, 2],
    }
    assert calibration_record([], []) == {"steps": 0}


def test_a_forecast_of_what_a_late_success_is_worth_is_right_if_it_says_that():
    worth = np.array([0.9, 0.4, 0.0, 0.0])
    record = calibration_record(worth, worth, bins=5)
    assert (record["calibration_error"], record["brier"], record["auc"]) == (pytest.approx(0.0), 0.0, 1.0)
    assert calibration_record(worth[:2], worth[:2])["auc"] is None, "all succeed"


@pytest.mark.parametrize(("probability", "label"), [([], []), ([0.5], [1, 0]), ([1.5], [1]), ([float("nan")], [1])])
def test_bad_predictions_are_refused(probability, label):
    with pytest.raises(UserError, match="calibration needs"):
        expected_calibration_error(probability, label)


def test_auc_is_the_chance_that_a_success_scores_above_a_failure() -> None:
    labels = np.array([True, True, False, False])
    assert auc(np.array([0.9, 0.8, 0.2, 0.1]), labels) == 1.0
    assert auc(np.array([0.1, 0.2, 0.8, 0.9]), labels) == 0.0
    assert auc(np.array([0.5, 0.5, 0.5, 0.5]), labels) == 0.5
    assert auc(np.array([0.9, 0.1, 0.5, 0.1]), labels) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert np.isnan(auc(np.array([1.0]), np.array([True])))
