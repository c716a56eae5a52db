"""The curves of methods whose rounds are of different length are of the same episodes."""

import pytest

from benchmarks.outcomes import after_each_third, summary
from benchmarks.practices import METHODS
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.training.config import RunConfig


def test_a_curve_is_read_after_each_third_of_the_rounds() -> None:
    assert after_each_third([{"round": number} for number in range(1, 10)]) == [
        {"round": 3},
        {"round": 6},
        {"round": 9},
    ]
    assert after_each_third([{"round": number} for number in range(1, 4)]) == [{"round": 1}, {"round": 2}, {"round": 3}]


def test_every_method_has_as_many_episodes_and_rounds_that_thirds_can_be_made_of() -> None:
    for name, changes in METHODS.items():
        budget = load_config(RunConfig, config_file("imagined"), changes).budget
        asked = 1200 if name.endswith("_1200") else 450
        assert budget.rounds * budget.episodes_per_round == (0 if name == "sft" else asked)
        assert budget.rounds % 3 == 0 or name.endswith("_1200")


def test_the_twin_without_imagination_teaches_as_ours_does() -> None:
    ours, twin = (
        load_config(RunConfig, config_file("imagined"), METHODS[name]) for name in ("imagined_edit", "unimagined")
    )
    for name in ("distill_steps", "actor", "mixture", "credit", "critic", "critic_training", "discount"):
        assert getattr(twin.learning, name) == getattr(ours.learning, name), name
    assert (twin.budget, twin.exploration) == (ours.budget, ours.exploration)


def test_other_tasks_are_kept_apart_from_the_default_one() -> None:
    def cell(task: str, method: str, before: float, after: float) -> dict[str, object]:
        ends = {"supervised": {"success": before, "steps": 50.0}, "practised": {"success": after, "steps": 40.0}}
        return {"task": f"vla_rl/{task}-v0", "seed": 0, "method": method, **ends}

    found = summary(
        [
            cell("PegInsert", "imagined_edit", 0.5, 0.9),
            cell("PegInsert", "imagined_edit_1200", 0.5, 0.95),
            cell("Handover", "imagined_edit", 0.5, 0.6),
            cell("Handover", "imagined_edit_1200", 0.5, 0.8),
            cell("LidOnBox", "imagined_edit_1200", 0.5, 0.4),
        ]
    )
    assert (found["without_person_450"], found["without_person_1200"]) == (0.9, 0.95)
    assert found["mean_gain_other_tasks_points"] == pytest.approx(10)
    assert found["least_gain_other_tasks_points"] == pytest.approx(-10)
    assert found["mean_gain_other_tasks_450_points"] == pytest.approx(10)
