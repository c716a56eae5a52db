"""The built-in vision-language-action policy: see `model` for the math, `config` for the sizes."""

from vla_rl.policies.encoders import TextConfig, VisionConfig
from vla_rl.policies.flow_vla.config import BackboneConfig, ExpertConfig, FlowVLAConfig, preset
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.policies.flow_vla.policy import FlowVLAPolicy

__all__ = [
    "BackboneConfig",
    "ExpertConfig",
    "FlowVLA",
    "FlowVLAConfig",
    "FlowVLAPolicy",
    "TextConfig",
    "VisionConfig",
    "preset",
]
