"""Failures are sorted by where the chance of success falls."""

from pathlib import Path

import numpy as np
from run_maker import make_episode, write_trace

from vla_rl.data.store import EpisodeStore
from vla_rl.report.run_episodes import Trace, read_failures


def trace(chance: np.ndarray) -> Trace:
    return Trace("failure", make_episode("round001-00000", len(chance), False), {"viability": chance})


def test_the_fall_is_where_the_chance_halves_for_good() -> None:
    falling = np.where(np.arange(60) < 40, 0.9, 0.05)
    falling[10:14] = 0.1
    assert trace(falling).fall in range(39, 42)
    assert trace(np.full(30, 0.9)).fall == 30, "it never falls"
    assert trace(np.full(30, np.nan)).chance is None


def test_failures_are_those_of_the_newest_round_in_the_order_of_their_falls(tmp_path: Path) -> None:
    store = EpisodeStore(tmp_path / "episodes")
    (tmp_path / "traces").mkdir()
    for name, fall in (("round001-00000", 10), ("round002-00000", 40), ("round002-00001", 20)):
        store.add(make_episode(name, 60, False))
        write_trace(tmp_path, name, 60)
        np.savez(tmp_path / "traces" / f"{name}.npz", viability=np.where(np.arange(60) < fall, 0.9, 0.0))
    found = read_failures(tmp_path / "traces", store)
    assert [each.episode.episode_id for each in found] == ["round002-00001", "round002-00000"]
