"""Films of branches: what the model of each round predicts."""

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.training.branch_film import film_branches, played_after

TINY = ("--config", "tiny", "algorithm=imagined_edit", "takeover={enabled: false}", "exploration=0.1")
PARTS = "dynamics: {steps: 5}, value: {steps: 5}, branches: {updates: 2, branches: 16}"
LEARNING = f"learning={{distill_steps: 2, actor: {{batch_size: 8}}, {PARTS}}}"


@pytest.mark.slow
def test_a_round_is_filmed_as_it_was_when_it_ended(tmp_path: Path) -> None:
    run = tmp_path / "run"
    film = functools.partial(film_branches, run, episodes=1, start=1, chunks=2)
    train = ["train", *TINY, LEARNING, "budget.steps_per_round=5", "--out", str(run)]
    assert main([*train, "budget.rounds=0"]) == 0
    with pytest.raises(UserError, match="no policy of a whole round yet; leave --every-round out"):
        film(every_round=True)
    assert main(["train", "--resume", str(run), "budget.rounds=1"]) == 0
    (at_its_end,) = film().clips
    assert main(["train", "--resume", str(run), "budget.rounds=2"]) == 0
    first, second = film(every_round=True).clips
    assert np.array_equal(first, at_its_end), "the first film knows nothing of the second round"
    assert not np.array_equal(second, first)
    assert first.shape == second.shape


def test_episodes_of_later_rounds_are_left_out_also_where_an_older_policy_played_them() -> None:
    played = {"demo-00000": -1, "round001-00000": 0, "round002-00000": 0, "round003-00000": 1, "check001-00000": 1}
    episodes: Any = [SimpleNamespace(episode_id=name, policy_version=version) for name, version in played.items()]

    def left_out(number: int) -> list[str]:
        return [each.episode_id for each in played_after(episodes, number)]

    assert left_out(1) == ["round002-00000", "round003-00000", "check001-00000"]
    assert left_out(2) == ["round003-00000"]
    assert left_out(3) == []
