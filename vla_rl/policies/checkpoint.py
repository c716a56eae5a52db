"""Policy folders: ``config.json`` (what the policy is) and one safetensors file (its weights); critic and residual lie
in a folder inside. Never pickle.

The weights' file name holds their digest, and config.json names it. An overwritten folder is therefore the old policy
or the new, never a mix.
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
from torch import Tensor

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError, ConfigError, UserError, one_line
from vla_rl.core.metadata import (
    CHOOSES,
    CRITIC_FOLDER,
    CRITIC_FORMAT,
    CRITIC_VERSION,
    POLICY_FORMAT,
    POLICY_VERSION,
    RESIDUAL,
    read_weights,
    write_weights,
)
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec, spec_difference
from vla_rl.core.validation import check_version
from vla_rl.policies.base import BasePolicy
from vla_rl.policies.best_of_n import BestOfN, BestOfNConfig, ChunkCritic, ChunkCriticConfig
from vla_rl.policies.residual import Residual, ResidualConfig

if TYPE_CHECKING:
    from vla_rl.policies.trainable import TrainablePolicy


def save_checkpoint(folder: Path, model: "TrainablePolicy", meta: dict[str, Any]) -> None:
    """Save a policy: weights first, config.json last."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    description = {
        "format": POLICY_FORMAT,
        "format_version": POLICY_VERSION,
        "spec": config_to_dict(model.spec),
        "horizon": model.horizon,
        "provides": sorted(model.capabilities),
        "config": config_to_dict(model.config),
        "statistics": model.statistics.to_dict(),
        "meta": meta,
        CHOOSES: (folder / CRITIC_FOLDER).is_dir(),
        **({"n_obs_steps": model.n_obs_steps} if model.n_obs_steps > 1 else {}),
    }
    write_weights(folder, "model", safetensors.torch.save(tensors), description)


def load_checkpoint[PolicyT: TrainablePolicy](
    folder: Path, policy_class: type[PolicyT]
) -> tuple[PolicyT, dict[str, Any]]:
    """Load a saved policy."""
    description, content = read_weights(folder, POLICY_FORMAT, POLICY_VERSION)
    file = folder / "config.json"
    try:
        config = config_from_dict(policy_class.config_class, description["config"])
        spec = config_from_dict(PolicySpec, description["spec"])
        statistics = Statistics.from_dict(description["statistics"])
        meta = dict(description["meta"])
        check_version(meta.get("policy_version", 0))
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise CheckpointError(f"{file} is damaged or of another version: {error}") from error
    if statistics.state.size != spec.state_dim or statistics.action.size != spec.action_dim:
        raise CheckpointError(f"{file} is damaged: its statistics and its spec have different dimensions")
    try:
        tensors = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError) as error:
        raise CheckpointError(f"{folder / description['weights']} is not a safetensors file: {error}") from error
    try:
        model = policy_class.build(policy_class.config_in(folder, config), spec, statistics, pretrained=False)
    except (UserError, RuntimeError, ValueError, TypeError, MemoryError) as error:  # sizes that no network can have
        raise CheckpointError(f"{folder}: no policy can be built from config.json: {one_line(error)}") from error
    _check_weights(folder, tensors, model.state_dict())
    model.load_state_dict(tensors)
    return model.eval(), meta


def save_policy(folder: Path, model: "TrainablePolicy", selector: BestOfN | None, meta: dict[str, Any]) -> None:
    """Write all of a policy, with plain ``meta`` data, in place of one that was there.

    What chooses for it comes first: the policy's config.json says that all of it is there.
    """
    shutil.rmtree(folder / CRITIC_FOLDER, ignore_errors=True)
    if selector is not None:
        save_selector(folder / CRITIC_FOLDER, selector)
    model.save(folder, meta)


def save_selector(folder: Path, selector: BestOfN) -> None:
    """Write critic, residual and how they choose: weights first, config.json last."""
    critic, residual = selector.critic, selector.residual
    about = {
        "format": CRITIC_FORMAT,
        "format_version": CRITIC_VERSION,
        "config": None if critic is None else config_to_dict(critic.config),
        "best_of_n": config_to_dict(selector.config),
        "residual": None if residual is None else config_to_dict(residual.config),
        "ticks": selector.ticks,
    }
    weights = {} if critic is None else dict(critic.state_dict())
    weights |= {} if residual is None else {RESIDUAL + name: tensor for name, tensor in residual.state_dict().items()}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in weights.items()}
    write_weights(folder, "critic", safetensors.torch.save(tensors), about)


def load_selector(folder: Path, model: BasePolicy, device: str = "cpu") -> BestOfN:
    """What `save_selector` wrote, for the policy that it was saved with, on that policy's device.

    Raises:
        CheckpointError: if it is damaged, of another version or of another policy.
    """
    about, content = read_weights(folder, CRITIC_FORMAT, CRITIC_VERSION)
    try:
        critic, residual = None, None
        weights = safetensors.torch.load(content)
        if not all(tensor.isfinite().all() for tensor in weights.values()):
            raise CheckpointError(f"{folder} holds numbers that are not finite; take an older version")
        if about["config"] is not None:
            critic = ChunkCritic(model, config_from_dict(ChunkCriticConfig, about["config"])).to(device)
            critic.load_state_dict({name: weight for name, weight in weights.items() if not name.startswith(RESIDUAL)})
        config = config_from_dict(BestOfNConfig, about["best_of_n"])
        if about["residual"] is not None:
            residual = Residual(model, config_from_dict(ResidualConfig, about["residual"])).to(device)
            residual.load_state_dict(
                {name.removeprefix(RESIDUAL): weight for name, weight in weights.items() if name.startswith(RESIDUAL)}
            )
        return BestOfN(critic, config, residual, int(about["ticks"]))
    except (KeyError, TypeError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise CheckpointError(f"{folder} holds no critic that fits its policy: {one_line(error)}") from error


def check_spec(folder: Path, found: PolicySpec, expected: PolicySpec) -> None:
    """Refuse a policy that was made for another robot.

    Raises:
        CheckpointError: With the first thing that differs. Dimensions that only one of the two names are no difference.
    """
    if differs := spec_difference(found, expected):
        name, value, wanted = differs
        raise CheckpointError(
            f"{folder} was trained with {name}={value!r}, asked for is {wanted!r}; choose a fitting checkpoint"
        )


def _check_weights(folder: Path, tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise CheckpointError(
            f"{folder}: the weights lack {missing[:3]} and have unknown {unknown[:3]}; they fit another config"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            found, needed = (f"{part.dtype} {list(part.shape)}" for part in (tensor, wanted[name]))
            raise CheckpointError(f"{folder}: {name} is {found}, the config asks for {needed}")
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{folder}: {name} holds numbers that are not finite; the training diverged, take an older one"
            )
