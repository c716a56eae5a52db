"""Policy checkpoints: a folder with ``config.json`` (what the policy is) and one safetensors file (its weights).
Never pickle.

The weights' file name holds their digest and config.json names it, so a folder that is overwritten is the old policy
or the new, never a mix.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError, ConfigError, UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.types import PolicySpec
from vla_rl.policies.flow_vla.config import FlowVLAConfig
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.policies.normalization import Statistics

FORMAT = "vla-rl-flow-policy"
FORMAT_VERSION = 1
BACKBONE = "backbone"


def save_policy(directory: Path, model: FlowVLA, meta: dict[str, Any] | None = None) -> None:
    """Write a policy, weights first, config.json last.

    Args:
        directory: created if missing; a policy in it is replaced.
        model: its config, spec and statistics are saved with the weights.
        meta: plain data to keep beside it (policy version, step, seed...).
    """
    directory.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    content = safetensors.torch.save(tensors)
    digest = hashlib.sha256(content).hexdigest()
    weights = f"model-{digest[:16]}.safetensors"
    write_atomic(directory / weights, content)
    if model.config.backbone.folder:
        model.backbone.save_description(directory / BACKBONE)
    description = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "weights": weights,
        "sha256": digest,
        "spec": config_to_dict(model.spec),
        "config": config_to_dict(model.config),
        "statistics": model.statistics.to_dict(),
        "meta": meta or {},
    }
    write_atomic(directory / "config.json", json.dumps(description, indent=1).encode())
    for stale in directory.glob("model-*.safetensors"):
        if stale.name != weights:
            stale.unlink()


def load_policy(directory: Path, expected: PolicySpec | None = None) -> tuple[FlowVLA, dict[str, Any]]:
    """Read a policy onto the CPU.

    Args:
        directory: as `save_policy` wrote it.
        expected: the robot's interface; a policy made for another one is refused.

    Returns:
        the model, and the meta data that was saved with it.

    Raises:
        CheckpointError: for a missing, damaged or foreign folder, in one line; nothing in the folder is ever executed.
    """
    description = _read_description(directory)
    try:
        config = config_from_dict(FlowVLAConfig, description["config"])
        spec = config_from_dict(PolicySpec, description["spec"])
        statistics = Statistics.from_dict(description["statistics"])
        meta = dict(description["meta"])
    except (KeyError, TypeError, ValueError, ConfigError) as error:
        raise CheckpointError(f"{directory / 'config.json'} is damaged or of another version: {error}") from error
    if expected is not None:
        _check_spec(directory, spec, expected)
    if statistics.state.size != spec.state_dim or statistics.action.size != spec.action_dim:
        raise CheckpointError(
            f"{directory / 'config.json'} is damaged: its statistics and its spec have different dimensions"
        )
    tensors = _read_weights(directory, description)
    if config.backbone.folder:  # its description travels with the checkpoint, its weights are among the policy's
        config = replace(config, backbone=replace(config.backbone, folder=str(directory / BACKBONE)))
    model = _build(directory, config, spec, statistics)
    wanted = model.state_dict()
    missing, unknown = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or unknown:
        raise CheckpointError(
            f"{directory}: the weights lack {missing[:3]} and have unknown {unknown[:3]}; they fit another config"
        )
    for name, tensor in tensors.items():
        if tensor.shape != wanted[name].shape or tensor.dtype != wanted[name].dtype:
            found, needed = (f"{part.dtype} {list(part.shape)}" for part in (tensor, wanted[name]))
            raise CheckpointError(f"{directory}: {name} is {found}, the config asks for {needed}")
        if not tensor.isfinite().all():
            raise CheckpointError(
                f"{directory}: {name} holds numbers that are not finite; the training diverged, take an older one"
            )
    model.load_state_dict(tensors)
    return model.eval(), meta


def _read_description(directory: Path) -> dict[str, Any]:
    file = directory / "config.json"
    try:
        description = json.loads(file.read_bytes())
    except OSError as error:
        pickles = sorted(
            path.name for pattern in ("*.pt", "*.pth", "*.bin", "*.pkl") for path in directory.glob(pattern)
        )
        hint = f"; {pickles[0]} is a pickle and is never opened" if pickles else ""
        raise CheckpointError(
            f"{directory} holds no policy: cannot read config.json ({error.strerror}){hint}"
        ) from error
    except ValueError as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise CheckpointError(f"{file} is not the config of a {FORMAT}; point at a folder that save_policy wrote")
    if description.get("format_version") != FORMAT_VERSION:
        raise CheckpointError(
            f"{file} has format version {description.get('format_version')!r}, this program reads {FORMAT_VERSION}"
        )
    return description


def _read_weights(directory: Path, description: dict[str, Any]) -> dict[str, Any]:
    name = description.get("weights")
    if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
        raise CheckpointError(
            f"{directory / 'config.json'} names the weights {name!r}; only a .safetensors file beside it is read"
        )
    try:
        content = (directory / name).read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot read the weights {directory / name}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != description.get("sha256"):
        raise CheckpointError(
            f"{directory / name} is damaged: its digest is not the one in config.json; copy the checkpoint anew"
        )
    try:
        return safetensors.torch.load(content)
    except (safetensors.SafetensorError, ValueError) as error:
        raise CheckpointError(f"{directory / name} is not a safetensors file: {error}") from error


def _build(directory: Path, config: FlowVLAConfig, spec: PolicySpec, statistics: Statistics) -> FlowVLA:
    try:
        return FlowVLA(config, spec, statistics, pretrained=False)
    except (UserError, RuntimeError, ValueError, TypeError, MemoryError) as error:  # sizes that no network can have
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CheckpointError(f"{directory}: no policy can be built from config.json: {reason}") from error


def _check_spec(directory: Path, found: PolicySpec, expected: PolicySpec) -> None:
    for name, wanted in vars(expected).items():
        value = getattr(found, name)
        if value != wanted:
            raise CheckpointError(
                f"{directory} was trained with {name}={value!r}, asked for is {wanted!r}; choose a fitting checkpoint"
            )
