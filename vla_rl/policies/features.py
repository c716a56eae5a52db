"""What a policy sees, as one row of numbers for each observation: the eyes of critics."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

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


@torch.no_grad()
def example_row(model: "TrainablePolicy") -> Tensor:
    """The flat features of an observation of nothing, [F], for their size.

    Raises:
        UserError: if the policy gives none.
    """
    device, spec = next(model.parameters()).device, model.spec
    image = torch.zeros(1, *spec.image_size, 3, dtype=torch.uint8, device=device)
    state = torch.zeros(1, spec.state_dim, device=device)
    text = model.tokenize([""]).to(device)
    return flat_features(*model.features(dict.fromkeys(spec.cameras, image), state, text))[0]
