"""Area under the curve."""

import numpy as np
import pytest

from vla_rl.core.metrics import auc


def test_auc_is_the_chance_that_a_success_scores_above_a_failure() -> None:
    labels = np.array([True, True, False, False])
    assert auc(np.array([0.9, 0.8, 0.2, 0.1]), labels) == 1.0
    assert auc(np.array([0.1, 0.2, 0.8, 0.9]), labels) == 0.0
    assert auc(np.array([0.5, 0.5, 0.5, 0.5]), labels) == 0.5
    assert auc(np.array([0.9, 0.1, 0.5, 0.1]), labels) == pytest.approx((1 + 1 + 0 + 0.5) / 4)
    assert np.isnan(auc(np.array([1.0]), np.array([True])))
