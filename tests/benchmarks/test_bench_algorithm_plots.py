from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from benchmarks.algorithm_plots import pooled_curve, save_algorithm_plot
from benchmarks.pictures.plotting import POLICY
from vla_rl.core.errors import UserError


def cell(algorithm: str, seed: int, rates: list[float], **changes: Any) -> dict[str, Any]:
    rounds = [{"round": i, "successes": round(100 * rate), "episodes": 100} for i, rate in enumerate(rates)]
    whole = {"task": "vla_rl/PegInsert-v0", "seed": seed, "algorithm": algorithm, "rounds": rounds, "episodes": 100}
    whole |= {"length_given_success": 55.0, "sft_length_given_success": 60.0, "successes": rounds[-1]["successes"]}
    return whole | changes


def test_curves_pool_the_seeds_that_have_the_round():
    rounds, rates = pooled_curve([cell("habc", 0, [0.2, 0.6, 0.8]), cell("habc", 1, [0.4, 0.6])])
    assert rounds.tolist() == [0, 1, 2]
    np.testing.assert_allclose(rates, [0.3, 0.6, 0.8])
    without = cell("habc", 2, [0.5])
    del without["rounds"]
    assert pooled_curve([without])[0].size == 0


@pytest.mark.slow
def test_missing_cells_rounds_and_lengths_leave_gaps(tmp_path: Path):
    without = cell("awr", 0, [0.3])
    del without["rounds"]
    cells = [
        cell("habc", 0, [0.1, 0.5], task="vla_rl/Handover-v0"),
        cell("habc", 0, [0.3, 0.9]),
        cell("habc", 1, [0.3, 0.8]),
        without,
        cell("sft", 0, [0.3, 0.0], length_given_success=None),
    ]
    file = save_algorithm_plot(cells, tmp_path / "images" / "algorithms.svg")
    words = [element.text for element in ElementTree.parse(file).iter() if element.tag.endswith("}text")]
    assert [word for word in words if word and word.startswith("vla_rl/")] == [
        "vla_rl/PegInsert-v0: success",
        "vla_rl/Handover-v0: success",
    ]
    assert {"habc, 2 seeds", "habc, 1 seed", "awr, 1 seed", "sft, 1 seed"} <= set(words), "each task has a row"
    assert f"--c{POLICY[1:]}: {POLICY}" in file.read_text(), "ours is drawn in its color"


def test_a_place_that_cannot_be_written_is_one_clear_error(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write the picture"):
        save_algorithm_plot([cell("habc", 0, [0.5])], tmp_path / "file" / "x.svg")
