"""The known benchmarks: one protocol for all methods, and figures that are only there where they were measured."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from benchmarks import known
from benchmarks.known import OURS, TASKS, figures, table
from benchmarks.runs import Cell
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.core.errors import UserError
from vla_rl.report.run_files import Evaluation, Run
from vla_rl.training.config import RunConfig

CPU = {"measured": {"cpu": "a processor", "commit": "abc"}}


def cell(task: str, method: str = OURS, after: float = 0.9, plain: float | None = 0.8, **other: Any) -> dict[str, Any]:
    def point(episodes: int, success: float) -> dict[str, Any]:
        steps = 200 * episodes
        return {
            "practice_episodes": episodes,
            "environment_steps": steps,
            "samples": steps // TASKS[task].action_repeat,
            "success": success,
        }

    return {
        "task": task,
        "seed": 0,
        "method": method,
        "demonstrations": 3,
        "evaluation_episodes": 100,
        "supervised": {"success": 0.5},
        "practised": {"success": after},
        "parts": {} if plain is None else {"plain policy": plain, "policy + residual": plain},
        "curve": [point(0, 0.5), point(300, 0.7), point(450, after)],
        "wall_s": 1800,
        **CPU,
        **other,
    }


@pytest.mark.parametrize("task", TASKS)
def test_every_method_has_the_protocol_of_the_task(task: str) -> None:
    for method in known._METHODS:
        verb, *changes = known._arguments(Cell(task, 1, method), [])
        preset, seed = changes.index("--config"), changes.index("--seed")
        assert (verb, changes[preset + 1], changes[seed + 1]) == ("train", "alone", "1")
        config = load_config(RunConfig, config_file("alone"), [change for change in changes if "=" in change])
        budget = config.budget
        if method == OURS or TASKS[task].has_rivals:
            assert budget.rounds * budget.real_per_round == 150 * TASKS[task].rounds
        assert (budget.demonstrations, config.task.env) == (TASKS[task].demonstrations, task)
        assert not config.takeover.enabled
        assert config.task.kwargs == {"pictures": False}


def test_episodes_of_a_comparison_are_practice_too() -> None:
    def record(kind: str, number: int, episodes: int) -> dict[str, Any]:
        return {"kind": kind, "round": number, "step": 100 * number, "episodes": episodes, "mean_length": 10.0}

    metrics = [record("collect", 0, 8), *(record("collect", n, 118) for n in (1, 2)), record("compare", 1, 32)]
    evaluated = [Evaluation(number, "", None, None, 3, 10, None, None, {}, {}) for number in (0, 1, 2)]
    run = Run(Path("run"), "", {}, {}, evaluated, [], metrics, [])
    curve = known._curve(run, 2)
    assert [point["practice_episodes"] for point in curve] == [0, 150, 150 + 118]
    assert [point["samples"] for point in curve] == [0, 750, 750 + 590]


def test_a_figure_stands_for_all_of_its_tasks_or_is_left_out() -> None:
    four = [f"vla_rl/MetaWorld{name}-v0" for name in ("Assembly", "BoxClose", "CoffeePush", "StickPull")]
    found = figures([cell(task) for task in four[:3]])
    assert "metaworld_ibrl_four_mean" not in found
    assert "critic_gain_points_long" not in found
    assert (found["tasks_made_worse"], found["hours_per_seed_max"]) == (0, 0.5)
    # 450 episodes took 45,000 samples: more than IBRL's 40,000. The policy after 300 episodes counts.
    found = figures([cell(task) for task in four])
    assert found["metaworld_ibrl_four_mean"] == pytest.approx(0.7)
    square = "robosuite/NutAssemblySquare-v0"
    found = figures([*(cell(task) for task in four), cell(square, after=0.6, plain=0.65), cell(square, seed=1)])
    assert found["critic_gain_points_long"] == pytest.approx((4 * 10 + 2.5) / 5)
    assert found["critic_harm_points_max"] == pytest.approx(-2.5)
    assert found["robosuite_square"] == pytest.approx(0.75)
    assert "robosuite_can" not in found


def test_rivals_are_compared_run_by_run() -> None:
    tasks = ["robosuite/PickPlaceCan-v0", "robosuite/NutAssemblySquare-v0"]
    rivals = [cell(task, "filtered_bc", after=rate, plain=None) for task, rate in zip(tasks, (0.7, 0.8), strict=True)]
    found = figures([*(cell(task) for task in tasks), *rivals])
    assert found["points_over_best_rival"] == pytest.approx(15)
    assert "p_against_best_rival" not in found, "of two runs"
    third = [cell(tasks[0], seed=1), cell(tasks[0], "filtered_bc", seed=1, after=0.75, plain=None)]
    assert 0 < figures([*(cell(task) for task in tasks), *rivals, *third])["p_against_best_rival"] < 1
    worse = figures([cell(tasks[0], after=0.4)])
    assert (worse["tasks_made_worse"], worse["critic_harm_points_max"]) == (1, pytest.approx(40))


def test_the_table_names_the_differences_to_published_figures() -> None:
    shown = table({"cells": [cell("vla_rl/MetaWorldBoxClose-v0")], "command": "python -m benchmarks known"})
    assert "| vla_rl/MetaWorldBoxClose-v0 | 3 | `alone` | 1 | 50% [40, 60] | 300: 70%, **90% [83, 94]** " in shown
    assert "| 80%, 80%, 90% | 90k (45k) |" in shown
    assert "action repeat 2" in shown
    both = [cell("vla_rl/MetaWorldBoxClose-v0"), cell("vla_rl/MetaWorldBoxClose-v0", seed=1, after=0.7, plain=None)]
    assert "| 75%, 75%, 80% | 90k (45k) |" in table({"cells": both, "command": ""}), "one seed acts without a residual"
    assert table({"cells": []}) == "Not measured yet."


def test_seeds_that_share_their_starts_do_not_narrow_the_interval() -> None:
    one, three = (
        table({"cells": [cell("vla_rl/MetaWorldBoxClose-v0", seed=seed) for seed in range(seeds)], "command": ""})
        for seeds in (1, 3)
    )
    assert "| 1 | 50% [40, 60] | 300: 70%, **90% [83, 94]** " in one
    assert "| 3 | 50% [40, 60] | 300: 70%, **90% [83, 94]** " in three


def test_a_cell_of_another_protocol_is_refused(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parser = argparse.ArgumentParser()
    known.add_arguments(parser)
    options = parser.parse_args(["--gather", "--runs", str(tmp_path)])
    options.out = tmp_path / "results"
    task = "robosuite/Lift-v0"
    measured = {**cell(task), "arguments": known._arguments(Cell(task, 0, OURS), [])}
    known.open_cells(options.out).write(f"Lift-0-{OURS}", measured)
    assert known.run(options)["robosuite_lift"] == 0.9
    assert (tmp_path / "images" / "known.svg").exists()
    monkeypatch.setitem(TASKS, task, known.Protocol(20))
    with pytest.raises(UserError, match="another protocol"):
        known.run(options)
