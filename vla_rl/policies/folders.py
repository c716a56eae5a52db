"""Policy folders of every kind: ours, and those that lerobot wrote. Which one it is stands in its config.json.

Dependency law: lerobot is imported only for a policy of lerobot's.
"""

import json
from pathlib import Path
from typing import Any

from vla_rl.core.protocols import Policy
from vla_rl.core.types import PolicySpec
from vla_rl.policies.flow_vla import FlowVLA, FlowVLAPolicy
from vla_rl.policies.flow_vla import load_policy as load_flow_policy
from vla_rl.policies.flow_vla import save_policy as save_flow_policy
from vla_rl.policies.normalization import Statistics


def is_lerobot_folder(folder: Path) -> bool:
    """Whether a folder holds a policy of lerobot's: its config.json has a policy type and is none of ours."""
    try:
        description = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False  # whoever reads it as ours says what is wrong
    return isinstance(description, dict) and "type" in description and "format" not in description


def load_model(folder: Path, statistics: Statistics | None = None, spec: PolicySpec | None = None) -> Any:
    """The trainable model of a policy folder, a `FlowVLA` or a `LeRobotModel`, on the CPU.

    Args:
        folder: of the policy.
        statistics, spec: of the data, for a folder that lerobot wrote; it says neither in our terms.

    Raises:
        CheckpointError: for a folder that is missing, damaged or foreign.
    """
    if not is_lerobot_folder(folder):
        return load_flow_policy(folder)[0]
    from vla_rl.policies.lerobot_adapter import load_lerobot_model

    return load_lerobot_model(folder, statistics, spec)


def save_model(folder: Path, model: Any, meta: dict[str, Any]) -> None:
    """Write a policy folder that `load_model` and `load_policy` read."""
    if isinstance(model, FlowVLA):
        save_flow_policy(folder, model, meta)
        return
    from vla_rl.policies.lerobot_adapter import save_lerobot_model

    save_lerobot_model(folder, model, meta)


def load_policy(folder: Path, device: str = "cpu") -> Policy:
    """The policy of a folder, ready to act. Raises as `load_model`."""
    if not is_lerobot_folder(folder):
        flow, meta = load_flow_policy(folder)
        return FlowVLAPolicy(flow, device, int(meta.get("policy_version", 0)))
    from vla_rl.policies.lerobot_adapter import LeRobotPolicy, load_lerobot_model, read_meta
    from vla_rl.policies.lerobot_policy import LeRobotFlowPolicy, can_be_guided

    model, version = load_lerobot_model(folder).to(device), int(read_meta(folder).get("policy_version", 0))
    if can_be_guided(model.policy):
        return LeRobotFlowPolicy(model.policy, model.prepared, model.postprocess, version)
    return LeRobotPolicy(model, device, version)
