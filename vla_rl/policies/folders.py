"""Policy folders of every kind: which one a folder holds stands in its config.json."""

from pathlib import Path
from typing import Any

from vla_rl.core.errors import CheckpointError, ConfigError
from vla_rl.core.json_files import read_json
from vla_rl.core.metadata import critic_of, is_lerobots
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Policy
from vla_rl.core.registry import find
from vla_rl.policies.acting import ActingPolicy
from vla_rl.policies.checkpoint import check_spec, load_selector
from vla_rl.policies.trainable import TrainablePolicy


def policy_class(kind: str) -> type[TrainablePolicy]:
    """Return the class of a kind of policy; ConfigError for an unknown kind, or one that is no `TrainablePolicy`."""
    found = find("policies", kind)
    if not (isinstance(found, type) and issubclass(found, TrainablePolicy)):
        raise ConfigError(f"policy.kind={kind}: {found!r} is no subclass of vla_rl.policies.trainable.TrainablePolicy")
    return found


def load_model(folder: Path, expected: PolicySpec | None = None) -> tuple[TrainablePolicy, dict[str, Any]]:
    """Return the trainable policy of a folder, on the CPU, and the meta data that was saved with it.

    Raises:
        CheckpointError: For a folder that is missing, damaged or foreign, or of another interface than ``expected``.
        ConfigError: If the kind of policy is not installed here.
    """
    model, meta = policy_class(_kind(folder)).load(folder)
    if expected is not None:
        check_spec(folder, model.spec, expected)
    return model, meta


def load_policy(folder: Path, device: str = "cpu", expected: PolicySpec | None = None) -> Policy:
    """Return the policy of a folder, ready to act; with a critic in the folder it chooses among several draws.
    Arguments and errors as of `load_model`.

    Raises:
        CheckpointError: also for a critic that is damaged, of another policy, or has gone.
    """
    model, meta = load_model(folder, expected)
    policy = model.acting(device, int(meta.get("policy_version", 0)))
    if isinstance(policy, ActingPolicy):
        policy.folder = folder
    if (critic := critic_of(folder)) is not None:
        if not isinstance(policy, ActingPolicy):
            raise CheckpointError(f"{folder}: a policy of kind {model.config.kind!r} cannot choose among its draws")
        policy.selector = load_selector(critic, model, device)
    return policy


def _kind(folder: Path) -> str:
    try:
        description = read_json(folder / "config.json")
    except (OSError, ValueError):
        return "flow_vla"  # its reader says what is wrong
    if is_lerobots(description):
        return "lerobot"
    config = description.get("config") if isinstance(description, dict) else None
    return str(config.get("kind", "flow_vla")) if isinstance(config, dict) else "flow_vla"
