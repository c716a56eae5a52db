"""What starts explain of outcomes: known answers."""

import numpy as np
import pytest

from benchmarks.predicted_starts import intraclass_correlation, keys, table


@pytest.mark.parametrize("share", [0.0, 0.3, 0.8])
def test_the_part_of_the_variance_that_starts_explain(share: float) -> None:
    random = np.random.default_rng(0)
    groups = np.sqrt(share) * random.normal(size=(4000, 1)) + np.sqrt(1 - share) * random.normal(size=(4000, 6))
    assert intraclass_correlation(groups) == pytest.approx(share, abs=0.02)


def test_six_targets_by_four_judges_of_the_paper() -> None:
    """Shrout and Fleiss, Psychological Bulletin 86 (1979), table 2: ICC(1, 1) is .17."""
    ratings = [[9, 2, 5, 8], [6, 1, 3, 2], [8, 4, 6, 8], [7, 1, 2, 6], [10, 5, 6, 9], [6, 2, 4, 7]]
    assert intraclass_correlation(np.array(ratings, dtype=float)) == pytest.approx(0.17, abs=0.005)


def test_figures_are_means_over_policies() -> None:
    policies = [
        {"name": "a", "success": 0.5, "saved": 1.0, "bound": 1.4},
        {"name": "b", "success": 0.6, "saved": 1.2, "bound": 1.6},
    ]
    found = keys([{"policies": policies[:1]}, {"policies": policies[1:]}])
    assert (found["real_episodes_saved_ratio"], found["real_episodes_saved_bound"]) == pytest.approx((1.1, 1.5))
    assert "saves 1.10 times" in table(found)
    assert keys([]) == {}
