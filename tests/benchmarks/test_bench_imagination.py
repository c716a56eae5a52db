"""What the pairs of runs with and without imagination say."""

import numpy as np
import pytest

from benchmarks.imagination import Pair, find_twins


def cell(method: str, seed: int, curve: list[float]) -> dict:
    return {
        "task": "a",
        "seed": seed,
        "method": method,
        "curve": curve,
        "supervised": {"success": 0.5},
        "practice_episodes": 300,
        "cpu_s": 60.0,
    }


def test_only_runs_with_a_twin_are_pairs() -> None:
    cells = [
        cell("untaught", 0, [0.7, 0.9]),
        cell("chunk_critic", 0, [0.6, 0.7]),
        cell("untaught", 1, [0.7, 0.9]),
        cell("filtered_bc", 1, [0.6, 0.7]),
    ]
    (pair,) = [Pair.of(*both) for both in find_twins(cells, "untaught", "chunk_critic")]
    assert (pair.name, pair.start, pair.episodes) == ("a, seed 0", 0.5, 150)
    assert [pair.gain(after) for after in (0, 1, -1)] == pytest.approx([0.1, 0.2, 0.2])
    assert pair.cpu_s == (60.0, 60.0)


@pytest.mark.parametrize(
    ("curve", "episodes"),
    [([0.8, 0.9], 150), ([0.65, 0.95], 225), ([0.6, 0.7], 300), ([0.9, 0.9], 150 * 0.3 / 0.4)],
)
def test_episodes_to_eighty_percent_lie_on_straight_lines(curve: list[float], episodes: float) -> None:
    pair = Pair("a", 0.5, (curve, [0.5, 0.5]), (1, 1), 150)
    np.testing.assert_allclose([pair.episodes_to_goal(0), pair.episodes_to_goal(1)], [episodes, 300])
