"""A tiny world model with perturbed weights, and batches of noise for it. Everything follows from seeds."""

from typing import Any

import torch

from world_model.config import (
    AutoencoderConfig,
    DynamicsConfig,
    HeadsConfig,
    TrainingConfig,
    WorldModelConfig,
    WorldSpec,
)
from world_model.dynamics import WorldBatch
from world_model.model import VideoModel

SPEC = WorldSpec("toy", "push", ("front", "top"), (16, 16), 3, 2, 20.0, 12, (-1.0, -1.0), (1.0, 1.0))
DYNAMICS: dict[str, Any] = {"width": 24, "layers": 2, "heads": 3, "window": 3, "memory_frames": 2, "flow_steps": 2}


def make_config(**dynamics: Any) -> WorldModelConfig:
    return WorldModelConfig(
        AutoencoderConfig(patch=2, widths=(8, 8), latent_channels=2),
        DynamicsConfig(**(DYNAMICS | dynamics)),
        HeadsConfig(hidden=8),
        TrainingConfig(
            autoencoder_steps=4, autoencoder_batch=4, dynamics_steps=6, dynamics_batch=3, window_frames=5,
            warmup_steps=2, checkpoint_every=2,
        ),
    )  # fmt: skip


def make_model(seed: int = 0, **dynamics: Any) -> VideoModel:
    """Fresh outputs are zero and would hide mistakes, so all weights are perturbed."""
    torch.manual_seed(seed)
    model = VideoModel(make_config(**dynamics), SPEC)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.dynamics.servos.normal_(std=0.1)
    return model.eval()


def make_batch(model: VideoModel, size: int = 2, frames: int = 9, seed: int = 0) -> WorldBatch:
    random = torch.Generator().manual_seed(seed)
    tokens, dim = model.autoencoder.tokens, model.autoencoder.token_dim

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=random)

    return WorldBatch(
        latents=normal(size, frames + 1, tokens, dim),
        state=normal(size, frames + 1, 3),
        action=normal(size, frames, 2),
        previous_latents=normal(size, tokens, dim),
        previous_state=normal(size, 3),
        has_previous=torch.zeros(size, dtype=torch.bool),
        inside=torch.ones(size, frames, dtype=torch.bool),
        has_next=torch.ones(size, frames, dtype=torch.bool),
        success=torch.zeros(size, frames),
        termination=torch.zeros(size, frames),
    )
