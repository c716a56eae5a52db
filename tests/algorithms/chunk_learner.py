"""A critic of chunks on tiny episodes, that has begun its first round."""

from dataclasses import replace

import numpy as np
import torch
from tiny_world import make_model, tiny

from vla_rl.training.algorithms import make_algorithm

TICKS = 2


def learner(cache, seed: int = 0, **changes):
    config = tiny("chunk_critic", critic={"chunk_ticks": TICKS, "hidden": (32,)}, **changes)
    algorithm = make_algorithm("chunk_critic", config, make_model(), cache, seed)
    algorithm.begin_round(cache, 1)
    return algorithm


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in one.state_dict().items())


def dark(episode):
    """Nothing but state and action tells episodes apart."""
    return replace(episode, images={"front": np.zeros_like(episode.images["front"])})
