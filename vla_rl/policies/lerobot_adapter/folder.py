"""Folders of lerobot policies: as lerobot writes them, with one file of ours beside (``vla_rl.json``: interface,
statistics, meta data), so that lerobot's tools and ours both read them.

Nothing in a folder is executed: weights are safetensors, processors are built anew from statistics instead of from the
folder's own description, which may name any class.
"""

import json
import os
import shutil
from pathlib import Path
from typing import Any

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError, ConfigError, UserError
from vla_rl.core.files import fsync_directory, fsync_file
from vla_rl.core.types import PolicySpec
from vla_rl.policies.lerobot_adapter.model import LeRobotModel, hub_sentence
from vla_rl.policies.normalization import Statistics

OURS = "vla_rl.json"
FORMAT_VERSION = 1


def save_lerobot_model(folder: Path, model: LeRobotModel, meta: dict[str, Any]) -> None:
    """Write a folder that lerobot and `load_lerobot_model` read. It appears when it is complete.

    Raises:
        CheckpointError: if it cannot be written.
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    ours = {"format_version": FORMAT_VERSION, "spec": config_to_dict(model.spec)}
    ours |= {"statistics": model.statistics.to_dict(), "meta": meta}
    try:
        temporary.mkdir(parents=True)
        model.policy.save_pretrained(temporary)
        model.preprocess.save_pretrained(temporary)
        model.postprocess.save_pretrained(temporary)
        (temporary / OURS).write_text(json.dumps(ours, indent=1))
        for file in temporary.iterdir():
            fsync_directory(file) if file.is_dir() else fsync_file(file)
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
        fsync_directory(folder.parent)
    except OSError as error:
        raise CheckpointError(f"cannot write the policy {folder}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def load_lerobot_model(
    folder: Path, statistics: Statistics | None = None, spec: PolicySpec | None = None
) -> LeRobotModel:
    """Read a policy onto the CPU.

    Args:
        folder: as lerobot or `save_lerobot_model` wrote it; without ``model.safetensors`` the weights are new ones.
        statistics, spec: of the data, for a folder without a file of ours; else the file's are used.

    Raises:
        CheckpointError: for a folder that is missing, damaged or foreign, or a part that a hub would have to give.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when lerobot is first imported
    try:
        from lerobot.configs import PreTrainedConfig
        from lerobot.policies.factory import get_policy_class
    except ImportError as error:
        raise UserError(f"a policy of lerobot's needs {error.name}; install vla-rl with the extra 'train'") from error
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"{folder} holds no policy: there is no config.json, and nothing is fetched from a hub")
    ours = _read_ours(folder)
    if ours is not None:
        statistics, spec = ours[0], ours[1]
    if statistics is None or spec is None:
        raise CheckpointError(
            f"{folder} does not say what its numbers were normalised by (no {OURS}); fine-tune it first: "
            f"vla-rl finetune --policy {folder} --data PATH"
        )
    kind = "lerobot"
    try:
        config = PreTrainedConfig.from_pretrained(folder, local_files_only=True)
        kind, config.device, config.push_to_hub = config.type, "cpu", False
        from vla_rl.policies.lerobot_adapter.model import check_features

        check_features(config, spec)
        policy = get_policy_class(kind)(config)
        weights = folder / "model.safetensors"
        if weights.is_file():
            policy = type(policy)._load_as_safetensor(policy, str(weights), "cpu", strict=True)
        return LeRobotModel(policy, spec, statistics)
    except UserError as error:
        raise CheckpointError(f"{folder}: {error}") from error
    except (OSError, ImportError) as error:
        raise CheckpointError(f"{folder}: {hub_sentence(kind, error)}") from error
    except Exception as error:  # lerobot, draccus, safetensors and torch raise a dozen kinds for a damaged folder
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise CheckpointError(f"{folder} is damaged, or not a policy that lerobot 0.6 reads: {reason}") from error


def read_meta(folder: Path) -> dict[str, Any]:
    """The meta data that was saved with a policy; empty for a folder that lerobot wrote. Raises CheckpointError."""
    ours = _read_ours(folder)
    return {} if ours is None else ours[2]


def _read_ours(folder: Path) -> tuple[Statistics, PolicySpec, dict[str, Any]] | None:
    file = folder / OURS
    try:
        raw = json.loads(file.read_bytes())
        if raw["format_version"] != FORMAT_VERSION:
            raise ValueError(f"format version {raw['format_version']!r}, this program reads {FORMAT_VERSION}")
        return Statistics.from_dict(raw["statistics"]), config_from_dict(PolicySpec, raw["spec"]), dict(raw["meta"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, ConfigError) as error:
        raise CheckpointError(f"{file} is damaged: {error}") from error
