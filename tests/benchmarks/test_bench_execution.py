"""The figures of the execution benchmark from cells with known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.cells import Cells
from benchmarks.execution import grid
from benchmarks.execution.grid import DELAYS, POLICY_OF, Cell, execution_of
from benchmarks.execution.motion import Motion
from benchmarks.execution.plots import draw
from benchmarks.execution.summary import as_markdown, summarize
from vla_rl.core.errors import UserError
from vla_rl.core.registry import names
from vla_rl.core.types import Observation, Source, Step

TASK = "vla_rl/PegInsert-v0"


def make_cells(rate: dict[str, float]) -> list[dict[str, Any]]:
    """Success at every delay as given; sync is charged 0.4 s for every tick of delay on top of 4 s an episode."""
    return [
        {
            "kind": "success",
            "task": TASK,
            "strategy": name,
            "delay_ticks": delay,
            "episodes": 200,
            "successes": round(200 * share),
            "simulated_s": 200 * (4 + 0.4 * delay * (name == "sync")),
            "seam_ratio": 2.0,
            "within_ratio": 1.5,
            "jerk_rms": 100.0,
            "measured": {"commit": "abc", "cpu": "a processor"},
        }
        for name, share in rate.items()
        for delay in DELAYS
    ]


@pytest.mark.slow
def test_the_best_is_one_strategy_for_all_delays(tmp_path: Path) -> None:
    cells = make_cells({"sync": 0.9, "naive": 0.8, "rtc": 0.88, "vlash": 0.81})
    result = summarize(cells)
    assert result["best_strategy"] == "rtc"
    assert result["best_minus_sync_points_d4"] == pytest.approx(-2.0)
    assert result["throughput_ratio_d4"] == pytest.approx(0.88 / 0.9 * 5.6 / 4)
    assert result["best_above_naive_at_every_delay"]
    next(cell for cell in cells if cell["strategy"] == "rtc" and cell["delay_ticks"] == 6)["successes"] = 150
    assert not summarize(cells)["best_above_naive_at_every_delay"]
    draw(result, tmp_path)
    first = (tmp_path / "execution-success.svg").read_bytes()
    draw(result, tmp_path)
    assert (tmp_path / "execution-success.svg").read_bytes() == first, "the same figures give the same bytes"


def test_what_was_not_measured_is_said_to_be_so() -> None:
    faults = {"kind": "faults", "trials": 1000, "failed": 1, "measured": {"commit": "abc", "cpu": "a processor"}}
    result = summarize([faults, faults]) | {"machine": {"cpu": "cpu"}, "command": "python -m benchmarks execution"}
    assert (result["fault_trials"], result["fault_trials_failed"]) == (2000, 2)
    text = as_markdown(result)
    assert "of 2,000 | 0 | **2** |" in text
    assert text.count("not measured") == 11


@pytest.mark.slow
def test_every_strategy_is_in_the_grid_and_can_be_executed_at_every_delay() -> None:
    assert set(POLICY_OF) == set(names("strategies"))
    cells = grid.wanted(list(POLICY_OF), DELAYS, ["vla_rl/Handover-v0"], TASK)
    assert len({cell.name for cell in cells}) == len(cells) == len(POLICY_OF) * (len(DELAYS) + 1)
    for cell in cells:
        config = execution_of(cell, (3, 7))
        assert cell.delay_ticks <= config.execute_ticks <= 16 - cell.delay_ticks, "d <= s <= H - d"
    with pytest.raises(UserError, match="Did you mean 'naive'"):
        grid.wanted(["naiv"], DELAYS, [], TASK)
    with pytest.raises(UserError, match="not among 0 to 8"):
        grid.wanted(["naive"], [9], [], TASK)


def test_cells_of_fewer_episodes_are_measured_anew(tmp_path: Path) -> None:
    store, cells = Cells(tmp_path, "settings"), [Cell(TASK, "rtc", delay) for delay in (0, 2, 4)]
    for cell, episodes in zip(cells, (200, 500), strict=False):
        store.write(cell.name, {"kind": "success", "episodes": episodes})
    assert grid.missing(cells, store, 200) == cells[2:]
    assert grid.missing(cells, store, 500) == [cells[0], cells[2]]
    found = make_cells({"sync": 0.9})
    found[2] |= {"episodes": 500, "successes": 450}
    text = as_markdown(summarize(found) | {"machine": {"cpu": "cpu"}, "command": "python -m benchmarks execution"})
    assert "| sync | plain | 200 to 500 | 90.0% [85, 93] |" in text


def test_seams_are_told_from_steps_within_chunks() -> None:
    """Steps of 1 within chunks of 4, a jump of 3 at every seam; the gripper's jumps do not count."""
    motion = Motion((1,), control_hz=10.0)
    place = 0.0
    for tick in range(12):
        place += 3.0 if tick % 4 == 0 else 1.0
        action = np.array([place, 50.0 * tick], np.float32)
        extras = {"chunk_id": tick // 4}
        motion.on_step(Step(Observation({}, action, "", tick), action, action, Source.POLICY, extras=extras))
    found = motion.measures()
    assert (found["median_jump"], found["seam_ratio"], found["within_ratio"]) == pytest.approx((1.0, 3.0, 1.0))
    assert found["jerk_rms"] > 0


def test_a_cell_has_its_name() -> None:
    assert Cell(TASK, "rtc", 4).name == "success-PegInsert-rtc-d4"
