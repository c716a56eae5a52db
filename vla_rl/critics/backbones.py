"""Features of an observation for the critics' heads: with weights of their own, of the policy, or the bare state."""

from typing import Protocol

import torch
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.policies.flow_vla.config import VisionConfig
from vla_rl.policies.flow_vla.model import FlowVLA
from vla_rl.policies.flow_vla.text import TextEncoder
from vla_rl.policies.flow_vla.vision import VisionEncoder
from vla_rl.policies.normalization import Normalizer

BACKBONES = ("own", "policy", "state")
_MOST_CONCATENATED_TOKENS = 16
_OWN_VISION = VisionConfig(widths=(16, 32))
_OWN_TOKEN_WIDTH = 64


class Backbone(Protocol):
    """What a critic reads observations with: a `torch.nn.Module` with these two."""

    width: int

    def __call__(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:
        """Features [B, width] of images, camera -> uint8 [B, H, W, 3], state [B, S] raw, and text int64 [B, L]."""
        ...


class OwnBackbone(nn.Module):
    """Cameras, sentence and state, encoded by the policy's kind of encoder with weights of the critic's own."""

    def __init__(self, model: FlowVLA) -> None:
        super().__init__()
        self.state_normalizer = Normalizer(model.statistics.state, model.config.state_normalization)
        self.vision = VisionEncoder(_OWN_VISION, model.spec.cameras, model.spec.image_size, _OWN_TOKEN_WIDTH)
        self.text = TextEncoder(model.config.text, _OWN_TOKEN_WIDTH)
        self.width = (self.vision.token_count + 1) * _OWN_TOKEN_WIDTH + model.spec.state_dim

    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:
        tokens = torch.cat([self.vision(images), self.text(text)], 1).flatten(1)
        return torch.cat([tokens, self.state_normalizer.normalize(state)], 1)


class PolicyBackbone(nn.Module):
    """The prefix tokens of the present policy, detached: no gradient of a critic reaches the policy, and no second
    encoder is trained. The features move as the policy learns.
    """

    def __init__(self, model: FlowVLA) -> None:
        super().__init__()
        # Not a submodule: the policy's weights are neither optimised nor saved nor copied with the critic.
        self._policy = [model]
        images = {camera: torch.zeros(1, *model.spec.image_size, 3, dtype=torch.uint8) for camera in model.spec.cameras}
        device = next(model.parameters()).device
        example = {camera: image.to(device) for camera, image in images.items()}
        state = torch.zeros(1, model.spec.state_dim, device=device)
        self.width = self(example, state, model.tokenize([""]).to(device)).shape[1]

    def __deepcopy__(self, memo: dict[int, object]) -> "PolicyBackbone":
        return self  # a target network reads the present policy, not a copy of an old one

    @torch.no_grad()
    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:
        tokens, mask = self._policy[0].tokens(images, state, text)
        if tokens.shape[1] <= _MOST_CONCATENATED_TOKENS:
            return tokens.flatten(1)
        present = mask[..., None].to(tokens.dtype)
        return (tokens * present).sum(1) / present.sum(1)


class StateBackbone(nn.Module):
    """The state alone, raw, for tasks whose state says everything."""

    def __init__(self, state_dim: int) -> None:
        super().__init__()
        self.width = state_dim

    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:  # noqa: ARG002
        return state


def make_backbone(name: str, model: FlowVLA) -> Backbone:
    """A backbone by name.

    Raises:
        ConfigError: for an unknown name.
    """
    if name == "own":
        return OwnBackbone(model)
    if name == "policy":
        return PolicyBackbone(model)
    if name == "state":
        return StateBackbone(model.spec.state_dim)
    raise ConfigError(f"unknown critic backbone {name!r}.{did_you_mean(name, BACKBONES)}")
