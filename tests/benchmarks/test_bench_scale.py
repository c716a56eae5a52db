"""What scale.json says of cells that alternate between two ways."""

import pytest

from benchmarks import scale_async, scale_demo


def test_the_demo_is_compared_seed_by_seed() -> None:
    cells = [
        {"seed": 0, "before_s": 100.0, "now_s": 60.0, "before_success": 0.9, "now_success": 0.95},
        {"seed": 1, "before_s": 400.0, "now_s": 320.0, "before_success": 0.9, "now_success": 0.81},
    ]
    found = scale_demo.keys(cells)
    assert found == {
        "demo_wall_ratio": pytest.approx(0.7),
        "demo_success_points": pytest.approx(-2.0),
        "demo_seeds": 2,
    }
    assert "| 1 | 90.0% | 81.0% | 400 -> 320 |" in scale_demo.table(cells)


def test_turns_are_compared_seed_by_seed() -> None:
    cells = [
        {"seed": 0, "rounds_s": 100.0, "async_s": 50.0, "rounds_success": 0.9, "async_success": 0.95},
        {"seed": 1, "rounds_s": 100.0, "async_s": 100.0, "rounds_success": 0.9, "async_success": 0.81},
    ]
    found = scale_async.keys(cells)
    assert found["async_speedup"] == pytest.approx(1.5)
    assert found["async_vs_rounds_success_points"] == pytest.approx(-2.0)


def test_cells_that_were_not_run_have_no_keys() -> None:
    assert scale_demo.keys([]) == scale_async.keys([]) == {}
