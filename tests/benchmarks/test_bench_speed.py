"""Ratios of rounds, and success against the published runs of the same seeds."""

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks import speed, speed_round
from vla_rl.core.config import load_config
from vla_rl.core.config_files import config_file
from vla_rl.training.config import RunConfig
from vla_rl.training.rounds import PracticeRun

TINY = (
    "task.declare.max_episode_steps=60",
    "budget.demonstrations=2",
    "budget.supervised_steps=20",
    "budget.episodes_per_round=6",
    "budget.evaluation_episodes=2",
    "budget.steps_per_round=8",
    "environments_per_worker=2",
    "supervised.actor.batch_size=8",
    "learning.actor.batch_size=8",
    "learning.distill_steps=4",
    "learning.dynamics.steps=4",
    "learning.value.steps=4",
    "learning.branches.updates=1",
    "learning.branches.branches=8",
)


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


@pytest.mark.slow
def test_a_round_on_another_device_is_timed_stage_by_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On the processor and tiny, since not every machine has another device."""

    def tiny_round(checkout: Path, *changes: str) -> dict[str, Any]:
        assert changes == ("device=cpu",)
        return speed_round.main(tmp_path / "run", checkout / "configs" / "imagined.yaml", [*TINY, *changes])

    monkeypatch.setattr(speed, "_round", tiny_round)
    for owner, name in [*speed_round._PARTS, (PracticeRun, "_do")]:
        monkeypatch.setattr(owner, name, getattr(owner, name))  # brings back what `main` wraps
    found = speed.round_on("cpu")
    assert found["device"] == "cpu"
    assert found["stages_s"]["practice 1"] >= found["stages_s"]["distill"] > 0
    assert found["chunks_per_s"] > 0


def test_a_program_is_timed_on_the_cores_that_it_was_given() -> None:
    core = min(os.sched_getaffinity(0))
    program = f"import os, time; assert os.sched_getaffinity(0) == {{{core}}}; time.sleep(0.2)"
    assert 0.2 < speed.wall_s([core], "-c", program) < 60
    with pytest.raises(RuntimeError, match="no such round"):
        speed.wall_s([core], "-c", "raise SystemExit('no such round')")


def test_what_a_second_core_adds_is_the_ratio_of_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []

    def wall_s(cores: list[int], *order: str) -> float:
        orders.append((cores, load_config(RunConfig, config_file("alone"), [each for each in order if "=" in each])))
        return 300.0 if len(orders) == 1 else 200.0

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(speed, "wall_s", wall_s)
    found = speed.on_all_cores()
    assert [cores for cores, _ in orders] == [[0], [0, 1]]
    assert [config.torch_threads for _, config in orders] == [1, 2]
    assert [config.budget.rounds for _, config in orders] == [1, 1]
    assert found["learner_ratio"] == pytest.approx(0.75)
    shown = speed.table({**found, "commands": {}, "command": "speed --cores"})
    assert "A round of `alone` takes 300 s on one core and 200 s on 2." in shown
