"""The truth of the oracle ladder is what really happened."""

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import ladder, ladder_td
from benchmarks.ladder import ABLATIONS, RUNGS, TD, Simulator, TrueDynamics, open_cells, table
from robot_io.gate import GateConfig
from tests.algorithms.tiny_world import MIXED, make_model, tiny
from vla_rl.acting.task import open_robot
from vla_rl.acting.world_folder import collect_near_success, open_cache, world_spec
from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.imagined_edit import ImaginedEdit
from vla_rl.algorithms.residual_td import ResidualTD
from vla_rl.core.errors import UserError
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.base import example_row
from vla_rl.training.algorithms import make_algorithm
from vla_rl.training.config import TaskConfig
from world_model.feature_world import FeatureState
from world_model.imagined_env import ImaginedEnv
from world_model.protocol import Observations, Prediction

TICKS = 6


def look(images: dict[str, torch.Tensor], state: torch.Tensor) -> torch.Tensor:
    """Features that no two observations share."""
    means = [image.float().mean((1, 2)) for image in images.values()]
    return torch.cat([state, *means], 1)


def test_a_branch_with_the_commands_that_were_sent_goes_where_the_episode_went(tmp_path: Path) -> None:
    task = TaskConfig(env="vla_rl/PegInsert-v0", difficulty=0.4)
    collect_near_success(task, GateConfig(), EpisodeStore(tmp_path / "episodes"), 1, 3)
    cache = open_cache(tmp_path / "episodes", tmp_path / "cache")
    frames, cameras = np.arange(cache.total_frames), tuple(cache.images)
    seen = Observations(cache, frames).pictures(cameras)
    rows = look({name: seen[:, index] for index, name in enumerate(cameras)}, torch.from_numpy(cache.state[frames]))
    simulator = Simulator(open_robot(task), look)
    simulator.remember(cache, rows)

    begin = np.array([0, TICKS])
    chunks = torch.from_numpy(cache.action_sent[begin[:, None] + np.arange(TICKS)])
    start = simulator.encode(Observations(cache, begin))
    after, success, _ = simulator.predict(start, chunks)
    torch.testing.assert_close(after.features, rows[begin + TICKS])
    assert torch.equal(simulator.decode(after), seen[begin + TICKS])
    assert success.tolist() == [0.0, 0.0]
    further = simulator.predict(after, chunks[[1, 1]]).state  # from where a branch came to
    torch.testing.assert_close(further.features[0], rows[2 * TICKS])
    assert not torch.allclose(simulator.predict(start, chunks + 0.02).state.features, after.features)

    cache.action_sent = cache.action_sent[::-1]
    with pytest.raises(UserError, match="goes another way at step 1"):
        simulator.remember(cache, rows)


def test_the_truth_is_an_environment_too(tmp_path: Path) -> None:
    task = TaskConfig(env="vla_rl/PegInsert-v0", difficulty=0.4)
    collect_near_success(task, GateConfig(), EpisodeStore(tmp_path / "episodes"), 1, 3)
    cache = open_cache(tmp_path / "episodes", tmp_path / "cache")
    simulator = Simulator(open_robot(task), look)
    simulator.remember(cache, torch.zeros(cache.total_frames, 1))
    env = ImaginedEnv(simulator, world_spec(task, cache), cache)
    env.reset(seed=0)
    for step in range(8):
        observation, *_ = env.step(cache.action_sent[step])
    np.testing.assert_allclose(observation["agent_pos"], cache.state[8], atol=1e-5)
    assert all((image == cache.images[camera][8]).all() for camera, image in observation["pixels"].items())


def learner(rung: str, folder: Path) -> ImaginedEdit:
    found = learner_of(rung, folder)
    assert isinstance(found, ImaginedEdit)
    return found


def learner_of(rung: str, folder: Path) -> Algorithm:
    store = EpisodeStore(folder / "store")
    for episode in MIXED:
        store.add(episode)
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    _, (option,) = (RUNGS | ABLATIONS | TD)[rung]
    name = option.removeprefix("algorithm=")
    found = make_algorithm(name, tiny(name), make_model(), cache, 0)
    found.begin_round(cache, 1)
    return found


