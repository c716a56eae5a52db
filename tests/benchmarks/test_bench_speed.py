"""Ratios of rounds, and success against the published runs of the same seeds."""

import pytest

from benchmarks import speed


def _pair(before: float, now: float) -> dict[str, dict[str, float]]:
    return {when: dict.fromkeys(speed._RATIOS.values(), value) for when, value in (("before", before), ("now", now))}


def test_ratios_are_of_pairs_and_say_their_range() -> None:
    found = speed.ratios([_pair(10, 5), _pair(10, 7), _pair(100, 60)])
    assert found["practice_round_cpu_ratio"] == pytest.approx(0.6)
    assert found["practice_round_cpu_ratio_range"] == pytest.approx([0.5, 0.7])
    assert speed.ratios([]) == {}


def test_success_compares_the_same_tasks_and_seeds_only() -> None:
    def cell(seed: int, method: str, *curve: float) -> dict[str, object]:
        return {"task": "a", "seed": seed, "method": method, "supervised": {"success": curve[0]}, "curve": curve[1:]}

    cells = [cell(0, "half_draws", 0.5, 0.8, 0.7), cell(0, "imagined_edit", 0.5, 0.7, 0.8)]
    cells += [cell(1, "half_draws", 0.5, 0.6, 0.9), cell(1, "imagined_edit", 0.5, 0.7, 0.6)]
    cells += [cell(2, "half_draws", 0.9, 0.9, 0.9)]  # nothing is published of it
    found = speed.success(cells)
    assert found["success_difference_points"] == pytest.approx(10)
    assert (found["rounds_made_worse"], found["rounds_made_worse_before"]) == (1, 1)
    assert found["success_runs"] == [["a", 0], ["a", 1]]
    assert speed.success(cells[-1:]) == {}
