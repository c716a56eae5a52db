"""Folders of lerobot policies, as lerobot writes them, with one file of ours beside (``vla_rl.json``: interface,
statistics, meta data). lerobot's tools and ours both read them.

Nothing in a folder is executed. Weights are safetensors. Processors are built from statistics, not from the folder's
own description, which may name any class.
"""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import CheckpointError, ConfigError, UserError, one_line
from vla_rl.core.files import digest_of, fsync_path
from vla_rl.core.json_files import check_seal, read_json, write_sealed
from vla_rl.core.metadata import is_lerobots
from vla_rl.core.normalization import Statistics
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.progress import announced
from vla_rl.core.signing import check_trusted
from vla_rl.core.validation import check_version, plain_name
from vla_rl.policies.lerobot_adapter.lora import WEIGHTS, Added

OURS = "vla_rl.json"
FORMAT_VERSION = 2
IMAGE_PREFIX = "observation.images."
STATE = "observation.state"


class Description(NamedTuple):
    """What our file in a folder says."""

    spec: PolicySpec
    statistics: Statistics
    meta: dict[str, Any]
    added: Added | None
    """Of a folder that holds adapters alone."""


def is_lerobots_own(folder: Path) -> bool:
    """Return whether lerobot wrote a folder alone: its config.json is lerobot's, and there is no file of ours.

    Example:
        >>> is_lerobots_own(Path("models/act")), is_lerobots_own(Path("runs/dot/policies/version_0000"))
        (True, False)
    """
    try:
        description = read_json(folder / "config.json")
    except (OSError, ValueError):
        return False  # its reader says what is wrong
    return is_lerobots(description) and not (folder / OURS).exists()


