"""The truth of the oracle ladder is what really happened."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.ladder import ABLATIONS, RUNGS, Simulator, TrueDynamics, open_cells, table
from tests.algorithms.tiny_world import MIXED, make_model, tiny
from vla_rl.acting.task import open_robot
from vla_rl.algorithms.imagined_edit import ImaginedEdit
from vla_rl.core.errors import UserError
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.training.algorithms import make_algorithm
from vla_rl.training.config import TaskConfig

TICKS = 6


def look(images: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """Features that no two observations share."""
    means = [image.float().mean((1, 2)) for image in images.values()]
    return torch.cat([state, *means], 1)


def test_a_branch_with_the_commands_that_were_sent_goes_where_the_episode_went() -> None:
    robot = open_robot(TaskConfig(env="vla_rl/PegInsert-v0", difficulty=0.4))
    robot.reset(3)
    random, seen, commands, features = np.random.default_rng(0), [], [], []
    for _ in range(3 * TICKS):
        observation = robot.read()
        seen.append(observation.state)
        images = {name: torch.from_numpy(image)[None] for name, image in observation.images.items()}
        features.append(look(images, torch.from_numpy(observation.state)[None])[0])
        commands.append(observation.state + random.normal(0, 0.01, 8).astype(np.float32))
        robot.write(commands[-1])
    rows, sent = torch.stack(features), np.stack(commands)
    simulator = Simulator(robot, look)
    simulator.remember(3, sent, np.stack(seen), rows)

    begin = torch.tensor([0, TICKS])
    chunks = torch.from_numpy(np.stack([sent[:TICKS], sent[TICKS : 2 * TICKS]]))
    after, success = simulator.step(rows[begin], chunks, torch.zeros(2, dtype=torch.int64))
    torch.testing.assert_close(after, rows[begin + TICKS])
    assert success.tolist() == [0.0, 0.0]
    further, _ = simulator.step(after[:1], chunks[1:], torch.zeros(1, dtype=torch.int64))  # from where a branch came to
    torch.testing.assert_close(further[0], rows[2 * TICKS])
    other, _ = simulator.step(rows[begin], chunks + 0.02, torch.zeros(2, dtype=torch.int64))
    assert not torch.allclose(other, after)

    with pytest.raises(UserError, match="goes another way at step 1"):
        simulator.remember(3, sent[::-1].copy(), np.stack(seen), rows)


def learner(rung: str, folder: Path) -> ImaginedEdit:
    store = EpisodeStore(folder / "store")
    for episode in MIXED:
        store.add(episode)
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    _, (option,) = (RUNGS | ABLATIONS)[rung]
    name = option.removeprefix("algorithm=")
    found = make_algorithm(name, tiny(name), make_model(), cache, 0)
    assert isinstance(found, ImaginedEdit)
    found.begin_round(cache, 1)
    return found


class Counting:
    """A truth in which features count chunks, and all succeed."""

    def step(self, features: torch.Tensor, chunks: torch.Tensor, member: torch.Tensor):
        del chunks, member
        return features + 1, torch.ones(len(features))


def test_dynamics_and_pictures_are_true_and_success_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrueDynamics, "_simulator", lambda self: Counting())
    algorithm, generator = learner("true_dynamics_learnt_success", tmp_path), torch.Generator().manual_seed(0)
    fitted = algorithm.fit_world(generator)
    seen, member = fitted.starts.features[:4], torch.arange(4) % 2
    world = algorithm.world(fitted, generator)
    chunk = world.draw(seen)
    later, success = world.step(seen, chunk, member)
    assert torch.equal(later, seen + 1)
    assert torch.equal(success, ImaginedEdit.world(algorithm, fitted, generator).step(seen, chunk, member)[1])
    assert TrueDynamics.world(algorithm, fitted, generator).step(seen, chunk, member)[1].tolist() == [1.0] * 4


def test_without_failures_the_dynamics_miss_them_and_branches_begin_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = learner("no_failures", tmp_path)
    taught, made = [], []

    def fit(data, config, generator):
        taught.append(data)
        made.append(object())
        return made[-1]

    monkeypatch.setattr("benchmarks.ladder.fit_dynamics", fit)
    fitted = algorithm.fit_world(torch.Generator().manual_seed(0))
    whole = ImaginedEdit.fit_world(algorithm, torch.Generator().manual_seed(0))
    assert fitted.dynamics is made[0]
    failed = {"round-1", "round-3"}
    left = [e for e in algorithm.data.cache.episodes if e.episode_id not in failed]
    rows = torch.cat([whole.transitions.actions[e.start : e.start + e.length] for e in left])
    assert torch.equal(taught[0].actions, rows)
    assert torch.equal(fitted.starts.features, whole.starts.features)


@pytest.mark.parametrize("part", ["ladder", "ablations"])
def test_a_rung_more_orphans_no_cell_and_one_of_other_options_is_refused(tmp_path: Path, part: str) -> None:
    results = Path(__file__).parents[2] / "docs" / "results"
    assert open_cells(results, part).read()
    cell = open_cells(results, part).read()[0]
    open_cells(tmp_path, part).write("0", {**cell, "options": ["learning.branches.chunks=7"]})
    with pytest.raises(UserError, match="chunks=7"):
        open_cells(tmp_path, part)


def test_the_table_has_a_row_for_each_rung_that_was_measured() -> None:
    cell = {"seed": 2, "rung": "learnt", "supervised": 0.47, "practised": 0.6}
    lines = table([cell, cell | {"seed": 4, "supervised": 0.5, "practised": 0.75}]).splitlines()
    assert lines[2:] == [
        "| supervised policy | 47.0% | 50.0% |",
        "| learnt dynamics, three chunks, learnt value | 60.0% | 75.0% |",
    ]