class Counting:
    """A truth in which features count chunks, and all succeed."""

    members, width = 1, 8

    def encode(self, observations: Observations, member: torch.Tensor | None = None) -> FeatureState:
        return FeatureState(torch.zeros(len(observations.frames), self.width), member)

    def predict(self, state: FeatureState, actions: torch.Tensor) -> Prediction[FeatureState]:
        del actions
        return Prediction(FeatureState(state.features + 1, state.member), torch.ones(len(state.features)), torch.empty)


def test_dynamics_and_pictures_are_true_and_success_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "simulator_of", lambda learner, truth: Counting())
    algorithm, generator = learner("true_dynamics_learnt_success", tmp_path), torch.Generator().manual_seed(0)
    fitted = algorithm.fit_world(generator)
    moments, member = fitted.starts.observations.at(torch.arange(4)), torch.arange(4) % 2
    within, learnt = (kind.imagination(algorithm, fitted, generator) for kind in (type(algorithm), ImaginedEdit))
    start = learnt.world.encode(moments, member)
    chunk = within.draw(start.features)
    later, success, _ = within.world.predict(start, chunk)
    assert torch.equal(later.features, start.features + 1)
    assert torch.equal(success, learnt.world.predict(start, chunk).success)
    true = TrueDynamics.imagination(algorithm, fitted, generator).world
    assert true.predict(start, chunk).success.tolist() == [1.0] * 4


def test_without_failures_the_dynamics_miss_them_and_branches_begin_as_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    algorithm = learner("no_failures", tmp_path)
    taught = []
    fit = algorithm.learn_world
    monkeypatch.setattr(
        algorithm, "learn_world", lambda data, generator, **other: taught.append(data) or fit(data, generator, **other)
    )
    fitted = algorithm.fit_world(torch.Generator().manual_seed(0))
    every, without = taught
    failed = {"round-1", "round-3"}
    left = [e for e in algorithm.data.cache.episodes if e.episode_id not in failed]
    rows = torch.cat([every.actions[e.start : e.start + e.length] for e in left])
    assert torch.equal(without.actions, rows)
    whole = ImaginedEdit.fit_world(algorithm, torch.Generator().manual_seed(0))
    assert (fitted.starts.observations.frames == whole.starts.observations.frames).all()


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


class Winning(Counting):
    """A truth in which every second row succeeds at once."""

    width = len(example_row(make_model()))

    def predict(self, state: FeatureState, actions: torch.Tensor) -> Prediction[FeatureState]:
        moved = super().predict(state, actions)
        return moved._replace(success=(torch.arange(len(state.features)) % 2).float())


def test_rollouts_are_data_of_temporal_differences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder_td, "simulator_of", lambda learner, truth: Winning())
    monkeypatch.setattr(ladder_td, "_BRANCHES", 6)
    found = learner_of("true_td", tmp_path)
    assert isinstance(found, ladder_td.TrueRolloutsTD)
    real = len(ResidualTD.chunks(found, torch.Generator()).rows)
    chunks = found.chunks(torch.Generator().manual_seed(0))
    played, ends = slice(real, real + found._played), slice(real + found._played, None)
    steps, ticks = Winning.width, found.config.critic.chunk_ticks
    number = chunks.rows[:, 0].long()  # the features count the chunks of a rollout
    late = chunks.rows[played, steps] + ticks >= found.data.longest
    assert (number[played][:6] == 0).all()
    assert (number[ends] > 0).all()
    for inputs in (chunks.rows, chunks.drawn, chunks.seen):
        assert torch.equal(inputs[:, 0].long(), number), "what is seen where the chunk begins, and not after it"
        assert torch.equal(inputs[:, steps], chunks.rows[:, steps])
    later, won = chunks.later[played], chunks.outcome[played] > 0
    assert won[:6].tolist() == [False, True] * 3
    assert ((later < 0) == (won | late)).all(), "nothing follows a success or the time limit"
    follows = later >= 0
    assert follows.any()
    assert (number[later[follows]] == number[played][follows] + 1).all()
    assert (chunks.rows[later[follows], steps] == chunks.rows[played, steps][follows] + ticks).all()
    assert (chunks.later[ends] == -1).all()
    batch = found._batch(chunks, torch.Generator().manual_seed(0))
    assert ((batch >= real) == (torch.arange(len(batch)) % 2 == 1)).all()
    assert (batch < real + found._played).all(), "the ends of rollouts are valued, and not learned from"
