"""Films of branches: what the model of each round predicts."""

import functools
from pathlib import Path

import numpy as np
import pytest

from vla_rl.cli.main import main
from vla_rl.core.errors import UserError
from vla_rl.training.branch_film import film_branches

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
