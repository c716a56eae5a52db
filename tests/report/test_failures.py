"""Failures are grouped by where the chance of success falls."""

import numpy as np
from run_maker import make_episode

from vla_rl.report.failures import group_failures, step_of_fall, summary
from vla_rl.report.run_episodes import Trace


def falling(step: int, length: int = 60, high: float = 0.9, low: float = 0.05) -> np.ndarray:
    return np.where(np.arange(length) < step, high, low)


def trace(episode_id: str, chance: np.ndarray) -> Trace:
    return Trace("failure", make_episode(episode_id, len(chance), False), {"viability": chance})


def test_the_fall_is_where_the_chance_halves_for_good() -> None:
    dip = falling(40)
    dip[10:14] = 0.1
    assert step_of_fall(dip) in range(39, 42)
    assert isinstance(step_of_fall(np.full(30, 0.1)), str), "it was never high"
    assert isinstance(step_of_fall(np.full(30, 0.9)), str), "it never falls"


def test_groups_are_narrow_and_the_largest_is_first() -> None:
    steps = (20, 50, 23, 21)
    traces = [trace(f"round001-{index:05d}", falling(step)) for index, step in enumerate(steps)]
    unknown = Trace("failure", make_episode("round001-00009", 60, False), {"value": np.zeros(60)})
    groups = group_failures([*traces, unknown, trace("round001-00008", np.full(60, np.nan))])
    assert [[each.episode.episode_id[-1] for each in group.traces] for group in groups] == [["0", "3", "2"], ["1"]]
    assert "3 of 4 failures" in summary(groups)
    assert group_failures([]) == []
