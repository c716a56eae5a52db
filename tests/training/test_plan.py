"""The plan of a run and its seeds."""

from dataclasses import replace
from itertools import pairwise

import pytest

from vla_rl.core.errors import ConfigError
from vla_rl.training.plan import BudgetConfig, demonstration_seed, evaluation_seed, plan, practice_seed


def test_stages_follow_each_other_without_gaps() -> None:
    budget = BudgetConfig(supervised_steps=10, rounds=2, steps_per_round=5)
    stages = plan(budget)
    assert [stage.name for stage in stages] == [
        "demonstrate 0", "supervise 0", "evaluate 0",
        "collect 1", "practice 1", "evaluate 1",
        "collect 2", "practice 2", "evaluate 2",
    ]  # fmt: skip
    assert all(earlier.end_step == later.first_step for earlier, later in pairwise(stages))
    assert stages[-1].end_step == 20
    acting = [stage.policy_version for stage in stages if stage.kind in ("collect", "evaluate")]
    assert acting == [0, 0, 1, 1, 2]


def test_more_demonstrations_are_learned_from_for_longer() -> None:
    budget = BudgetConfig(supervised_steps=600, steps_per_demonstration=50, rounds=1, steps_per_round=5)
    few, many = plan(replace(budget, demonstrations=8)), plan(replace(budget, demonstrations=50))
    assert [stages[1].end_step for stages in (few, many)] == [600, 2500]
    assert [stages[-1].end_step for stages in (few, many)] == [605, 2505]


def test_with_staleness_a_round_is_played_by_an_older_version_and_nothing_is_left_out() -> None:
    budget = BudgetConfig(rounds=4, staleness=2)
    stages = plan(budget)
    assert [stage.policy_version for stage in stages if stage.kind == "collect"] == [0, 0, 0, 1]
    in_turns = plan(replace(budget, staleness=0))
    assert [stage.policy_version for stage in in_turns if stage.kind == "collect"] == [0, 1, 2, 3]
    assert sorted(stage.name for stage in stages) == sorted(stage.name for stage in in_turns)
    for number, stage in enumerate(stages):
        if stage.kind in ("collect", "evaluate"):  # the version that acts has been made
            assert stage.policy_version in [made.policy_version for made in stages[:number] if made.kind != "collect"]
    names = [stage.name for stage in stages]
    assert names.index("evaluate 1") > names.index("practice 2"), "it goes on while the next one is learnt"


def test_the_last_policy_is_always_evaluated() -> None:
    stages = plan(BudgetConfig(rounds=3, evaluate_every_round=False))
    assert [stage.round for stage in stages if stage.kind == "evaluate"] == [0, 3]


def test_no_seed_is_used_twice() -> None:
    budget_most = range(0, 9999, 97)
    seeds = [
        demonstration_seed(run, index, attempt) for run in (0, 1, 999) for index in budget_most for attempt in range(5)
    ]
    seeds += [
        practice_seed(run, number, index) for run in (0, 1, 999) for number in (1, 2, 40) for index in budget_most
    ]
    seeds += [evaluation_seed(index) for index in budget_most]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("seed", [-1, 1000, 0.5])
def test_a_seed_of_no_run_is_refused(seed: int) -> None:
    for of_episode in (demonstration_seed, practice_seed):
        with pytest.raises(ConfigError, match=f"seed is {seed}; it must be from 0 to 999"):
            of_episode(seed, 1, 0)


@pytest.mark.parametrize(
    "change",
    [
        {"demonstrations": -1},
        {"rounds": -1},
        {"rounds": 50},
        {"episodes_per_round": 10_000},
        {"staleness": 1, "check_episodes": 5},
    ],
)
def test_an_impossible_budget_is_refused(change: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        BudgetConfig(**change)
