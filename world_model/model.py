"""The video model: autoencoder and dynamics of one robot and task, with its folder on the disk.

A folder holds ``config.json`` (written last: it makes the folder whole) and the weights that it names. No pickle.
"""

from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.json_files import reading
from vla_rl.core.metadata import read_weights, write_weights
from world_model.autoencoder import Autoencoder
from world_model.config import WorldModelConfig, WorldSpec
from world_model.dynamics import Dynamics
from world_model.protocol import Observations, Prediction
from world_model.transformer import Memory

FORMAT = "vla-rl-world-model"
FORMAT_VERSION = 6


class VideoState(NamedTuple):
    """Where B streams are: latents [B, N, D], proprioception [B, S] in raw units, and the frames before."""

    latents: Tensor
    proprioception: Tensor
    memory: Memory


class VideoModel(nn.Module):
    """The `WorldModel` of pictures: autoencoder and dynamics, for long horizons. In eval mode.

    Args:
        config: sizes and mechanisms.
        spec: of the robot and task.
    """

    members = 1

    def __init__(self, config: WorldModelConfig, spec: WorldSpec) -> None:
        super().__init__()
        self.config, self.spec = config, spec
        self.autoencoder = Autoencoder(config.autoencoder, spec.cameras, spec.image_size)
        self.dynamics = Dynamics(config, spec, self.autoencoder.grid, self.autoencoder.token_dim)

    @property
    def device(self) -> torch.device:
        return self.autoencoder.latent_mean.device

    @torch.no_grad()
    def encode(self, observations: Observations, member: Tensor | None = None) -> VideoState:
        """Return the state of streams that have lived through the episodes up to B moments, as far as the memory
        reaches.
        """
        del member
        steps, frames = observations
        age = torch.from_numpy(steps.position[frames])
        reach = min(self.config.dynamics.window + self.config.dynamics.memory_frames, int(age.max()))
        memory = None
        for back in range(reach, -1, -1):
            passed = Observations(steps, np.maximum(frames - back, frames - age.numpy()))
            latents = self.autoencoder.encode(passed.pictures(self.spec.cameras).to(self.device))
            state = torch.from_numpy(steps.state[passed.frames]).to(self.device)
            memory = memory or self.dynamics.begin(latents, state)
            if back:
                action = torch.from_numpy(steps.action_sent[passed.frames]).to(self.device)
                self.dynamics.push(memory, latents, state, action)
                memory.age[(age < back).to(self.device)] = 0  # an episode that is not that old has not begun yet
        assert memory is not None
        return VideoState(latents, state, memory)

    @torch.no_grad()
    def predict(self, state: VideoState, actions: Tensor) -> Prediction[VideoState]:
        """Predict what follows C actions, [B, C, A]. The success is the highest of the C steps."""
        latents, proprioception, memory = state._replace(memory=state.memory.copy())
        success = []
        for action in actions.to(self.device).unbind(1):
            latents, proprioception, outcome = self.dynamics.step(memory, latents, proprioception, action)
            success.append(outcome.success_logit.sigmoid())
        later = VideoState(latents, proprioception, memory)
        return Prediction(later, torch.stack(success).amax(0), lambda: self.disagreement(later))

    @torch.no_grad()
    def decode(self, state: VideoState) -> Tensor:
        return self.autoencoder.decode(state.latents)

    @torch.no_grad()
    def disagreement(self, state: VideoState) -> Tensor:
        """Return how strange the pictures [B] are, in units of what few real successes ever reach."""
        return self.autoencoder.strangeness(self.decode(state)) / self.autoencoder.familiar


def save_world_model(folder: Path, model: VideoModel) -> None:
    """Write a world model."""
    content = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "config": config_to_dict(model.config),
        "spec": asdict(model.spec),
    }
    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    write_weights(folder, "weights", safetensors.torch.save(tensors), content)


def load_world_model(folder: Path, device: str = "cpu") -> VideoModel:
    """Read a world model in eval mode; CheckpointError if it is missing, damaged, or of another schema version."""
    with reading(folder / "config.json", "it is no world model; train one: vla-rl imagine"):
        content, weights = read_weights(folder, FORMAT, FORMAT_VERSION)
        config = config_from_dict(WorldModelConfig, content["config"], where=str(folder))
        spec = config_from_dict(WorldSpec, content["spec"], where=str(folder))
        model, tensors = VideoModel(config, spec), safetensors.torch.load(weights)
        if any(tensor.isnan().any() for tensor in tensors.values()):  # an unset threshold is infinite
            raise ValueError("its weights are not all numbers")
        model.load_state_dict(tensors)
        return model.to(device).eval()
