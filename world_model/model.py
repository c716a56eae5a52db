"""The world model: autoencoder and dynamics of one robot and task, with its folder on the disk.

A folder holds ``config.json`` (written last: it makes the folder whole) and the weights that it names. No pickle.
"""

from dataclasses import asdict
from pathlib import Path

import safetensors.torch
import torch
from torch import nn

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.json_files import reading
from vla_rl.core.metadata import read_weights, write_weights
from world_model.autoencoder import Autoencoder
from world_model.config import WorldModelConfig, WorldSpec
from world_model.dynamics import Dynamics

FORMAT = "vla-rl-world-model"
FORMAT_VERSION = 5


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


def save_world_model(folder: Path, model: WorldModel) -> None:
    """Write a world model."""
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "config": config_to_dict(model.config),
        "spec": asdict(model.spec),
    }
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    write_weights(folder, "weights", safetensors.torch.save(tensors), content)


def load_world_model(folder: Path, device: str = "cpu") -> WorldModel:
    """Read a world model in eval mode; CheckpointError if it is missing, damaged, or of another schema version."""
    with reading(folder / "config.json", "it is no world model; train one: vla-rl imagine"):
        content, weights = read_weights(folder, FORMAT, FORMAT_VERSION)
        config = config_from_dict(WorldModelConfig, content["config"], where=str(folder))
        spec = config_from_dict(WorldSpec, content["spec"], where=str(folder))
        model, tensors = WorldModel(config, spec), safetensors.torch.load(weights)
        if any(tensor.isnan().any() for tensor in tensors.values()):  # an unset threshold is infinite
            raise ValueError("its weights are not all numbers")
        model.load_state_dict(tensors)
        return model.to(device).eval()
