"""The residual head of A2C2: the same eyes in numpy and in torch, and it learns what newer observations tell."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_policy import make_model

from vla_rl.core.errors import CheckpointError, UserError
from vla_rl.core.types import Episode, Observation, Origin
from vla_rl.policies.corrector import ResidualCorrector, age_features
from vla_rl.policies.corrector_training import CorrectorConfig, train_corrector
from vla_rl.policies.flow_vla import BackboneConfig, FlowVLA

DISCRETE = (1,)
CONFIG = CorrectorConfig(width=32, steps=200, batch_size=128, plans_per_frame=1, held_out=0.3)


def make_episode(model: FlowVLA, number: int, length: int = 24) -> Episode:
    """The demonstrator's action is the state at that moment: a chunk cannot know it, a newer observation does."""
    spec, random = model.spec, np.random.default_rng(number)
    state = random.normal(size=(length, spec.state_dim)).astype(np.float32)
    action = np.zeros((length, spec.action_dim), np.float32)
    action[:, 0] = 4.0 * state[:, 0]
    images = {camera: random.integers(0, 256, (length, *spec.image_size, 3), dtype=np.uint8) for camera in spec.cameras}
    source = np.full(length, 2, np.uint8)
    about = {"task": "push", "success": True, "terminated": True, "origin": Origin.DEMO, "policy_version": -1}
    return Episode(
        f"e{number}", images, state, action, action, source, seed=None, control_hz=20.0, env_id="toy", **about
    )


@pytest.fixture(scope="module")
def model() -> FlowVLA:
    torch.manual_seed(0)
    return make_model(discrete_dims=DISCRETE).eval()


@pytest.fixture(scope="module")
def episodes(model: FlowVLA) -> list[Episode]:
    return [make_episode(model, number) for number in range(6)]


@pytest.fixture(scope="module")
def corrector(model: FlowVLA, episodes: list[Episode]) -> ResidualCorrector:
    return train_corrector(model, episodes, CONFIG, seed=1)[0]


def observe(episode: Episode, row: int) -> Observation:
    images = {camera: image[row] for camera, image in episode.images.items()}
    return Observation(images, episode.state[row], episode.task, row)


def test_it_learns_what_only_a_newer_observation_tells(model: FlowVLA, episodes: list[Episode]) -> None:
    corrector, fit = train_corrector(model, episodes, CONFIG, seed=0)
    assert fit.corrected_error < 0.7 * fit.planned_error
    fresh = make_episode(model, 99)
    planned = np.zeros(model.spec.action_dim, np.float32)
    corrected = np.stack([corrector.correct(observe(fresh, row), planned, 3) for row in range(len(fresh))])
    wanted = fresh.action_policy[:, 0]
    assert np.corrcoef(corrected[:, 0], wanted)[0, 1] > 0.5


def test_the_eyes_in_numpy_see_what_those_in_torch_see(
    model: FlowVLA, corrector: ResidualCorrector, episodes: list[Episode]
) -> None:
    """The whole head in torch, with the policy's own modules."""
    episode, planned, age = episodes[0], np.linspace(-0.5, 0.5, model.spec.action_dim, dtype=np.float32), 2
    seen = []
    for camera, encoder in zip(model.spec.cameras, model.vision.encoders, strict=True):
        image = torch.from_numpy(episode.images[camera][4:5]).permute(0, 3, 1, 2) / 127.5 - 1
        seen.append(encoder.keypoints(encoder.stack(image)).detach())
    weights = {name: torch.from_numpy(part) for name, part in corrector.weights.items()}
    state = model.state_normalizer.normalize(torch.from_numpy(episode.state[4:5]))
    action = model.action_normalizer.normalize(torch.from_numpy(planned)[None])
    row = torch.cat([*seen, state, action, torch.from_numpy(age_features(np.array([age]), model.config.horizon))], 1)
    for layer in range(CONFIG.layers):
        row = row @ weights[f"head{layer}.weight"].T + weights[f"head{layer}.bias"]
        row = row.relu() if layer < CONFIG.layers - 1 else row
    expected = planned + (row * model.action_normalizer.scale)[0].numpy()
    np.testing.assert_allclose(corrector.correct(observe(episode, 4), planned, age), expected, atol=1e-5)
    assert (expected != planned).any()


def test_discrete_dimensions_are_at_one_of_their_levels(corrector: ResidualCorrector, episodes: list[Episode]) -> None:
    """A mean of open and shut is neither: the nearest level is taken, and the other dimensions do not notice."""
    low, high = corrector.weights["action.low"], corrector.weights["action.high"]
    dim, observation = DISCRETE[0], observe(episodes[0], 0)
    seen = set()
    for planned_level in np.linspace(low[dim], high[dim], 9):
        planned = np.zeros_like(low)
        planned[dim] = planned_level
        free = corrector.correct(observation, planned, 1)
        held = corrector.correct(observation, planned, 1, DISCRETE)
        assert held[dim] == (high if free[dim] > (low[dim] + high[dim]) / 2 else low)[dim]
        assert np.delete(held, dim) == np.delete(free, dim)
        seen.add(float(held[dim]))
    assert seen == {float(low[dim]), float(high[dim])}


def test_a_head_with_nothing_to_add_adds_nothing(model: FlowVLA, episodes: list[Episode]) -> None:
    random = np.random.default_rng(0)
    noisy = [
        replace(episode, action_policy=random.normal(size=episode.action_policy.shape).astype(np.float32))
        for episode in episodes
    ]
    corrector, fit = train_corrector(model, noisy, replace(CONFIG, steps=15, learning_rate=0.3), seed=0)
    assert fit.corrected_error <= fit.planned_error
    if fit.corrected_error == fit.planned_error:
        planned = np.zeros(model.spec.action_dim, np.float32)
        np.testing.assert_array_equal(corrector.correct(observe(noisy[0], 0), planned, 1), planned)


def test_it_survives_the_disk_and_says_when_it_did_not(
    corrector: ResidualCorrector, episodes: list[Episode], tmp_path: Path
) -> None:
    corrector.save(tmp_path / "c")
    corrector.save(tmp_path / "c")
    copy = ResidualCorrector.load(tmp_path / "c")
    planned = np.zeros(len(corrector.weights["action.scale"]), np.float32)
    observation = observe(episodes[0], 3)
    np.testing.assert_array_equal(copy.correct(observation, planned, 1), corrector.correct(observation, planned, 1))
    with pytest.raises(CheckpointError, match="no corrector"):
        ResidualCorrector.load(tmp_path / "nothing")
    weights = next((tmp_path / "c").glob("*.safetensors"))
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    with pytest.raises(CheckpointError, match="damaged"):
        ResidualCorrector.load(tmp_path / "c")
    (tmp_path / "c" / "config.json").write_text(json.dumps({"format": "else", "format_version": 1}))
    with pytest.raises(CheckpointError, match="is not the config"):
        ResidualCorrector.load(tmp_path / "c")


def test_what_does_not_fit_is_refused(model: FlowVLA, corrector: ResidualCorrector, episodes: list[Episode]) -> None:
    planned = np.zeros(model.spec.action_dim, np.float32)
    with pytest.raises(UserError, match="the observation has none"):
        corrector.correct(Observation({}, episodes[0].state[0], "", 0), planned, 0)
    with pytest.raises(UserError, match="at least 2 demonstrations"):
        train_corrector(model, episodes[:1], CONFIG, seed=0)
    model.config = replace(model.config, backbone=BackboneConfig(folder="somewhere"))
    with pytest.raises(UserError, match="of another kind"):
        train_corrector(model, episodes, CONFIG, seed=0)
