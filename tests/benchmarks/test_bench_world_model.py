"""The benchmark world-model gathers the cells that there are and says of the others that they were not measured."""

import argparse
from pathlib import Path

import pytest

from benchmarks import world_gain, world_model
from vla_rl.core.config import read_yaml
from vla_rl.core.errors import UserError
from vla_rl.runs.config_files import config_file


def options(out: Path, *parts: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=out)
    world_model.add_arguments(parser)
    return parser.parse_args(["--parts", *parts] if parts else [])


def test_cells_that_are_there_are_gathered_and_not_measured_again(tmp_path: Path) -> None:
    asked = options(tmp_path, "cost", "judge")
    kept = world_model.open_cells(asked)
    curves = {"true": [2.0, 6.0], "shuffled": [4.0, 12.0], "persistence": [5.0, 24.0], "ratio": [0.5, 0.5]}
    cells = {
        "horizons": {"horizons": [1, 10], "all": curves, "probe_floor_px": {"real_m": 0.2, "reconstruction_m": 0.6}},
        "cost": {"frames_per_s_b1": 90.0, "frames_per_s_b16": 300.0, "late_latency_ratio": 1.01},
        "counterfactuals": {"agreement": 0.9},
        "outcomes": {"all": {"agreement": 0.7}},
    }
    for name, cell in cells.items():
        kept.write(name, cell)
    result = world_model.run(asked)
    assert result["action_error_ratio_h10"] == 0.5
    assert result["persistence_ratio_h10"] == 0.25
    assert result["probe_floor_px"] == 0.6
    assert (result["frames_per_s_b1"], result["counterfactual_agreement"]) == (90.0, 0.9)
    described = {**result, "machine": {"cpu": "a"}, "command": "python -m benchmarks world-model"}
    table = world_model.table(described)
    assert "| counterfactual outcomes that agree | 0.90 | >= 0.85 |" in table
    assert "| outcomes of whole real episodes that agree, open loop | 0.70 |  |" in table
    assert "| gain of imagination, points | not measured | > 0 |" in table


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'judge'"):
        world_model.run(options(tmp_path, "jugde"))
    wrong = options(tmp_path, "gain")
    wrong.variants = ["minus-coevol"]
    with pytest.raises(UserError, match="Did you mean 'minus-coevolution'"):
        world_model.run(wrong)


def test_the_gain_pairs_runs_of_one_task_and_seed(tmp_path: Path) -> None:
    asked = options(tmp_path, "cost")
    kept = world_gain.open_cells(asked)
    successes = {"without": (100, 120), "with": (110, 140), "minus-coevolution": (90, None)}
    for variant, counts in successes.items():
        for seed, count in enumerate(counts):
            cell = {"task": "vla_rl/PegInsert-v0", "seed": seed, "variant": variant, "episodes": 200}
            if count is not None:
                wall_s = 100.0 if variant == "without" else 350.0
                ledger = [{"round": 0, "used": 0}, {"round": 1, "used": 50}, {"round": 2, "used": 50 * seed}]
                cell |= {"successes": count, "wall_s": wall_s, "ledger": ledger}
                kept.write(f"PegInsert-{seed}-{variant}", cell)
    lonely = {
        "task": "vla_rl/LidOnBox-v0",
        "seed": 0,
        "variant": "with",
        "episodes": 200,
        "successes": 200,
        "wall_s": 1.0,
        "ledger": [],
    }
    kept.write("LidOnBox-0-with", lonely)  # has nothing to compare with
    world_model.open_cells(asked).write("cost", {"frames_per_s_b1": 90.0})
    result = world_model.run(asked)
    assert result["imagination_gain_points"] == pytest.approx(7.5)
    assert result["imagination_gain_points_pairs"] == 2
    assert result["gain_points_minus_coevolution"] == pytest.approx(-5.0)
    assert result["gain_wall_ratio"] == pytest.approx(3.5)
    assert result["gain_rounds_used"] == 0.75
    shown = world_model.table({**result, "machine": {"cpu": "a"}, "command": "python -m benchmarks world-model"})
    assert "| gain of imagination, points | 7.50 [5.00, 10.00] of 2 pairs | > 0 |" in shown
    assert world_gain.gain_points([]) == {}


def test_all_variants_of_the_gain_spend_the_same_real_episodes() -> None:
    def spent(changes: list[str]) -> int:
        values = dict(change.split("=", 1) for change in changes)
        near = int(values.get("imagination.near_success_episodes", 0))
        return world_gain._ROUNDS * int(values.get("budget.episodes_per_round", configured)) + near

    configured = read_yaml(config_file("algorithms"))["budget"]["episodes_per_round"]
    assert {spent(changes) for changes in world_gain.VARIANTS.values()} == {world_gain._ROUNDS * configured}
