import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.statistics import bootstrap_interval, control_variate, paired_p, stratified_p
from vla_rl.core.errors import UserError
from vla_rl.report.statistics import wilson_interval

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


def test_stratified_gives_what_r_gives():
    assert stratified_p(BERKELEY) == pytest.approx(0.2323, abs=5e-5)
    assert stratified_p(BERKELEY, continuity_correction=False) == pytest.approx(0.2169, abs=5e-5)


def test_stratified_does_not_fall_for_simpson():
    pooled = stratified_p([tuple(np.sum(BERKELEY, axis=0).tolist())])
    assert pooled < 1e-15 < 0.1 < stratified_p(BERKELEY)


@given(counts, counts)
def test_p_values_of_one_stratum_are_symmetric_probabilities_and_one_for_equal_rates(first, second):
    p = stratified_p([(*first, *second)])
    assert 0 <= p <= 1 + 1e-12
    assert p == pytest.approx(stratified_p([(*second, *first)]))
    assert stratified_p([(*first, *first)]) == pytest.approx(1)


def test_no_trials_are_no_evidence():
    assert stratified_p([(0, 0, 5, 10)]) == stratified_p([]) == 1


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
    """Quantiles of Student's t in every table: 4.303, 3.182, 2.776, 2.571 and 2.228 for 2 to 5 and 10."""
    for freedom, quantile in {2: 4.30265, 3: 3.18245, 4: 2.77645, 5: 2.57058, 10: 2.22814}.items():
        numbers = np.linspace(-1, 1, freedom + 1)
        error = numbers.std(ddof=1) / np.sqrt(freedom + 1)
        assert paired_p(numbers + quantile * error) == pytest.approx(0.05, abs=1e-5)
        assert paired_p(numbers - quantile * error) == pytest.approx(0.05, abs=1e-5)
    assert paired_p([-1, 0, 1]) == paired_p([0, 0, 0]) == 1


@pytest.mark.parametrize("differences", [[], [0.05], [0.05, 0.07], [0.05] * 4, [0.90 - 0.89, 0.91 - 0.90, 0.01]])
def test_too_few_or_equal_differences_have_no_p_value(differences: list[float]) -> None:
    assert paired_p(differences) is None


@pytest.mark.parametrize("seeds", [3, 5])
def test_equal_methods_differ_no_more_often_than_the_p_value_says(seeds: int) -> None:
    drawn = np.random.default_rng(0).binomial(100, 0.9, (2, 2000, seeds)) / 100
    found = [paired_p(differences) for differences in drawn[0] - drawn[1]]
    assert np.mean([p is not None and p <= 0.05 for p in found]) <= 0.055


@pytest.mark.parametrize(
    "call",
    [
        lambda: stratified_p([(3, 2, 1, 2)]),
        lambda: bootstrap_interval(np.array([]), np.mean, seed=0),
        lambda: bootstrap_interval(np.ones(3), np.mean, seed=0, confidence=0),
    ],
)
def test_impossible_arguments_are_refused(call):
    with pytest.raises(UserError):
        call()


def starts(count, seed, skill):
    """Outcomes of episodes from random starts, and a forecast that knows the start's chance to an extent."""
    random = np.random.default_rng(seed)
    chance = random.beta(0.5, 0.5, count)
    forecast = skill * chance + (1 - skill) * random.random(count)
    return (random.random(count) < chance).astype(float), 3 - 5 * forecast  # biased, and of another scale and sign


def test_a_perfect_forecast_is_worth_the_starts_that_it_was_made_for():
    random = np.random.default_rng(0)
    outcome, elsewhere = (random.random(40) < 0.7), (random.random(4000) < 0.7)
    found = control_variate(outcome, 2 * outcome - 5.0, 2 * elsewhere - 5.0)
    assert found.mean == pytest.approx((40 * outcome.mean() + 4000 * elsewhere.mean()) / 4040, abs=2e-3)
    assert found.saved == pytest.approx(4040 / 40, rel=0.1)


def test_a_forecast_that_says_nothing_leaves_the_plain_rate():
    outcome = np.array([1, 0, 1, 1, 0, 1.0])
    found = control_variate(outcome, np.ones(6), np.ones(100))
    assert found.mean == pytest.approx(outcome.mean())
    assert found.interval == pytest.approx(wilson_interval(4, 6))
    assert found.saved == 1.0


def test_successes_alone_have_the_interval_of_their_number():
    found = control_variate(np.ones(20), np.random.default_rng(0).random(20), np.random.default_rng(1).random(500))
    assert (found.mean, found.saved) == (1.0, 1.0)
    assert found.interval == pytest.approx(wilson_interval(20, 20))


@pytest.mark.parametrize(("count", "fewest"), [(10, 0.93), (30, 0.9), (100, 0.9)])
def test_few_failures_promise_no_savings(count: int, fewest: float) -> None:
    """Of starts that a good forecast tells apart; 90 % succeed."""
    random = np.random.default_rng(0)

    def draw(starts: int) -> np.ndarray:
        return np.where(random.random(starts) < 0.9, 0.97, 0.03)

    found = []
    for _ in range(1000):
        forecast = draw(count)
        outcome = (random.random(count) < forecast).astype(float)
        estimate = control_variate(outcome, forecast, draw(500))
        assert estimate.saved <= 1 + 500 / count
        assert estimate.saved == 1 or min(outcome.sum(), count - outcome.sum()) >= 5
        found.append(estimate.interval)
    truth = 0.9 * 0.97 + 0.1 * 0.03
    assert np.mean([low <= truth <= high for low, high in found]) >= fewest


@pytest.mark.parametrize("skill", [0.0, 0.5, 1.0])
def test_the_estimate_has_no_bias_and_its_interval_its_coverage_however_wrong_the_forecast_is(skill):
    found = []
    for seed in range(1500):
        outcome, forecast = starts(30, 2 * seed, skill)
        found.append(control_variate(outcome, forecast, starts(1000, 2 * seed + 1, skill)[1]))
    means = np.array([each.mean for each in found])
    covered = np.mean([each.interval[0] <= 0.5 <= each.interval[1] for each in found])
    assert means.mean() == pytest.approx(0.5, abs=4 * means.std() / math.sqrt(len(means)))
    assert 0.92 <= covered <= 0.98
    worth = 0.25 / 30 / means.var()  # of plain episodes, in truth
    assert np.median([each.saved for each in found]) == pytest.approx(worth, rel=0.2)
    assert worth > (0.9 if skill == 0 else 1.2)


@pytest.mark.parametrize(
    ("outcome", "predicted", "elsewhere"),
    [([1, 0], [1, 0], [1]), ([1, 0, 1], [1, 0], [1]), ([1, 0, 1], [1, 0, 1], []), ([1, 0, 1], [1, 0, np.nan], [1])],
)
def test_too_few_or_bad_numbers_are_refused(outcome, predicted, elsewhere):
    with pytest.raises(UserError, match="at least three episodes"):
        control_variate(np.array(outcome), np.array(predicted), np.array(elsewhere))