def write_folder(folder: Path, parts: list[Any], ours: Mapping[str, Any]) -> None:
    """Write a policy and its processors, which lerobot saves, and the content of our file.

    It appears when it is complete, in place of a policy in the folder; CheckpointError if it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for part in parts:
            part.save_pretrained(temporary)
        digests = {file.name: digest_of(file) for file in temporary.iterdir() if file.is_file()}
        write_sealed(temporary / OURS, {"format_version": FORMAT_VERSION, **ours, "files": digests})
        for file in temporary.iterdir():
            fsync_path(file)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        fsync_path(folder.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write the policy {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def read_ours(folder: Path) -> Description | None:
    """Return what our file says, None for a folder of lerobot's alone; CheckpointError if it is damaged."""
    file = folder / OURS
    try:
        raw = read_json(file)
        if (version := raw["format_version"]) != FORMAT_VERSION:
            raise CheckpointError(
                f"{file} has format version {version!r}, this program reads {FORMAT_VERSION}; make it anew"
            )
        check_seal(raw)
        for name, digest in raw["files"].items():
            if digest_of(folder / plain_name(name)) != digest:
                raise ValueError(f"{name} is not the file that it was written with")
        check_trusted(folder)
        spec, statistics = config_from_dict(PolicySpec, raw["spec"]), Statistics.from_dict(raw["statistics"])
        meta = dict(raw["meta"])
        check_version(meta.get("policy_version", 0))
        return Description(spec, statistics, meta, Added.from_dict(raw["lora"]) if "lora" in raw else None)
    except FileNotFoundError:
        if file.exists():
            raise CheckpointError(f"{folder} lacks a file that {OURS} names; copy the folder anew") from None
        check_trusted(folder)
        return None
    except (AttributeError, OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error


def read_config(folder: Path, spec: PolicySpec) -> Any:
    """lerobot's config in a folder, for the CPU, with the features of an interface.

    Raises:
        CheckpointError: for a folder that is missing, damaged or foreign, or a policy for another interface.
    """
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no policy: there is no config.json, and nothing is fetched from a hub")
    try:
        with announced("loading lerobot"):
            from lerobot.configs import PreTrainedConfig
            from lerobot.policies import factory  # noqa: F401  # it makes the kinds known
    except ImportError as error:
        raise UserError(f"a policy of lerobot's needs {error.name}; install vla-rl with the extra 'train'") from error
    with explained(folder):
        config = PreTrainedConfig.from_pretrained(folder, local_files_only=True)
        config.device, config.push_to_hub = "cpu", False
        check_interface(config, spec)
    return config


def make_policy(folder: Path, config: Any, pretrained: bool) -> Any:
    """Return lerobot's policy of a config, with the folder's weights if wanted; errors as `explained` has them."""
    from lerobot.policies.factory import get_policy_class

    policy = get_policy_class(config.type)(config)
    weights = folder / WEIGHTS
    if not (pretrained and weights.is_file()):
        if pretrained and config.use_peft:
            raise UserError("it holds adapters alone; merge them into their base policy first")
        return policy
    return type(policy)._load_as_safetensor(policy, str(weights), "cpu", strict=True)


@contextlib.contextmanager
def explained(folder: Path) -> Iterator[None]:
    """Whatever goes wrong inside over a folder is a `CheckpointError` of one line; nothing is fetched from a hub."""
    from huggingface_hub import constants

    offline = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True  # the variable of this name is read once, when the package is first imported
    try:
        yield
    except UserError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (OSError, ImportError) as error:
        raise CheckpointError(f"{folder}: {hub_sentence(error)}") from error
    except Exception as error:  # lerobot, draccus, safetensors and torch raise a dozen kinds for a damaged folder
        raise CheckpointError(f"{folder} is damaged, or no policy that lerobot 0.6 reads: {one_line(error)}") from error
    finally:
        constants.HF_HUB_OFFLINE = offline


def hub_sentence(error: Exception) -> str:
    """What to do when a part of a policy would have to be fetched."""
    return (
        "the policy needs a part that is not on this machine, and nothing is fetched from a hub "
        f"({one_line(error, 200)}). "
        "Name a local folder in its config.json, or put the part into the Hugging Face cache of this machine"
    )


def check_interface(config: Any, spec: PolicySpec) -> None:
    """Fill a new config's features in from the interface; refuse a config that was made for another one.

    Raises:
        UserError: with what differs, or for a policy whose observations or actions are not of consecutive ticks, or
            whose actions are relative to the state.
    """
    from lerobot.configs import FeatureType, PolicyFeature

    if getattr(config, "use_relative_actions", False):
        raise UserError(
            f"the {config.type} policy plans actions relative to the state (use_relative_actions), expected are "
            "those that the robot takes. Critics and exported graphs normalize by them"
        )
    wanted = {
        IMAGE_PREFIX + camera: PolicyFeature(FeatureType.VISUAL, (3, *spec.image_size)) for camera in spec.cameras
    }
    wanted[STATE] = PolicyFeature(FeatureType.STATE, (spec.state_dim,))
    action = {"action": PolicyFeature(FeatureType.ACTION, (spec.action_dim,))}
    for name, features in (("input_features", wanted), ("output_features", action)):
        found = getattr(config, name)
        if not found:
            setattr(config, name, features)
        elif {key: tuple(feature.shape) for key, feature in found.items()} != {
            key: feature.shape for key, feature in features.items()
        }:
            shapes = {key: list(feature.shape) for key, feature in found.items()}
            asked = {key: list(feature.shape) for key, feature in features.items()}
            raise UserError(f"the {config.type} policy has the {name} {shapes}, the data has {asked}; map the data")
    first = 1 - n_obs_steps(config)
    read, planned = config.observation_delta_indices, config.action_delta_indices
    if read not in (None, [*range(first, 1)]) or planned != [*range(first, first + len(planned))]:
        raise UserError(
            f"the {config.type} policy reads observations at the ticks {read} and plans for {planned}; "
            "expected are consecutive ticks with one beginning"
        )


def n_obs_steps(config: Any) -> int:
    """Return the number of observations that a policy of lerobot reads."""
    return len(config.observation_delta_indices or [0])
