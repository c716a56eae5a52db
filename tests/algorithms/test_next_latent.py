"""The policy's encoder learns to foretell a world model's latents, from failures too, and resumes exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_world import TINY, P, make_episode, make_model

from vla_rl.algorithms.config import NextLatentConfig
from vla_rl.algorithms.next_latent import NextLatentHead
from vla_rl.algorithms.registry import make_algorithm
from vla_rl.training.checkpoint import load_checkpoint, save_checkpoint

CONFIG = replace(TINY, next_latent=NextLatentConfig(weight=1.0, ahead=2, hidden=64, learning_rate=1e-2))
FAILURES = [make_episode(f"round-{index}", [P] * 9, False) for index in range(3)]


def test_the_loss_reaches_the_encoder_and_skips_ended_episodes():
    head = NextLatentHead(NextLatentConfig(weight=1.0, ahead=3), width=8, action_dim=2, latents=12)
    tokens = torch.randn(4, 5, 8, requires_grad=True)
    mask = torch.ones(4, 5, dtype=torch.bool)
    inside = torch.tensor([True, True, False, True])
    head.loss(tokens, mask, torch.randn(4, 3, 2), torch.randn(4, 12), torch.randn(4, 12), inside).backward()
    reached = tokens.grad.abs().sum((1, 2)) > 0
    assert reached.tolist() == [True, True, False, True]


def summed_actions(cache):
    """Latents whose change is the sum of the actions between."""
    latents = np.cumsum(cache.action_sent, 0, dtype=np.float32) - cache.action_sent
    latents[:4] = np.nan  # as of an imagined episode
    return latents


def learn(cache, steps, algorithm=None, first=0):
    if algorithm is None:
        algorithm = make_algorithm("awr", CONFIG, make_model(), cache, seed=3)
    algorithm.foretell(summed_actions(cache))
    algorithm.begin_round(cache, 1)
    return algorithm, [algorithm.update(step)["next_latent_loss"] for step in range(first, first + steps)]


@pytest.mark.slow
def test_it_falls_and_reaches_the_policys_encoder(make_cache):
    cache = make_cache([*FAILURES, make_episode("round-7", [P] * 7, True)])
    algorithm, losses = learn(cache, 60)
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:10])
    silent = make_algorithm("awr", replace(CONFIG, next_latent=NextLatentConfig()), make_model(), cache, seed=3)
    silent.begin_round(cache, 1)
    assert "next_latent_loss" not in silent.update(0)
    beside = algorithm.next_latent
    algorithm.actor._optimizer.zero_grad()
    beside.loss(algorithm.data, 8, 2, 99).backward()
    assert algorithm.model.state_token.weight.grad.abs().sum() > 0


def test_without_a_world_model_there_is_no_loss_and_nothing_to_resume(make_cache, tmp_path):
    cache = make_cache(FAILURES)
    algorithm = make_algorithm("awr", CONFIG, make_model(), cache, seed=3)
    algorithm.foretell(None)
    algorithm.begin_round(cache, 1)
    assert algorithm.next_latent.loss(algorithm.data, 8, 2, 0) is None
    file = save_checkpoint(tmp_path, 1, algorithm.state_dict())
    algorithm.load_state_dict(load_checkpoint(file)[1])


def test_resumed_equals_uninterrupted(make_cache, tmp_path):
    cache = make_cache([*FAILURES, make_episode("round-7", [P] * 7, True)])
    whole, losses = learn(cache, 6)
    part, _ = learn(cache, 3)
    resumed = make_algorithm("awr", CONFIG, make_model(seed=9), cache, seed=3)
    resumed.load_state_dict(load_checkpoint(save_checkpoint(tmp_path, 3, part.state_dict()))[1])
    resumed, later = learn(cache, 3, resumed, first=3)
    assert later == losses[3:]
    for ours, theirs in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)
