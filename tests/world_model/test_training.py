"""Windows, autoencoder, and training that goes on exactly where it was interrupted."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_world_model import SPEC, make_config, make_model
from toy_episodes import toy_cache

from vla_rl.core.errors import CheckpointError, ConfigError
from vla_rl.data.cache import FrameCache
from world_model.autoencoder import Autoencoder
from world_model.config import AutoencoderConfig
from world_model.dynamics import Context
from world_model.model import load_world_model
from world_model.protocol import Observations
from world_model.training import (
    ModuleTraining,
    set_dynamics_statistics,
    set_familiar,
    train_world_model,
)
from world_model.windows import LatentEpisodes, draw_pictures


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> FrameCache:
    return toy_cache(tmp_path_factory.mktemp("toy"))


@pytest.mark.parametrize("side", [1, 2, 4, 0])
def test_tokens_and_cells_are_inverse_and_latents_are_standardised(cache: FrameCache, side: int) -> None:
    """Standardized per camera and channel, over all places: a place where nothing moves is not blown up."""
    coder = Autoencoder(
        AutoencoderConfig(patch=2, widths=(8, 8), latent_channels=2, token_cells=side), SPEC.cameras, (16, 16)
    ).eval()
    cells = torch.randn(6, 2, 4, 4)
    torch.testing.assert_close(coder._to_cells(coder._to_tokens(cells)), cells)
    images = draw_pictures(cache, SPEC.cameras, 0, 0, 32)
    with torch.no_grad():
        coder.set_statistics(coder.encode(images))
        latents = coder.encode(images)
    assert latents.shape == (32, coder.tokens, coder.token_dim)
    assert coder.tokens == {1: 16, 2: 4, 4: 1, 0: 1}[side]
    channels = coder._to_cells(latents).unflatten(0, (32, 2)).permute(1, 2, 0, 3, 4).flatten(2)  # [cameras, C, numbers]
    torch.testing.assert_close(channels.mean(-1), torch.zeros(2, 2), atol=1e-4, rtol=0)
    torch.testing.assert_close(channels.std(-1, correction=0), torch.ones(2, 2), atol=1e-3, rtol=0)
    assert coder.decode(latents).shape == images.shape
    assert coder.decode(latents).dtype == torch.uint8


@torch.no_grad()
def test_what_is_familiar_is_what_most_successes_look_like(cache: FrameCache) -> None:
    model = make_model()
    set_familiar(model, cache)
    highest = []
    for episode in cache.episodes:
        if episode.success:
            frames = np.arange(episode.start, episode.start + episode.length)
            highest.append(
                float(model.autoencoder.strangeness(Observations(cache, frames).pictures(SPEC.cameras)).max())
            )
    assert 0 < len(highest) < len(cache.episodes)
    assert float(model.autoencoder.familiar) == pytest.approx(np.quantile(highest, 0.95))


def test_images_that_cannot_be_divided_are_refused() -> None:
    with pytest.raises(ConfigError, match="cannot be divided into tokens of 16 x 16"):
        Autoencoder(AutoencoderConfig(), SPEC.cameras, (24, 24))


def test_windows_end_where_episodes_end(cache: FrameCache) -> None:
    data = LatentEpisodes(cache, make_model().autoencoder)
    batch = data.windows(torch.tensor([1, 2]), torch.tensor([8, 0]), 6)
    assert batch.inside.tolist() == [[True] * 4 + [False] * 2, [True] * 6]
    assert batch.has_next.tolist() == [[True] * 3 + [False] * 3, [True] * 6]
    assert batch.success.tolist() == [[0, 0, 0, 1, 0, 0], [0] * 6]  # episode 1 succeeds at its 12th step
    assert batch.has_previous.tolist() == [True, False]
    torch.testing.assert_close(batch.state[0, 0], data.state[12 + 8])
    torch.testing.assert_close(batch.previous_state[0], data.state[12 + 7])
    torch.testing.assert_close(batch.latents[0, 3], data.latents[12 + 11])


def test_linear_servos_are_found(cache: FrameCache) -> None:
    """The toy's state goes half way to the action at each step; nothing else moves it."""
    model = make_model()
    data = LatentEpisodes(cache, model.autoencoder)
    set_dynamics_statistics(model, data)
    frames = torch.tensor([2, 15, 40])  # inside their episodes
    state, motion = data.state[frames][None], (data.state[frames] - data.state[frames - 1])[None]
    context = Context(torch.empty(0), torch.empty(0), state, motion, data.action[frames][None])
    change = model.dynamics._linear_change(context)[0] * model.dynamics.state_change_std
    expected = 0.5 * (data.action[frames] - data.state[frames, :2])
    torch.testing.assert_close(change[:, :2], expected, atol=2e-3, rtol=0)
    torch.testing.assert_close(change[:, 2], torch.zeros(3), atol=1e-4, rtol=0)


