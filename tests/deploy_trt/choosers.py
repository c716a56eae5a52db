"""A policy that chooses among its draws, tiny and of random weights, so that every part of a choice matters."""

from pathlib import Path

import torch
from torch import nn

from vla_rl.core.metadata import CRITIC_FOLDER
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic, ChunkCriticConfig
from vla_rl.policies.checkpoint import save_selector
from vla_rl.policies.corrector import ResidualCorrector
from vla_rl.policies.corrector_training import exported
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.residual import Residual, ResidualConfig

TICKS, DRAWS = 4, 3


def make_selector(
    model: FlowVLA, seed: int = 0, draws: int = DRAWS, offset: float = 0.3, residuals: bool = True, **choice: float
) -> BestOfN:
    """Critic and residual of random weights and statistics; ``choice`` are other options of `BestOfNConfig`."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        critic = ChunkCritic(model, ChunkCriticConfig(chunk_ticks=TICKS, members=3, hidden=(16, 8)))
        residual = Residual(model, ResidualConfig(bound=0.4, hidden=(16,))) if residuals else None
        with torch.no_grad():
            for module in (critic, residual):
                for name, tensor in module.state_dict().items() if module is not None else ():
                    tensor.add_(0.3 * torch.rand(tensor.shape) if "scale" in name else 0.3 * torch.randn(tensor.shape))
    return BestOfN(critic, BestOfNConfig(draws, offset, **choice), residual)


def make_head(model: FlowVLA) -> ResidualCorrector:
    """A residual head of random weights."""
    keypoints = 2 * model.config.vision.keypoints * len(model.spec.cameras)
    inputs = keypoints + model.spec.state_dim + model.spec.action_dim + 8
    return exported(model, nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, model.spec.action_dim)))


def save_choosing(folder: Path, model: FlowVLA, selector: BestOfN | None, version: int = 3) -> Path:
    """The folder of a policy that chooses."""
    if selector is not None:
        save_selector(folder / CRITIC_FOLDER, selector)
    model.save(folder, {"policy_version": version})
    return folder


def choosing(model: FlowVLA, selector: BestOfN, version: int = 3) -> FlowVLAPolicy:
    """The same in torch, acting."""
    policy = FlowVLAPolicy(model, version=version)
    policy.selector = selector
    return policy
