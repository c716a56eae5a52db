"""A residual that learns off policy, by temporal differences, before the critic of the round."""

from pathlib import Path

import numpy as np
import pytest
import torch
from test_imagined_edit import BLANK, wandering
from tiny_world import MIXED, make_model, tiny

from vla_rl.algorithms import residual_td
from vla_rl.algorithms.sampling import torch_generator
from vla_rl.core.errors import ConfigError
from vla_rl.core.types import Observation
from vla_rl.policies.best_of_n import BestOfN
from vla_rl.policies.folders import load_policy
from vla_rl.training.algorithms import make_algorithm, save_learned


def learner(cache, **changes: dict) -> residual_td.ResidualTD:
    algorithm = make_algorithm("residual_td", tiny("residual_td", **changes), make_model(), cache, 0)
    assert isinstance(algorithm, residual_td.ResidualTD)
    algorithm.begin_round(cache, 1)
    return algorithm


@pytest.mark.slow
def test_it_goes_where_real_outcomes_were_better(make_cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residual_td, "_LEARNING_RATE", 1e-3)
    cache = make_cache([wandering(f"round-{i:03d}", np.random.default_rng(i).normal(), 1000 + i) for i in range(80)])
    algorithm = learner(cache, td={"updates": 700, "batch_size": 64}, best_of_n={"num_samples": 1, "offset_std": 0.0})
    assert algorithm.update(0)["residual_gain"] > 0.02
    save_learned(algorithm, tmp_path / "policy", 1)
    adjusted, plain = load_policy(tmp_path / "policy"), make_model().acting()
    for state in np.linspace(-0.5, 0.5, 5, dtype=np.float32):
        observation = Observation(BLANK, np.array([state, 0], np.float32), "put it in", 0)
        adjusted.reset(0)
        plain.reset(0)
        moved = (adjusted.infer(observation).actions - plain.infer(observation).actions)[:2, 0].mean()
        assert moved > 0.02, "wherever it is, it goes up more"


def test_value_comes_from_the_next_chunk_of_the_same_actor_or_from_the_outcome(
    make_cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(residual_td, "_TARGET_STD", 0.0)
    algorithm = learner(make_cache(MIXED), critic={"members": 2}, discount=0.9)
    chunks = algorithm.chunks(torch_generator(0, "test", 0))
    slow = algorithm._new_q(chunks.rows)
    with torch.no_grad():
        for part in algorithm.residual.parameters():
            part.add_(0.3 * torch.randn(part.shape, generator=torch.Generator().manual_seed(1)))
        offset = algorithm.residual(chunks.seen)
        assert float(offset.abs().max()) > 0.01
        moved = chunks.drawn.clone()
        size = offset.shape[1]
        moved[:, -2 * size : -size] += offset
        value = slow(moved).sigmoid().min(0)[0]
    every = torch.arange(len(chunks.rows))
    targets = algorithm._targets(slow, chunks, every, torch_generator(0, "test", 1))
    ticks = algorithm.config.critic.chunk_ticks
    assert {True, False} == set((chunks.later >= 0).tolist())
    for row, later in enumerate(chunks.later.tolist()):
        expected = chunks.outcome[row] if later < 0 else 0.9**ticks * value[later]
        assert float(targets[row]) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.slow
def test_the_residual_grows_with_how_far_chunks_were_moved(make_cache) -> None:
    cache = make_cache([wandering(f"round-{i:03d}", np.random.default_rng(i).normal(), 1000 + i) for i in range(80)])
    size = []
    for factor in (1, 4):
        algorithm = learner(cache, td={"updates": 300, "batch_size": 64, "size_cost": 0.5})
        chunks, width = algorithm.chunks(torch_generator(0, "test", 0)), algorithm.model.spec.action_dim
        chunks.rows[:, -2 * width :] *= factor
        torch.manual_seed(0)
        size.append(algorithm.improve(chunks, torch_generator(0, "test", 1))["size"])
    assert 0.005 < size[0] < 0.5 * size[1], "an offset far from those in the data costs more"


def test_half_of_a_batch_are_chunks_of_people(make_cache) -> None:
    algorithm = learner(make_cache(MIXED))
    chunks = algorithm.chunks(torch_generator(0, "test", 0))
    people = set(chunks.of_people.tolist())
    assert 0 < len(people) < len(chunks.rows)
    size = algorithm.config.td.batch_size
    chosen = algorithm._batch(chunks, torch_generator(0, "test", 1)).tolist()
    assert len(chosen) == size
    assert {*chosen[: size // 2]} <= people
    alone = chunks._replace(of_people=torch.zeros(0, dtype=torch.int64))
    assert len(algorithm._batch(alone, torch_generator(0, "test", 1))) == size


def test_a_single_member_is_refused() -> None:
    with pytest.raises(ConfigError, match="lower value of two members"):
        tiny("residual_td", critic={"members": 1})


def test_the_residual_moves_the_only_sample_whole(make_cache) -> None:
    algorithm = learner(make_cache(MIXED))
    algorithm.update(0)
    with torch.no_grad():
        algorithm.residual.net[-1].bias.fill_(0.2)
    selector, model = algorithm.selector(), algorithm.model.eval()
    assert selector.residual is algorithm.residual
    assert (selector.critic, selector.config.num_samples) == (algorithm.critic, 1), "a deployment needs the critic"
    alone = BestOfN(None, selector.config, selector.residual, selector.ticks)
    observation = algorithm.data.inputs(np.arange(3))
    noise = torch.randn(3, selector.noise_rows(model.horizon), model.spec.action_dim)
    chosen, moved = (each.draw(model, observation, torch.zeros(3), noise, None) for each in (selector, alone))
    torch.testing.assert_close(chosen, moved)
    plain = model.draw(*observation, noise[:, : model.horizon], None)
    assert float((chosen - plain).detach().abs().max()) > 0.01


def test_the_critic_selects_among_several_samples(make_cache) -> None:
    selecting = learner(make_cache(MIXED), best_of_n={"num_samples": 4})
    selecting.update(0)
    assert selecting.selector().critic is selecting.critic
    assert selecting.selector().config.num_samples == 4
