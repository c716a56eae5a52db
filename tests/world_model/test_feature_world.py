"""The world model: what it sees, single ticks beside whole chunks, how far it is believed, and its folder."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from toy_episodes import toy_cache, toy_episode
from toy_world import SPEC, TICKS, tiny_policy, tiny_world

from vla_rl.acting.world_folder import Eyes
from vla_rl.core.errors import CheckpointError, ConfigError, UserError
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore
from vla_rl.training import world_model
from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions
from world_model.feature_world import FeatureWorld, Trust, load_world_model, platt_scale, save_world_model
from world_model.protocol import Observations


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FrameCache:
    return toy_cache(tmp_path_factory.mktemp("toy"))


@pytest.fixture(scope="module")
def world(cache: FrameCache, tmp_path_factory: pytest.TempPathFactory) -> FeatureWorld:
    """Read only."""
    return tiny_world(cache, tmp_path_factory.mktemp("world"))


def test_it_sees_what_the_policy_sees_and_the_state(cache: FrameCache, world: FeatureWorld) -> None:
    frames = np.array([3, 20])
    state = world.encode(Observations(cache, frames))
    np.testing.assert_allclose(state.proprioception, cache.state[frames], atol=1e-6)
    pictures = {camera: cache.images[camera][20] for camera in SPEC.cameras}
    live = Observations.live({"pixels": pictures, "agent_pos": cache.state[20]}, "push")
    torch.testing.assert_close(world.encode(live).features, state.features[1:])
    other = Observations.live({"pixels": pictures, "agent_pos": cache.state[20]}, "pull")
    assert not torch.equal(world.encode(other).features, state.features[1:])


def test_a_policy_of_small_pictures_sees_larger_ones_reduced(cache: FrameCache) -> None:
    frames = np.array([3, 20])
    small = Eyes(tiny_policy(cache, (8, 8)))
    first = small.look(Observations(cache, frames))
    halves = {camera: cache.images[camera][frames].reshape(2, 8, 2, 8, 2, 3).mean((2, 4)) for camera in SPEC.cameras}
    tokens = small.policy.features(
        {camera: torch.from_numpy(image).float() for camera, image in halves.items()},
        torch.from_numpy(cache.state[frames]),
        small.policy.tokenize(["push"] * 2),
    )[0]
    torch.testing.assert_close(first[:, :-3], tokens.flatten(1))
    odd = {camera: np.zeros((17, 17, 3), np.uint8) for camera in SPEC.cameras}  # the last row and column are left out
    assert small.look(Observations.live({"pixels": odd, "agent_pos": cache.state[0]}, "push")).shape == first[:1].shape


def test_pictures_are_drawn_in_the_order_of_the_names(cache: FrameCache, tmp_path: Path) -> None:
    turned = tiny_world(cache, tmp_path, cameras=SPEC.cameras[::-1]).decoder
    assert turned is not None
    for place, camera in enumerate(SPEC.cameras[::-1]):
        mean = torch.from_numpy(cache.images[camera].mean(0) / 255 - 0.5).permute(2, 0, 1)
        other = turned.background[1 - place]
        error = (turned.background[place] - mean).abs().mean()
        assert error < 0.5 * (other - mean).abs().mean()


def test_a_policy_of_several_robots_is_refused(cache: FrameCache) -> None:
    policy = tiny_policy(cache)
    policy.spec = replace(policy.spec, sizes=((3, 2), (2, 1)))
    with pytest.raises(UserError, match="Practice it as"):
        Eyes(policy)


def test_pictures_that_the_encoder_does_not_know_are_refused(cache: FrameCache, world: FeatureWorld) -> None:
    for size, cameras in (((8, 8), SPEC.cameras), ((24, 16), SPEC.cameras), ((16, 16), ("front", "side"))):
        pictures = {camera: np.zeros((*size, 3), np.uint8) for camera in cameras}
        with pytest.raises(UserError, match="Take the task that it was trained on"):
            world.encode(Observations.live({"pixels": pictures, "agent_pos": cache.state[0]}, "push"))


def test_what_cannot_be_trusted_is_refused_before_training(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="members is 1"):
        world_model.WorldModelConfig(FeatureDynamicsConfig(members=1))
    store = EpisodeStore(tmp_path / "episodes")
    for number in range(2):
        store.add(toy_episode(f"toy-{number}", number, success=None, terminated=False))
    unknown = FrameCache(store, tmp_path / "cache")
    unknown.refresh()
    with pytest.raises(UserError, match="no episode has a known outcome"):
        tiny_world(unknown, tmp_path / "world")


def test_ticks_one_by_one_are_the_ticks_at_once(cache: FrameCache, world: FeatureWorld) -> None:
    """Across the end of a chunk, and each row in a member's own world. A state is never changed."""
    start = world.encode(Observations(cache, np.array([0, 13])), torch.tensor([0, 1]))
    before = start.features.clone()
    actions = torch.from_numpy(cache.action_sent[np.array([0, 13])[:, None] + np.arange(TICKS + 2)])
    state, chances = start, []
    for action in actions.unbind(1):
        state, chance, _ = world.predict(state, action[:, None])
        chances.append(chance)
    at_once = world.predict(start, actions)
    torch.testing.assert_close(state.features, at_once.state.features)
    torch.testing.assert_close(state.proprioception, at_once.state.proprioception)
    torch.testing.assert_close(at_once.success, torch.maximum(chances[TICKS - 1], chances[-1]))
    assert torch.equal(start.features, before)
    whole = world.predict(start, actions[:, :TICKS]).state
    rest = world.predict(whole, actions[:, TICKS:]).state
    torch.testing.assert_close(rest.features, state.features)


