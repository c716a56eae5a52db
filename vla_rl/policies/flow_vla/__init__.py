"""The built-in vision-language-action policy: see `model` for the maths, `config` for the sizes, `checkpoint` for the
files.
"""

from vla_rl.core.types import PolicySpec
from vla_rl.policies.flow_vla.checkpoint import load_policy, save_policy
from vla_rl.policies.flow_vla.config import (
    BackboneConfig,
    ExpertConfig,
    FlowVLAConfig,
    TextConfig,
    VisionConfig,
    preset,
)
from vla_rl.policies.flow_vla.model import FlowVLA, Indicator, PolicyBatch, Prefix
from vla_rl.policies.flow_vla.policy import FlowVLAPolicy

__all__ = [
    "BackboneConfig",
    "ExpertConfig",
    "FlowVLA",
    "FlowVLAConfig",
    "FlowVLAPolicy",
    "Indicator",
    "PolicyBatch",
    "PolicySpec",
    "Prefix",
    "TextConfig",
    "VisionConfig",
    "load_policy",
    "preset",
    "save_policy",
]
