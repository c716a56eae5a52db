"""A tiny world model of the toy episodes, seen through an untrained policy. Everything follows from seeds."""

from pathlib import Path

import torch

from vla_rl.acting.world_folder import Eyes
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.data.cache import FrameCache
from vla_rl.data.statistics import data_statistics
from vla_rl.policies.flow_vla.config import ExpertConfig, FlowVLAConfig, VisionConfig
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.training.world_model import WorldModelConfig, fit_world
from world_model.feature_dynamics import FeatureDynamicsConfig
from world_model.feature_world import FeatureWorld
from world_model.protocol import WorldSpec

SPEC = WorldSpec("toy", "push", ("front", "top"), (16, 16), 3, 2, 20.0, 12, (-1.0, -1.0), (1.0, 1.0))
TICKS = 3
TINY = FlowVLAConfig(vision=VisionConfig(widths=(8,), kernels=(4,), strides=(4,)), expert=ExpertConfig(width=16))


def tiny_policy(cache: FrameCache, image_size: tuple[int, int] = (16, 16)) -> FlowVLA:
    torch.manual_seed(0)
    spec = PolicySpec("toy", SPEC.cameras, image_size, 3, 2)
    return FlowVLA(TINY, spec, data_statistics(cache, ())).eval()


def tiny_world(
    cache: FrameCache,
    folder: Path,
    dynamics_steps: int = 5,
    decoder_steps: int = 2,
    cameras: tuple[str, ...] = SPEC.cameras,
) -> FeatureWorld:
    settings = WorldModelConfig(FeatureDynamicsConfig(members=2, steps=dynamics_steps), decoder_steps)
    return fit_world(settings, Eyes(tiny_policy(cache)), cache, cameras, folder, TICKS)
