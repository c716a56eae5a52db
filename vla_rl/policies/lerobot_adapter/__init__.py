"""Policies of lerobot (ACT, diffusion, SmolVLA, pi0, pi0.5) as trainable models and as policies of ours.

Dependency law: lerobot is imported inside functions; it takes many seconds. Nothing is ever fetched from a hub.
"""

from vla_rl.policies.lerobot_adapter.folder import load_lerobot_model, read_meta, save_lerobot_model
from vla_rl.policies.lerobot_adapter.losses import per_sample_loss
from vla_rl.policies.lerobot_adapter.model import LeRobotModel
from vla_rl.policies.lerobot_adapter.policy import LeRobotPolicy

__all__ = [
    "LeRobotModel",
    "LeRobotPolicy",
    "load_lerobot_model",
    "per_sample_loss",
    "read_meta",
    "save_lerobot_model",
]