def test_dynamics_of_whole_chunks_refuse_single_ticks() -> None:
    data = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    flags, whole = torch.ones(20, dtype=torch.bool), torch.full((20,), TICKS)
    transitions = Transitions(data, data[:, :TICKS, None], whole, data.flip(0), flags, flags, flags)
    config = world_model.WorldModelConfig().dynamics
    dynamics = FeatureDynamics.of(transitions, config)
    assert dynamics(data, data[:, :TICKS, None])[0].shape == data.shape
    with pytest.raises(UserError, match="go on by 3 actions, not by 1"):
        dynamics(data, data[:, :1, None])
    cut = FeatureDynamics.of(transitions._replace(ticks=whole - 1), config)
    assert cut(data, data[:, :1, None])[0].shape == data.shape
    with pytest.raises(UserError, match="3 actions at most, not by 4"):
        cut(data, data[:, :4, None])


def test_actions_after_the_counted_ones_say_nothing(cache: FrameCache, world: FeatureWorld) -> None:
    rows = torch.randn(2, TICKS, 2, generator=torch.Generator().manual_seed(0))
    features, dynamics = world.encode(Observations(cache, np.array([0, 1]))).features, world.dynamics
    counted = torch.tensor([1, 2])
    seen = dynamics._rows(features, rows, counted)
    rows[0, 1:], rows[1, 2:] = 7.0, -7.0
    assert torch.equal(dynamics._rows(features, rows, counted), seen)


def test_chances_are_scaled_to_what_came_true() -> None:
    truth = torch.tensor([False] * 40 + [True] * 40)
    logit = torch.where(truth, -3.0, -5.0)
    slope, offset = platt_scale(logit.sigmoid(), truth)
    assert slope * -4.0 + offset == pytest.approx(0, abs=1e-3), "half way between the two groups"
    assert float(torch.tensor(slope * -3.0 + offset).sigmoid()) == pytest.approx(41 / 42, abs=1e-3)
    slope, _ = platt_scale(logit.sigmoid(), ~truth)
    assert 0 < slope < 0.05, "a model that is always wrong is not turned round; it says nothing"


def test_trust_scales_what_it_says(cache: FrameCache, world: FeatureWorld) -> None:
    start, actions = world.encode(Observations(cache, np.array([0]))), torch.zeros(1, TICKS, 2)
    plain = replace(world, trust=None).predict(start, actions)
    scaled = replace(world, trust=Trust(2.0, 1.0, 0.25)).predict(start, actions)
    torch.testing.assert_close(scaled.success, (2 * plain.success.logit() + 1).sigmoid())
    torch.testing.assert_close(scaled.disagreement(), 4 * plain.disagreement())


def test_a_saved_world_is_the_same_world(cache: FrameCache, world: FeatureWorld, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="fit both first"):
        save_world_model(tmp_path / "no", replace(world, decoder=None), SPEC)
    save_world_model(tmp_path / "model", world, SPEC)
    eyes = Eyes(tiny_policy(cache))
    again, spec = load_world_model(tmp_path / "model", eyes.look, eyes.normalize, eyes.sense)
    assert spec == SPEC
    start, actions = world.encode(Observations(cache, np.array([0]))), torch.zeros(1, TICKS + 1, 2)
    for own, other in zip(world.predict(start, actions)[:2], again.predict(start, actions)[:2], strict=True):
        torch.testing.assert_close(own, other, atol=0, rtol=0)
    assert torch.equal(world.decode(start), again.decode(start))
    for name, damage in (("weights-*.safetensors", b"nothing"), ("config.json", b"{}")):
        folder = tmp_path / name[:7]
        shutil.copytree(tmp_path / "model", folder)
        next(folder.glob(name)).write_bytes(damage)
        with pytest.raises(CheckpointError, match=r"damaged|not the config"):
            load_world_model(folder, eyes.look, eyes.normalize, eyes.sense)


def test_an_interrupted_training_keeps_its_dynamics_and_ends_in_the_same_weights(
    cache: FrameCache, world: FeatureWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(world_model, "fit_decoder", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tiny_world(cache, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(world_model, "fit_dynamics", interrupted)
        again = tiny_world(cache, tmp_path)
    assert again.decoder is not None
    assert world.decoder is not None
    for ours, first in ((again.dynamics, world.dynamics), (again.decoder, world.decoder)):
        for name, value in first.state_dict().items():
            assert torch.equal(value, ours.state_dict()[name]), name
    assert again.trust == world.trust
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match="remove it to fit this part anew"):
        tiny_world(cache, tmp_path)


@pytest.mark.slow
def test_predicted_states_follow_the_actions(tmp_path: Path) -> None:
    """The actions that were sent predict the state, others do not: in whole chunks, and tick by tick."""
    cache = toy_cache(tmp_path, episodes=60)
    learnt = tiny_world(cache, tmp_path / "model", dynamics_steps=300)
    first = np.array([episode.start + 2 for episode in cache.episodes])
    for ticks in (1, 2, 2 * TICKS, 2 * TICKS + 1):
        index = first[:, None] + np.arange(ticks)
        actions, truth = torch.from_numpy(cache.action_sent[index]), torch.from_numpy(cache.state[index[:, -1] + 1])
        start = learnt.encode(Observations(cache, first))

        def error(sent: torch.Tensor, start=start, truth=truth) -> float:
            return float((learnt.predict(start, sent).state.proprioception - truth)[:, :2].norm(dim=-1).mean())

        still = float((start.proprioception - truth)[:, :2].norm(dim=-1).mean())
        assert error(actions) < 0.5 * error(actions.roll(1, 0)), ticks
        assert error(actions) < 0.5 * still, ticks
