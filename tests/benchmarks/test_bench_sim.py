"""The benchmark of the simulator: its options, and what it counts."""

import argparse
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import sim as bench
from vla_rl.core.errors import UserError


def options(**changes: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    parsed = parser.parse_args(["--tasks", "vla_rl/PegInsert-v0", "--blocks", "1", "--seeds", "8"])
    return argparse.Namespace(**{**vars(parsed), **changes}, out=Path("unused"))


@pytest.mark.slow
def test_speed_and_skill_of_a_task_are_measured_and_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 10.0, 11.0])  # the environment takes four seconds, bare MuJoCo one
    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=clock.__next__))
    result = bench.run(options())
    (row,), (skill,) = result["rows"], result["skills"]
    assert row["ratio"] == 0.25
    assert row["steps_per_s"] > 0
    assert skill["expert"]["episodes"] == 8
    assert skill["expert"]["successes"] >= 7
    assert 20 < skill["expert"]["mean_steps"] < 100
    rescued, taken_over = skill["supervisor"]["successes"], skill["supervisor"]["episodes"]
    assert 5 <= taken_over <= 8  # a policy that stops fails unless it was about to succeed
    assert rescued >= taken_over - 2
    low, high = skill["expert"]["interval"]
    assert 0.4 < low < high <= 1.0
    text = bench.table({**result, "command": "python -m benchmarks sim", "machine": {"cpu": "Some CPU"}})
    assert f"{rescued}/{taken_over} [" in text
    assert "rescues" not in bench.table({"rows": [row], "command": "", "machine": {"cpu": ""}})


@pytest.mark.parametrize("name", ["blocks", "seeds"])
def test_nothing_to_measure_is_one_clear_error(name: str) -> None:
    with pytest.raises(UserError, match=f"--{name} is 0"):
        bench.run(options(**{name: 0}))


def test_an_unknown_task_is_named() -> None:
    with pytest.raises(UserError, match="Did you mean 'vla_rl/PegInsert-v0'"):
        bench.run(options(tasks=["vla_rl/PegInser-v0"]))
