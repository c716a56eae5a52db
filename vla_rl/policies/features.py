"""What a policy sees, as one row of numbers for each observation: the eyes of critics."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vla_rl.core.errors import UserError

if TYPE_CHECKING:
    from vla_rl.policies.trainable import TrainablePolicy

_MOST_CONCATENATED_TOKENS = 16


def flat_features(tokens: Tensor, mask: Tensor) -> Tensor:
    """A policy's tokens [B, N, W] and mask [B, N] as one row of each observation, [B, F]: side by side where they are
    few, else their mean.
    """
    if tokens.shape[1] <= _MOST_CONCATENATED_TOKENS:
        return tokens.flatten(1)
    present = mask[..., None].to(tokens.dtype)
    return (tokens * present).sum(1) / present.sum(1)


def draw_from_flat(model: "TrainablePolicy", features: Tensor, noise: Tensor) -> Tensor:
    """The policy's chunks [B, H, A] for flat features [B, F] of which it has no observation; ``noise`` as of
    `TrainablePolicy.draw`.

    Raises:
        UserError: if it cannot act from them, or has too many tokens for them to stand side by side.
    """
    tokens, mask = _blank(model)
    if tokens.shape[1] > _MOST_CONCATENATED_TOKENS:
        raise UserError(
            f"the policy {model.config.kind!r} sees {tokens.shape[1]} tokens; it can act from imagined features if it "
            f"has at most {_MOST_CONCATENATED_TOKENS}"
        )
    count = len(features)
    return model.draw_from(features.unflatten(1, tokens.shape[1:]), mask.expand(count, -1), noise)


def example_row(model: "TrainablePolicy") -> Tensor:
    """The flat features of an observation of nothing, [F], for their size.

    Raises:
        UserError: if the policy gives none.
    """
    return flat_features(*_blank(model))[0]


@torch.no_grad()
def _blank(model: "TrainablePolicy") -> tuple[Tensor, Tensor]:
    device, spec = next(model.parameters()).device, model.spec
    image = torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8, device=device)
    state = torch.zeros(1, spec.state_dim, device=device)
    text = model.tokenize([""]).to(device)
    return model.features(dict.fromkeys(spec.cameras, image), state, text)
