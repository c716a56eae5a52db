"""Policies of lerobot (ACT, diffusion, SmolVLA, pi0, pi0.5) as trainable policies of ours.

Dependency law: lerobot is imported inside functions; it takes many seconds. Nothing is ever fetched from a hub.
"""

from vla_rl.policies.lerobot_adapter.folder import is_lerobots_own
from vla_rl.policies.lerobot_adapter.model import LeRobotModel, LeRobotPolicyConfig

__all__ = ["LeRobotModel", "LeRobotPolicyConfig", "is_lerobots_own"]
