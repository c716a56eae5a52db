"""The comparison of algorithms: what it makes of the cells that there are."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import algorithms as bench
from vla_rl.cli import train
from vla_rl.cli.main import main
from vla_rl.cli.run_arguments import asked_config
from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.training.config import RunConfig


def options(out: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return argparse.Namespace(**vars(parser.parse_args(words)), out=out)


def a_cell(algorithm: str, seed: int, successes: int, length: float | None) -> dict[str, Any]:
    rounds = [{"round": 0, "successes": 30, "episodes": 100}, {"round": 1, "successes": successes, "episodes": 100}]
    cell: dict[str, Any] = {"task": bench.DEFAULT_TASK, "seed": seed, "algorithm": algorithm, "successes": successes}
    cell["settings"] = bench.ALGORITHMS[algorithm]
    cell |= {"episodes": 100, "success": successes / 100, "length_given_success": length, "rounds": rounds}
    cell |= {"sft_length_given_success": 60.0, "episodes_to_80": 58 if successes >= 80 else None}
    cell |= {"length_of_all": 90.0, "sft_length_of_all": 100.0}
    cell["length_of_all"] = 120.0 - successes / 2
    return cell | {"length_minus_sft_where_both_solve": length and length - 63.0}


@pytest.mark.slow
def test_gathering_compares_the_seeds_that_both_have(tmp_path: Path) -> None:
    out = tmp_path / "results"
    measured = [a_cell("sft", 7, 0, None)]  # no habc of that seed, and no success to be timed
    for seed, (ours, theirs) in enumerate([(90, 60), (85, 55), (88, 62)]):
        measured += [a_cell("habc", seed, ours, 52.0 + seed), a_cell("awr", seed, theirs, 61.0)]
    cells = bench.open_cells(out)
    for cell in measured:
        cells.write(f"{cell['algorithm']}-{cell['seed']}", cell)
    result = bench.run(options(out, "--gather"))
    assert len(result["cells"]) == 7
    assert result["pooled_p_vs_habc"].keys() == {"awr"}
    assert result["pooled_p_vs_habc"]["awr"] < 1e-9
    more = result["minus_habc"]["awr"]
    assert more["runs"] == 3
    assert more["success_points"]["mean"] == pytest.approx(-(30 + 30 + 26) / 3)
    assert more["success_points"]["p"] == pytest.approx(0.0022, abs=5e-5)  # t = 28.667 / 1.3333, 2 degrees of freedom
    assert more["steps"]["mean"] == pytest.approx((15 + 15 + 13) / 3)
    change = result["length_minus_sft"]
    given = change["habc"]["given_success"]
    assert given["mean"] == pytest.approx(-7.0)
    assert -8.0 <= given["interval"][0] < given["interval"][1] <= -6.0
    assert change["habc"]["where_both_solve"]["mean"] == pytest.approx(-10.0)
    assert change["habc"]["all_episodes"]["mean"] == pytest.approx((75.0 + 77.5 + 76.0) / 3 - 100.0)
    assert change["sft"]["given_success"] is change["sft"]["where_both_solve"] is None
    assert (tmp_path / bench.PICTURE).exists()
    text = bench.table({**result, "command": "python -m benchmarks algorithms", "machine": {"cpu": "Some CPU"}})
    assert "| habc | 3 | 87.7% [83, 91] | 60 -> 53 | -10.0 | 100 -> 76 | 58, 58, 58 |  |  |" in text
    row = next(line for line in text.splitlines() if "| awr |" in line)
    assert row.endswith("| -28.7 (p = 0.0022) | +14.3 (p = 0.0022) |")
    assert "| sft | 1 | 0.0% [0, 4] | 60 -> - | - | 100 -> 120 | - |" in text


def test_steps_are_compared_on_the_seeds_that_both_policies_solve(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "evaluation")
    outcomes = {0: [(50, True), (60, True), (80, False)], 2: [(44, True), (80, False), (70, True)]}
    for version, episodes in outcomes.items():
        for index, (length, success) in enumerate(episodes):
            name, image = f"v{version:04d}-{index:06d}", np.zeros((length, 4, 4, 3), np.uint8)
            columns = [np.zeros((length, 2), np.float32)] * 3
            labels = (success, success, Origin.SIM, version, 100 + index, 20.0, "tiny")
            store.add(Episode(name, {"front": image}, *columns, np.zeros(length, np.uint8), "push", *labels))
    found = bench._lengths(tmp_path, version=2)
    assert found["length_minus_sft_where_both_solve"] == -6.0
    assert (found["sft_length_of_all"], found["length_of_all"]) == (pytest.approx(190 / 3), pytest.approx(194 / 3))
    low, high = found["length_interval"]
    assert 44 <= low < 57 < high <= 70


@pytest.mark.slow
def test_every_cell_is_a_command_that_train_understands(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The grid's own command lines, read by the verb's own parser."""
    asked: dict[str, RunConfig] = {}

    class Read:
        def __init__(self, arguments: Sequence[str], folder: Path) -> None:
            with monkeypatch.context() as patched:
                patched.setattr(train, "run", lambda own: asked.update({folder.name: asked_config(own)}) or 0)
                assert main([*arguments]) == 0

        def wait_or_fail(self) -> float:
            return 0.0

    monkeypatch.setattr(bench, "run_verb", Read)
    for name in bench.ALGORITHMS:
        with pytest.raises(FileNotFoundError):  # nothing was run
            bench._run_cell(bench.Cell("vla_rl/Handover-v0", 3, name), tmp_path)
    assert {config.algorithm for config in asked.values()} == bench.ALGORITHMS.keys() - {"habc_paper"}
    assert {(config.task.env, config.seed) for config in asked.values()} == {("vla_rl/Handover-v0", 3)}
    (paper,) = (config.learning for name, config in asked.items() if name.startswith("Handover-3-habc_paper-"))
    assert len(asked) == len(bench.ALGORITHMS), "every variant has a run folder of its own"
    assert (paper.credit.rule, paper.advantage.advantage_horizon) == ("paper", 1)


def test_nothing_to_gather_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no cells"):
        bench.run(options(tmp_path, "--gather"))


@pytest.mark.slow
def test_a_cell_of_another_variant_is_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = bench.open_cells(tmp_path / "results")
    for algorithm in ("habc", "awr"):
        cells.write(algorithm, a_cell(algorithm, 0, 80, 52.0))
    monkeypatch.setitem(bench.ALGORITHMS, "new", ["algorithm=habc"])
    assert len(bench.run(options(tmp_path / "results", "--gather"))["cells"]) == 2
    monkeypatch.setitem(bench.ALGORITHMS, "awr", ["learning.awr.temperature=1"])
    with pytest.raises(UserError, match=r"awr\.json was measured with \['algorithm=awr'\], now awr is \['learning.awr"):
        bench.run(options(tmp_path / "results", "--gather"))


def test_an_unknown_algorithm_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'habc'"):
        bench.run(options(tmp_path, "--algorithms", "habcc"))
