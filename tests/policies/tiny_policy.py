"""A tiny policy, its batch and its observation. Everything follows from seeds."""

from typing import Any

import numpy as np
import torch

from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Observation
from vla_rl.policies.base import PolicyBatch
from vla_rl.policies.flow_vla import ExpertConfig, FlowVLA, FlowVLAConfig, TextConfig, VisionConfig

SPEC = PolicySpec("toy", ("front", "top"), (16, 16), state_dim=3, action_dim=2)
TINY: dict[str, Any] = {
    "horizon": 8,
    "vision": VisionConfig(widths=(8,), kernels=(4,), strides=(4,), keypoints=4, patches=2),
    "text": TextConfig(max_words=6),
    "expert": ExpertConfig(width=32, layers=2, heads=2, actions_per_token=2),
}


def make_model(seed: int = 0, discrete_dims: tuple[int, ...] = (), **options: Any) -> FlowVLA:
    """A tiny model with perturbed weights: a fresh output layer is zero and would hide mistakes."""
    rng = np.random.default_rng(seed)
    statistics = Statistics.from_arrays(rng.normal(2, 3, (50, 3)), rng.normal(-1, 2, (50, 2)), discrete_dims)
    torch.manual_seed(seed)
    model = FlowVLA(FlowVLAConfig(**(TINY | options)), SPEC, statistics)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model


def make_batch(model: FlowVLA, size: int = 4, seed: int = 0) -> PolicyBatch:
    generator = torch.Generator().manual_seed(seed)
    spec = model.spec
    return PolicyBatch(
        images={
            camera: torch.randint(0, 256, (size, *spec.image_size, 3), dtype=torch.uint8, generator=generator)
            for camera in spec.cameras
        },
        state=torch.randn(size, spec.state_dim, generator=generator),
        text=model.tokenize(["push the block"] * size),
        actions=torch.randn(size, model.config.horizon, spec.action_dim, generator=generator),
        valid=torch.ones(size, model.config.horizon, 1, dtype=torch.bool),
    )


def make_observation(seed: int = 0, tick: int = 0, task: str = "push the block") -> Observation:
    rng = np.random.default_rng(seed)
    images = {camera: rng.integers(0, 256, (*SPEC.image_size, 3), dtype=np.uint8) for camera in SPEC.cameras}
    return Observation(images, rng.normal(size=SPEC.state_dim).astype(np.float32), task, tick)
