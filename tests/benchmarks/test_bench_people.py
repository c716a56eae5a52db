"""What the figures on people mean, by hand-made cells."""

import numpy as np
import pytest

from benchmarks.people import (
    CONDITIONS,
    LIMITS,
    METHODS,
    PeopleCell,
    _arguments,
    dimensionless_jerk,
    minutes_to,
    successes_per_hour,
    summary,
    table,
)
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.training.config import RunConfig


def cell(method, rate, minutes, seed=0, condition="mixed"):
    rounds = [
        {"success": success, "steps": 80.0, "successes_per_hour": rate, "person_minutes": spent}
        for success, spent in minutes
    ]
    return {
        "condition": condition, "task": "vla_rl/PegInsert-v0", "seed": seed, "method": method, "rounds": rounds,
        "teacher_steps": 100.0, "effective_samples": None, "practice_episodes": 300, "evaluation_episodes": 200,
        "measured": {"commit": "abc", "cpu": "a processor"},
    }  # fmt: skip


def test_failures_and_resets_cost_time():
    assert successes_per_hour([100, 100], 2, 20.0) == pytest.approx(2 * 3600 / 30)
    assert successes_per_hour([100, 300], 1, 20.0) == pytest.approx(3600 / 40)


def test_person_minutes_are_those_of_the_first_round_that_gets_there():
    rounds = cell("ours", 1.0, [(0.5, 3.0), (0.8, 7.0), (0.92, 9.0)])["rounds"]
    assert [minutes_to(rounds, level) for level in (80, 90, 95)] == [7.0, 9.0, None]


def test_the_summary_takes_the_worst_condition_and_the_best_rival():
    rates = {"ours": 120.0, "hg_dagger": 100.0, "hg_dagger_idle_cut": 110.0, "filtered_bc": 80.0}
    reached, never = [(0.5, 2.0), (0.9, 4.0)], [(0.5, 2.0), (0.8, 8.0)]
    runs = [
        cell(method, rate + (seed if method == "ours" else 2 - seed), reached if method == "ours" else never, seed)
        for method, rate in rates.items()
        for seed in range(3)
    ]
    found = summary(runs)
    assert found["successes_per_hour_ratio"] == pytest.approx(121 / 111)
    assert found["person_minutes_ratio"] == 0.5
    assert found["steps_ratio_to_teacher"] == pytest.approx(0.8)
    assert found["p_against_hg_dagger"] < 0.01
    slower = [cell(method, 100.0, reached, seed, "worse") for method in rates for seed in range(3)]
    assert summary(runs + slower)["successes_per_hour_ratio"] == 1.0
    assert summary(runs + slower)["person_minutes_ratio"] == 1.0
    assert "| mixed |" in table({"runs": runs, "machine": {"cpu": "x"}, "command": "y"})


def test_nothing_is_claimed_that_was_not_measured():
    assert summary([]) == {}
    assert summary([cell("hg_dagger", 1.0, [(0.5, 1.0)])]) == {}
    ours = cell("ours", 1.0, [(0.5, 1.0)])
    assert set(summary([ours])) == {"steps_ratio_to_teacher"}
    ours["rounds"][-1]["steps"] = None  # of no success
    assert summary([ours]) == {}


def test_marks_that_are_off_cost_what_is_lost_beside_the_same_method():
    made = {"ours": 0.9, "ours_marks_off": 0.88, "by_people": 0.8, "by_people_marks_off": 0.8}
    runs = [cell(method, 1.0, [(success, 1.0)]) for method, success in made.items()]
    assert summary(runs)["marks_off_cost_points"] == pytest.approx(1.0)


def test_minutes_are_compared_over_the_runs_that_both_have():
    runs = [cell("ours", 1.0, [(0.9, minutes)], seed) for seed, minutes in enumerate([4.0, 100.0])]
    assert summary([*runs, cell("hg_dagger", 1.0, [(0.9, 8.0)])])["person_minutes_ratio"] == 0.5


def test_jerk_tells_stops_and_neither_speed_nor_size():
    time = np.linspace(0, 1, 400)[:, None]
    smooth = np.sin(np.pi * time / 2)
    stops = np.repeat(smooth[::40], 40, axis=0)
    assert dimensionless_jerk(3 * smooth) == pytest.approx(dimensionless_jerk(smooth))
    assert dimensionless_jerk(smooth[::2]) == pytest.approx(dimensionless_jerk(smooth), rel=0.05)
    assert dimensionless_jerk(stops) > 10 * dimensionless_jerk(smooth)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_a_run_of_equal_budget(method):
    changes = [change for change in METHODS[method] if not change.startswith("task.demonstration_speed")]
    run = _arguments(PeopleCell("vla_rl/PegInsert-v0", 0, method, "mixed"))
    config = load_config(RunConfig, config_file("algorithms"), [*run[5:], *changes])
    assert config.task.operators == config.takeover.options.operators == tuple(CONDITIONS["mixed"])
    assert config.task.declare.max_episode_steps == LIMITS[config.task.env]
    practiced = config.budget.rounds * config.budget.episodes_per_round
    assert practiced == (0 if method.startswith("sft") else 300)
