"""The world model: autoencoder and dynamics of one robot and task, with its folder on the disk.

A folder holds ``config.json`` (written last: it makes the folder whole) and ``weights.safetensors``. No pickle.
"""

import json
from dataclasses import asdict
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import nn

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError
from vla_rl.core.files import fsync_file, write_atomic
from world_model.autoencoder import Autoencoder
from world_model.config import WorldModelConfig, WorldSpec
from world_model.dynamics import Dynamics

SCHEMA_VERSION = 3


class WorldModel(nn.Module):
    """Autoencoder and dynamics.

    Args:
        config: sizes and mechanisms.
        spec: of the robot and task.
    """

    def __init__(self, config: WorldModelConfig, spec: WorldSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.autoencoder = Autoencoder(config.autoencoder, spec)
        self.dynamics = Dynamics(config, spec, self.autoencoder.grid, self.autoencoder.token_dim)

    @property
    def device(self) -> torch.device:
        return self.autoencoder.latent_mean.device


def save_world_model(folder: Path, model: WorldModel, version: int = 0) -> None:
    """Write a world model; ``version`` counts a run's models."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").unlink(missing_ok=True)
    weights = folder / "weights.safetensors"
    safetensors.torch.save_file({name: value.contiguous() for name, value in model.state_dict().items()}, weights)
    fsync_file(weights)
    content = {
        "schema": SCHEMA_VERSION,
        "version": version,
        "config": config_to_dict(model.config),
        "spec": asdict(model.spec),
    }
    write_atomic(folder / "config.json", json.dumps(content, indent=1).encode())


def load_world_model(folder: Path, device: str = "cpu") -> tuple[WorldModel, int]:
    """Read a world model in eval mode, and its version.

    Raises:
        CheckpointError: if it is missing, damaged, or of another schema version.
    """
    try:
        content = json.loads((folder / "config.json").read_text())
        if content["schema"] != SCHEMA_VERSION:
            raise CheckpointError(
                f"{folder} has schema {content['schema']}, this program reads {SCHEMA_VERSION}; "
                "read it with the version of vla-rl that wrote it"
            )
        sizes = {name: part for name, part in content["config"].items() if name != "trajectories"}  # gone since
        config = config_from_dict(WorldModelConfig, sizes, where=str(folder))
        spec = config_from_dict(WorldSpec, content["spec"], where=str(folder))
        model = WorldModel(config, spec)
        model.load_state_dict(safetensors.torch.load_file(folder / "weights.safetensors"))
        return model.to(device).eval(), int(content["version"])
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise CheckpointError(
            f"{folder} holds no readable world model ({type(error).__name__}: {error}); train one with `vla-rl imagine`"
        ) from error
