"""Features of an observation for the critics' heads: with weights of their own, of the policy, or the bare state."""

from typing import Protocol

import torch
from torch import Tensor, nn

from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.policies.base import BasePolicy, example_row, flat_features
from vla_rl.policies.encoders import TextEncoder, VisionConfig, VisionEncoder
from vla_rl.policies.layers import Normalizer

BACKBONES = ("own", "policy", "state")
_OWN_VISION = VisionConfig(widths=(16, 32))
_OWN_TOKEN_WIDTH = 64


class Backbone(Protocol):
    """What a critic reads observations with: a `torch.nn.Module` with these two."""

    width: int

    def __call__(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:
        """Features [B, width] of images, camera -> uint8 [B, H, W, 3], state [B, S] raw, and text int64 [B, L]."""
        ...


class OwnBackbone(nn.Module):
    """Cameras, sentence and state, encoded with weights of the critic's own."""

    def __init__(self, model: BasePolicy) -> None:
        super().__init__()
        self.state_normalizer = Normalizer(model.statistics.state)
        self.vision = VisionEncoder(_OWN_VISION, model.spec.cameras, model.spec.image_size, _OWN_TOKEN_WIDTH)
        self.text = TextEncoder(model.max_words, _OWN_TOKEN_WIDTH, model.vocabulary)
        self.width = (self.vision.token_count + 1) * _OWN_TOKEN_WIDTH + model.spec.state_dim

    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:
        seen = [self.vision(images)] if images else []
        tokens = torch.cat([*seen, self.text(text)], 1).flatten(1)
        return torch.cat([tokens, self.state_normalizer.network_input(state)], 1)


class PolicyBackbone(nn.Module):
    """The features of the present policy, detached: no gradient of a critic reaches the policy, and no second
    encoder is trained. The features move as the policy learns.
    """

    def __init__(self, model: BasePolicy) -> None:
        super().__init__()
        # Not a submodule: the policy's weights are neither optimized nor saved nor copied with the critic.
        self._policy = [model]
        self.width = len(example_row(model))

    def __deepcopy__(self, memo: dict[int, object]) -> "PolicyBackbone":
        return self  # a target network reads the present policy, not a copy of an old one

    @torch.no_grad()
    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:
        return flat_features(*self._policy[0].features(images, state, text))


class StateBackbone(nn.Module):
    """The state alone, raw, for tasks whose state says everything."""

    def __init__(self, state_dim: int) -> None:
        super().__init__()
        self.width = state_dim

    def forward(self, images: dict[str, Tensor], state: Tensor, text: Tensor) -> Tensor:  # noqa: ARG002
        return state


def make_backbone(name: str, model: BasePolicy) -> Backbone:
    """Return a backbone by name; ConfigError for an unknown one."""
    if name == "own":
        return OwnBackbone(model)
    if name == "policy":
        return PolicyBackbone(model)
    if name == "state":
        return StateBackbone(model.spec.state_dim)
    raise ConfigError(f"unknown critic backbone {name!r}.{did_you_mean(name, BACKBONES)}")
