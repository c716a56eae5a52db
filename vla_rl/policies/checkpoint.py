"""Policy folders: ``config.json`` (what the policy is) and one safetensors file (its weights). Never pickle.

The weights' file name holds their digest and config.json names it, so a folder that is overwritten is the old policy
or the new, never a mix.
"""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
from torch import Tensor

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError, ConfigError, UserError
from vla_rl.core.files import write_weights
from vla_rl.core.types import PolicySpec
from vla_rl.policies.normalization import Statistics

if TYPE_CHECKING:
    from vla_rl.policies.trainable import TrainablePolicy

FORMAT = "vla-rl-policy"
_FORMATS = (FORMAT, "vla-rl-flow-policy")  # the second from when there was one kind of policy
FORMAT_VERSION = 1


def save_checkpoint(folder: Path, model: "TrainablePolicy", meta: dict[str, Any]) -> None:
    """See `TrainablePolicy.save`: weights first, config.json last."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "spec": config_to_dict(model.spec),
        "horizon": model.horizon,
        "config": config_to_dict(model.config),
        "statistics": model.statistics.to_dict(),
        "meta": meta,
    }
    write_weights(folder, "model", safetensors.torch.save(tensors), description)


def load_checkpoint[PolicyT: TrainablePolicy](
    folder: Path, policy_class: type[PolicyT]
) -> tuple[PolicyT, dict[str, Any]]:
    """See `TrainablePolicy.load`."""
    description = _read_description(folder)
    file = folder / "config.json"
    try:
        upgrade = getattr(policy_class.config_class, "upgrade", lambda raw: raw)  # of a policy of an earlier version
        config = config_from_dict(policy_class.config_class, upgrade(description["config"]))
        spec = config_from_dict(PolicySpec, description["spec"])
        statistics = Statistics.from_dict(description["statistics"])
        meta = dict(description["meta"])
    except (KeyError, TypeError, ValueError, AttributeError, ConfigError) as error:
        raise CheckpointError(f"{file} is damaged or of another version: {error}") from error
    if statistics.state.size != spec.state_dim or statistics.action.size != spec.action_dim:
        raise CheckpointError(f"{file} is damaged: its statistics and its spec have different dimensions")
    tensors = _read_weights(folder, description)
    try:
        model = policy_class.build(policy_class.config_in(folder, config), spec, statistics, pretrained=False)
    except (UserError, RuntimeError, ValueError, TypeError, MemoryError) as error:  # sizes that no network can have
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{folder}: no policy can be built from config.json: {reason}") from error
    _check_weights(folder, tensors, model.state_dict())
    model.load_state_dict(tensors)
    return model.eval(), meta


def check_spec(folder: Path, found: PolicySpec, expected: PolicySpec) -> None:
    """Refuse a policy that was made for another robot.

    Raises:
        CheckpointError: with the first thing that differs.
    """
    for name, wanted in vars(expected).items():
        value = getattr(found, name)
        if value != wanted:
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


def _read_description(folder: Path) -> dict[str, Any]:
    file = folder / "config.json"
    try:
        description = json.loads(file.read_bytes())
    except OSError as error:
        pickles = sorted(path.name for pattern in ("*.pt", "*.pth", "*.bin", "*.pkl") for path in folder.glob(pattern))
        hint = f"; {pickles[0]} is a pickle and is never opened" if pickles else ""
        raise CheckpointError(f"{folder} holds no policy: cannot read config.json ({error.strerror}){hint}") from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    if not isinstance(description, dict) or description.get("format") not in _FORMATS:
        raise CheckpointError(f"{file} is not the config of a policy of ours; point at a version in a run's policies/")
    if description.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{file} has format version {description.get('format_version')!r}, this program reads {FORMAT_VERSION}"
        )
    return description


def _read_weights(folder: Path, description: dict[str, Any]) -> dict[str, Tensor]:
    name = description.get("weights")
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        raise CheckpointError(
            f"{folder / 'config.json'} names the weights {name!r}; only a .safetensors file beside it is read"
        )
    try:
        content = (folder / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read the weights {folder / name}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != description.get("sha256"):
        raise CheckpointError(
            f"{folder / name} is damaged: its digest is not the one in config.json; copy the checkpoint anew"
        )
    try:
        tensors: dict[str, Tensor] = safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError) as error:
        raise CheckpointError(f"{folder / name} is not a safetensors file: {error}") from error
    return tensors
