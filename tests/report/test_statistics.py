import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.core.errors import UserError
from vla_rl.report.statistics import bootstrap_interval, fisher_p, paired_p, stratified_p, wilson_interval

# Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
NEWCOMBE = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]
# Admissions at Berkeley, 1973, by department: men admitted, men, women admitted, women (R: UCBAdmissions).
BERKELEY = [
    (512, 825, 89, 108),
    (353, 560, 17, 25),
    (120, 325, 202, 593),
    (138, 417, 131, 375),
    (53, 191, 94, 393),
    (22, 373, 24, 341),
]

counts = st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(("successes", "n", "low", "high"), NEWCOMBE)
def test_wilson_interval_gives_the_published_values(successes, n, low, high):
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_interval_without_trials_says_nothing():
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(counts)
def test_wilson_interval_holds_the_rate_and_mirrors(count):
    successes, n = count
    low, high = wilson_interval(successes, n)
    assert 0 <= low <= successes / n <= high <= 1
    assert wilson_interval(n - successes, n) == pytest.approx((1 - high, 1 - low))


@given(counts)
def test_wilson_interval_ends_are_where_the_score_test_rejects(count):
    successes, n = count
    for end in wilson_interval(successes, n):
        if 0 < end < 1:
            z = (successes / n - end) / math.sqrt(end * (1 - end) / n)
            assert abs(z) == pytest.approx(1.959964, rel=1e-5)


def test_fisher_lady_tasting_tea():
    assert fisher_p(3, 4, 1, 4) == pytest.approx(34 / 70)
    assert fisher_p(4, 4, 0, 4) == pytest.approx(2 / 70)


def test_fisher_pooled_table_of_the_hierarchical_advantage_paper():
    assert fisher_p(30 + 39 + 11, 150, 25 + 35 + 9, 150) == pytest.approx(0.25, abs=0.005)


def test_stratified_gives_what_r_gives():
    assert stratified_p(BERKELEY) == pytest.approx(0.2323, abs=5e-5)
    assert stratified_p(BERKELEY, continuity_correction=False) == pytest.approx(0.2169, abs=5e-5)


def test_stratified_does_not_fall_for_simpson():
    pooled = stratified_p([tuple(np.sum(BERKELEY, axis=0).tolist())])
    assert pooled < 1e-15 < 0.1 < stratified_p(BERKELEY)


@given(counts, counts)
def test_p_values_are_symmetric_probabilities_and_one_for_equal_rates(first, second):
    for test in (fisher_p, lambda *count: stratified_p([count])):
        p = test(*first, *second)
        assert 0 <= p <= 1 + 1e-12
        assert p == pytest.approx(test(*second, *first))
        assert test(*first, *first) == pytest.approx(1)


def test_no_trials_are_no_evidence():
    assert fisher_p(0, 0, 5, 10) == stratified_p([(0, 0, 5, 10)]) == stratified_p([]) == 1


def test_bootstrap_agrees_with_the_normal_interval_of_a_mean():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    half_width = 1.96 * values.std() / 20
    interval = bootstrap_interval(values, np.mean, seed=1)
    assert interval == pytest.approx((values.mean() - half_width, values.mean() + half_width), abs=0.03)
    assert interval == bootstrap_interval(values, np.mean, seed=1) != bootstrap_interval(values, np.mean, seed=2)


def test_bootstrap_draws_whole_rows():
    pairs = np.stack([np.arange(50.0), np.arange(50.0) + 2], axis=1)
    assert bootstrap_interval(pairs, lambda rows: np.mean(rows[:, 1] - rows[:, 0]), seed=0) == (2.0, 2.0)


def test_paired_differences_with_known_answers() -> None:
    """Quantiles of Student's t in every table: 12.706, 4.303, 3.182, 2.776, 2.571 and 2.228 for 1 to 5 and 10."""
    for freedom, quantile in {1: 12.7062, 2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 10: 2.22814}.items():
        numbers = np.linspace(-1, 1, freedom + 1)
        error = numbers.std(ddof=1) / np.sqrt(freedom + 1)
        assert paired_p(numbers + quantile * error) == pytest.approx(0.05, abs=1e-5)
        assert paired_p(numbers - quantile * error) == pytest.approx(0.05, abs=1e-5)
    assert paired_p([-1, 1]) == paired_p([0, 0, 0]) == 1
    assert paired_p([2, 2]) == 0
    with pytest.raises(UserError, match="at least two"):
        paired_p([1])


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson_interval(5, 4),
        lambda: wilson_interval(-1, 4),
        lambda: wilson_interval(1, 4, confidence=95),
        lambda: fisher_p(3, 2, 1, 2),
        lambda: stratified_p([(3, 2, 1, 2)]),
        lambda: bootstrap_interval(np.array([]), np.mean, seed=0),
        lambda: bootstrap_interval(np.ones(3), np.mean, seed=0, confidence=0),
    ],
)
def test_impossible_arguments_are_refused(call):
    with pytest.raises(UserError):
        call()
