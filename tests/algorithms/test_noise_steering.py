"""Steering of the noise that a frozen flow draws from: what was tried is the noise itself, and what was better is drawn
more often.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from playing import TICKS, observations, planned, recorded
from tiny_world import make_model, tiny

from vla_rl.algorithms.base import make_algorithm
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.flow import flow_noise
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.choosing import FOLDER, ChoiceConfig, Chooser, ChunkCritic, ChunkCriticConfig
from vla_rl.policies.editing import Edit, EditConfig
from vla_rl.policies.flow_vla import FlowVLA
from vla_rl.policies.folders import load_policy

SPREAD = 0.5  # of the mean of the noise of four actions


class Mirror(FlowVLA):
    """A flow whose actions are its noise."""

    def sample(self, prefix, noise, committed=None, steps=None, unconditional=None):
        del prefix, committed, steps, unconditional
        return self.to_raw_actions(noise)


def mirror() -> FlowVLA:
    model = make_model()
    model.__class__ = Mirror
    return model


def learner(cache, model: FlowVLA, number: int = 1, **changes: dict):
    algorithm = make_algorithm("noise_steering", tiny("noise_steering", **changes), model, cache, 0)
    algorithm.begin_round(cache, number)
    return algorithm


def steering(model: FlowVLA, *amounts: float) -> Edit:
    """An edit that wants the noise of each dimension moved by about so much, a little less or more in each state."""
    edit = Edit(model, EditConfig(bound=1.0, hidden=(8,)), of_noise=True)
    edit.net[-1].bias.data = torch.tensor(amounts)
    edit.net[-1].weight.data.normal_(0, 0.1)
    return edit


def steered(model: FlowVLA, edit: Edit | None, version: int = 0) -> ActingPolicy:
    policy = model.acting(version=version)
    if edit is not None:
        policy.chooser = Chooser(None, ChoiceConfig(draws=1, offset=0.0), edit, TICKS)
    return policy


def play(policy: ActingPolicy, name: str, seed: int):
    """An episode that succeeds where the actions of the first dimension are above 0 together, normalised."""
    actions = planned(policy, seed)
    return recorded(policy, name, seed, actions, bool(normalised(policy.model, actions)[..., 0].sum() > 0))


def normalised(model: FlowVLA, actions: np.ndarray) -> np.ndarray:
    return model.action_normalizer.normalize(torch.from_numpy(actions)).numpy()


def test_what_was_tried_is_the_mean_of_the_noise_and_told_exactly(make_cache) -> None:
    model = make_model()
    edit = steering(model, 0.3, -0.2)
    algorithm = learner(make_cache([play(steered(model, edit), "round-0", 5)]), model)
    algorithm.edit.load_state_dict(edit.state_dict())
    (stretch,) = algorithm._stretches()
    assert stretch.spread == SPREAD
    drawn = np.array([flow_noise(5, tick, model.horizon, 2).mean(0) for tick in (0, 2, 4, 6)])
    np.testing.assert_allclose(stretch.spread * stretch.noise, drawn, atol=1e-6)
    assert float(stretch.mean.detach().std(0)[0]) > 0, "the edit says something else of each chunk"


def test_what_another_edit_played_or_exploration_moved_is_left_out(make_cache) -> None:
    model = make_model()
    explored = steered(model, None)
    explored.exploration = 0.3
    other = play(steered(model, steering(model, 0.3, -0.2)), "round-0", 5)
    algorithm = learner(make_cache([other, play(explored, "round-1", 6)]), model)
    assert [stretch.spread for stretch in algorithm._stretches()] == [0.0, 0.0]
    with pytest.raises(UserError, match="noise_steering needs exploration=0,"):
        algorithm.update(0)


@pytest.mark.slow
@pytest.mark.parametrize("advantage", ["value", "group"])
def test_a_flow_whose_actions_are_its_noise_does_more_of_what_is_rewarded(make_cache, advantage: str) -> None:
    options = {
        "ppo": {"advantage": advantage, "chunk_ticks": TICKS, "learning_rate": 1e-2, "batch_size": 64},
        "value": {"steps": 50, "look_every": 10, "hidden": (16,), "batch_size": 64},
    }
    model, episodes, done = mirror(), [], []
    algorithm = learner(make_cache([]), model, number=0, **options)
    for version in range(4):
        policy = steered(model, algorithm.edit, version)
        for start in range(8):
            for index in range(4):
                name, seed = f"round{version:03d}-{start:03d}-{index}", 1000 * version + start
                actions = planned(policy, seed, noise_seed=10 * seed + index)
                done.append(normalised(model, actions).mean((0, 1)))
                episodes.append(recorded(policy, name, seed, actions, bool(done[-1][0] > 0), 10 * seed + index))
        algorithm.begin_round(make_cache(episodes), version + 1)
        assert algorithm.update(version)["edit_spread"] == SPREAD
    assert [bool(stretch.spread) for stretch in algorithm._stretches()] == [False] * len(episodes)
    rewarded, other = np.mean(done[-32:], 0) - np.mean(done[:32], 0)
    assert rewarded > 0.1
    assert abs(other) < rewarded


@pytest.mark.parametrize("committed", [0, 2])
def test_a_saved_policy_draws_from_noise_that_is_moved(tmp_path: Path, committed: int) -> None:
    model, seen = make_model(), observations(3)[1]
    edit = steering(model, 0.4, -0.6)
    Chooser(None, ChoiceConfig(draws=1, offset=0.0), edit, TICKS).save(tmp_path / "policy" / FOLDER)
    model.save(tmp_path / "policy")
    policy, plain = load_policy(tmp_path / "policy"), model.acting()
    given = np.full((committed, 2), 0.1, np.float32)
    for each in (policy, plain):
        each.reset(7)
    inputs = plain._inputs(seen)
    features = model.features(*inputs)[0].flatten(1)
    moved = edit(edit.rows(features, torch.tensor([float(seen.tick)]), torch.zeros(1, TICKS, 2)))
    noise = torch.from_numpy(flow_noise(7, seen.tick, 4, 2))[None] + moved[:, None]
    fixed = torch.from_numpy(given)[None] if committed else None
    found = policy.infer(seen, given)
    np.testing.assert_allclose(found.actions, model.draw(*inputs, noise, fixed)[0].detach(), atol=1e-6)
    assert not np.allclose(found.actions[committed:], plain.infer(seen, given).actions[committed:], atol=1e-3)
    guided, unsteered = (each.infer_guided(seen, given, committed).actions for each in (policy, plain))
    assert not np.allclose(guided[committed:], unsteered[committed:], atol=1e-3)
    if not committed:
        np.testing.assert_allclose(guided, found.actions, atol=1e-5)


def test_several_observations_at_once_are_steered_as_each_alone() -> None:
    model = make_model()
    policy, asked = steered(model, steering(model, 0.4, -0.6)), []
    seen = [observations(seed)[1] for seed in (3, 4)]
    alone = [policy.infer(each).actions for each in seen]
    policy.asking(lambda draw: (asked.append(draw), draw.noise)[1]).infer(seen[0])
    policy.asking(lambda draw: (asked.append(draw), draw.noise)[1]).infer(seen[1])
    for chunk, expected in zip(policy.draw_all(asked), alone, strict=True):
        np.testing.assert_allclose(chunk[0], expected, atol=1e-5)


def test_an_untrained_one_changes_nothing_and_goes_with_no_critic() -> None:
    model, seen = make_model(), observations(3)[0]
    edit = Edit(model, EditConfig(hidden=(8,)), of_noise=True)
    np.testing.assert_array_equal(steered(model, edit).infer(seen).actions, model.acting().infer(seen).actions)
    with pytest.raises(ConfigError, match="found one of the noise"):
        Chooser(ChunkCritic(model, ChunkCriticConfig(chunk_ticks=TICKS)), ChoiceConfig(), edit)