def test_draws_are_functions_of_seed_and_step(cache: FrameCache) -> None:
    data = LatentEpisodes(cache, make_model().autoencoder)
    first, again, other = (data.draw(3, step, 64, 5, 0.2) for step in (7, 7, 8))
    assert torch.equal(first.latents, again.latents)
    assert not torch.equal(first.latents, other.latents)
    assert not first.has_previous.all()
    assert first.has_previous.any()
    assert first.success.any()
    begun = data.draw(3, 7, 64, 5, 0.2, 0.5)
    assert (~begun.has_previous).sum() > (~first.has_previous).sum()


@pytest.mark.slow
def test_interrupted_training_ends_in_the_same_weights(
    cache: FrameCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config()
    whole = train_world_model(config, SPEC, cache, tmp_path / "whole")
    run = ModuleTraining.run
    for stop in (3, 2, 3):  # inside the autoencoder, inside the dynamics, and again

        def interrupted(self: ModuleTraining, stop_after: int | None = None, stop: int = stop) -> None:
            done = self.step
            run(self, stop)
            if self.step < self.steps and self.step > done:
                raise KeyboardInterrupt

        monkeypatch.setattr(ModuleTraining, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train_world_model(config, SPEC, cache, tmp_path / "cut")
    monkeypatch.setattr(ModuleTraining, "run", run)
    resumed = train_world_model(config, SPEC, cache, tmp_path / "cut")
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    again = load_world_model(tmp_path / "cut")
    assert again.spec == SPEC
    assert all(torch.equal(value, whole.state_dict()[name]) for name, value in again.state_dict().items())


@pytest.mark.slow
def test_the_clock_bounds_training(cache: FrameCache, tmp_path: Path) -> None:
    config = make_config()
    training = replace(config.training, autoencoder_steps=10**6, dynamics_steps=10**6, cpu_seconds=0.3)
    model = train_world_model(replace(config, training=training), SPEC, cache, tmp_path)
    assert all(torch.isfinite(value).all() for value in model.state_dict().values())


def test_damaged_files_are_refused(cache: FrameCache, tmp_path: Path) -> None:
    train_world_model(make_config(), SPEC, cache, tmp_path / "model")
    for name, damage in (("weights-*.safetensors", b"nothing"), ("config.json", b"{}")):
        folder = tmp_path / name[:7]
        shutil.copytree(tmp_path / "model", folder)
        next(folder.glob(name)).write_bytes(damage)
        with pytest.raises(CheckpointError, match=r"damaged|not the config"):
            load_world_model(folder)
    (tmp_path / "model" / "config.json").unlink()
    folder = tmp_path / "model" / "dynamics.checkpoint"
    (weights,), about = folder.glob("*.safetensors"), folder / "config.json"
    other_number = bytearray(weights.read_bytes())
    other_number[-3] ^= 1
    other_step = re.sub(rb'"step": *\d', b'"step": 0', about.read_bytes(), count=1)
    for file, damage in ((weights, b"nothing"), (weights, bytes(other_number)), (about, other_step)):
        whole = file.read_bytes()
        assert damage != whole
        file.write_bytes(damage)
        with pytest.raises(CheckpointError, match="remove it to begin this stage anew"):
            train_world_model(make_config(), SPEC, cache, tmp_path / "model")
        file.write_bytes(whole)


@pytest.mark.slow
def test_imagined_states_follow_the_actions(tmp_path: Path) -> None:
    """The actions that were sent predict the state, others do not. Few steps of training must not spoil it."""
    cache = toy_cache(tmp_path, episodes=30)
    config = make_config(self_context=0.2)
    training = replace(config.training, autoencoder_steps=10, autoencoder_batch=16, warmup_steps=10)
    training = replace(training, dynamics_steps=20, dynamics_batch=8, dynamics_learning_rate=3e-3)
    model = train_world_model(replace(config, training=training), SPEC, cache, tmp_path / "model")
    first = np.array([episode.start + 2 for episode in cache.episodes])
    index = first[:, None] + np.arange(6)
    actions, truth = torch.from_numpy(cache.action_sent[index]), torch.from_numpy(cache.state[index[:, -1] + 1])
    start = model.encode(Observations(cache, first))

    def error(sent: torch.Tensor) -> float:
        return float((model.predict(start, sent).state.proprioception - truth)[:, :2].norm(dim=-1).mean())

    still = float((start.proprioception - truth)[:, :2].norm(dim=-1).mean())
    assert error(actions) < 0.5 * error(actions.roll(1, 0))
    assert error(actions) < 0.5 * still
