import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vla_rl.core.errors import UserError
from vla_rl.report.outcomes import Comparison, Outcomes
from vla_rl.report.run_files import Evaluation
from vla_rl.report.statistics import fisher_p, mcnemar_p, sequential_test, wilson_interval

# Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
NEWCOMBE = [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)]

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


@given(counts, counts)
def test_p_values_are_symmetric_probabilities_and_one_for_equal_rates(first, second):
    p = fisher_p(*first, *second)
    assert 0 <= p <= 1 + 1e-12
    assert p == pytest.approx(fisher_p(*second, *first))
    assert fisher_p(*first, *first) == pytest.approx(1)


def test_no_trials_are_no_evidence():
    assert fisher_p(0, 0, 5, 10) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson_interval(5, 4),
        lambda: wilson_interval(-1, 4),
        lambda: wilson_interval(1, 4, confidence=95),
        lambda: fisher_p(3, 2, 1, 2),
    ],
)
def test_impossible_arguments_are_refused(call):
    with pytest.raises(UserError):
        call()


def test_mcnemar_is_the_sign_test_of_the_seeds_that_differ():
    assert mcnemar_p(0, 0) == 1
    assert mcnemar_p(1, 9) == pytest.approx(2 * 11 / 1024)
    assert mcnemar_p(9, 1) == mcnemar_p(1, 9)
    assert mcnemar_p(5, 5) == 1


def pairs_of(success: float, other: float, seed: int) -> Iterator[tuple[bool, bool]]:
    """Outcomes of two policies with chances of success on starts that are easy or hard for both."""
    draw = random.Random(seed)
    while True:
        start = draw.uniform(-0.3, 0.3)
        yield draw.random() < success + start, draw.random() < other + start


def pairs_until_decided(success: float, other: float, seed: int, error: float, most: int = 400) -> tuple[int, int]:
    """Pairs that a comparison takes, and who it finds better: 1, -1, or 0 if it stays undecided."""
    played = []
    for pair in pairs_of(success, other, seed):
        played.append(pair)
        p, lead = sequential_test(played)
        if p <= error:
            return len(played), 1 if lead > 0 else -1
        if len(played) == most:
            return most, 0
    raise AssertionError


@pytest.mark.parametrize("other", [Outcomes((1, 3), (True, False)), Outcomes((1, 2), (True, False), (), ("a", "b"))])
def test_only_the_same_episodes_are_compared(other: Outcomes) -> None:
    with pytest.raises(UserError, match="other seeds or tasks"):
        Comparison(Outcomes((1, 2), (True, False), (), ("a", "a")), other)


def test_the_evidence_is_the_binomial_ratio() -> None:
    """Eight pairs of one kind: 2^8 / 9, as in the mixture's closed form."""
    won, lost, both = (True, False), (False, True), (True, True)
    assert sequential_test([won, both] * 8) == pytest.approx((9 / 256, 8))
    assert sequential_test([lost] * 8) == pytest.approx((9 / 256, -8))
    assert sequential_test([won] * 8 + [lost] * 8) == pytest.approx((9 / 256, 8))  # what was decided stays decided
    assert sequential_test([both, won, lost]) == (1, 0)
    p, lead = sequential_test([won] * 1100)  # 2^1100 is no float
    assert p < 1e-300
    assert lead > 1000


@pytest.mark.parametrize("error", [0.2, 0.05, 0.01])
def test_equal_policies_are_told_apart_with_the_stated_error_at_most(error: float) -> None:
    """The exact chance that the evidence ever reaches 1 / error in 400 discordant pairs: a walk on (n, wins)."""
    walk, stopped = {0: 1.0}, 0.0
    for n in range(1, 401):
        walk = {wins: 0.5 * (walk.get(wins, 0) + walk.get(wins - 1, 0)) for wins in range(n + 1)}
        for wins in [*walk]:
            if 2**n / ((n + 1) * math.comb(n, wins)) >= 1 / error:
                stopped += walk.pop(wins)
    assert error / 4 < stopped <= error


def test_a_comparison_of_equal_policies_errs_as_stated_and_a_clear_difference_is_found_early() -> None:
    equal = [pairs_until_decided(0.6, 0.6, seed, 0.2, most=100) for seed in range(400)]
    assert 0.2 / 4 < sum(found != 0 for _, found in equal) / 400 <= 0.2
    clear = [pairs_until_decided(0.65, 0.35, seed, 0.05) for seed in range(200)]
    assert {found for _, found in clear} == {1}
    assert sum(count for count, _ in clear) / 200 < 100


def test_policies_on_the_same_seeds_are_compared_in_pairs():
    """Ten of a hundred seeds differ, nine of them for the better: a clear gain that an unpaired test cannot see."""
    before = {f"env {seed}": seed < 50 for seed in range(100)}
    after = {**before, "env 0": False, **{f"env {seed}": True for seed in range(50, 59)}}

    def evaluation(round: int, outcomes: dict[str, bool]) -> Evaluation:
        entry = {"round": round, "successes": sum(outcomes.values()), "episodes": 100, "outcomes": outcomes}
        return Evaluation.from_summary(entry)

    first, last = evaluation(0, before), evaluation(1, after)
    assert last.p_value(first) == pytest.approx(mcnemar_p(9, 1))
    assert fisher_p(58, 100, 50, 100) > 0.3
    other_seeds = evaluation(1, {f"env {seed + 100}": True for seed in range(100)})
    assert other_seeds.p_value(first) == pytest.approx(fisher_p(100, 100, 50, 100))
