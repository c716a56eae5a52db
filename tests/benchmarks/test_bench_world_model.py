"""The benchmark world-model gathers the cells that there are and says of the others that they were not measured."""

import argparse
from pathlib import Path

import pytest

from benchmarks import world_model
from vla_rl.core.errors import UserError


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
    assert "| the same without near successes | not measured | lower |" in table


def test_unknown_parts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'judge'"):
        world_model.run(options(tmp_path, "jugde"))
