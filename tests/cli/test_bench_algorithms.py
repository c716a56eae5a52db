"""The comparison of algorithms: what it makes of the cells that there are."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from vla_rl.cli.benchmarks import algorithms as bench
from vla_rl.core.errors import UserError


def options(out: Path, *words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return argparse.Namespace(**vars(parser.parse_args(words)), out=out)


def a_cell(algorithm: str, seed: int, successes: int, length: float | None) -> dict[str, Any]:
    rounds = [{"round": 0, "successes": 30, "episodes": 100}, {"round": 1, "successes": successes, "episodes": 100}]
    cell: dict[str, Any] = {"task": bench.DEFAULT_TASK, "seed": seed, "algorithm": algorithm, "successes": successes}
    cell |= {"episodes": 100, "success": successes / 100, "length_given_success": length, "rounds": rounds}
    return cell | {"sft_length_given_success": 60.0, "episodes_to_80": 58 if successes >= 80 else None}


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
    change = result["length_minus_sft"]
    assert change["habc"]["mean"] == pytest.approx(-7.0)
    assert -8.0 <= change["habc"]["interval"][0] < change["habc"]["interval"][1] <= -6.0
    assert "sft" not in change
    assert (tmp_path / bench.PICTURE).exists()
    text = bench.table({**result, "command": "vla-rl bench algorithms", "machine": {"cpu": "Some CPU"}})
    assert "| habc | 3 | 87.7% [83, 91] | 60 -> 53 | 58, 58, 58 |" in text
    assert "| sft | 1 | 0.0% [0, 4] | 60 -> - | - |" in text


def test_nothing_to_gather_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no cells"):
        bench.run(options(tmp_path, "--gather"))


def test_an_unknown_algorithm_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'habc'"):
        bench.run(options(tmp_path, "--algorithms", "habcc"))
