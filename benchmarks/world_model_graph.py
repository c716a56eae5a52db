"""The step of a world model's dynamics as one stateless graph, so that imagination can run where there is no torch.

The last T frames go in, the next one comes out. It reads all T frames anew at every step; the model's own stream keeps
a memory instead, which no graph can hold between calls.
"""

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from deploy_trt.export.graph import GraphSpec
from world_model.dynamics import Context, Dynamics
from world_model.model import VideoModel


class DynamicsStep(nn.Module):
    """Frames [B, T, ...] -> next latents [B, N, D], state [B, S], and the outcome's logits."""

    def __init__(self, dynamics: Dynamics) -> None:
        super().__init__()
        self.policy = dynamics  # the name that `GraphSpec.export` takes off weight names

    def forward(self, latents: Tensor, state: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        context = Context(latents, _motion(latents), state, _motion(state), action)
        with _attention_in_four_dimensions():
            hidden, condition = self.policy.hidden(context)
            last = (hidden[:, -1:], condition[:, -1:], latents[:, -1:], state[:, -1:])
            predicted = self.policy.predict(*last)
        return (predicted.latents[:, 0], predicted.state[:, 0], *(part[:, 0] for part in predicted.outcome))


def dynamics_step(model: VideoModel, frames: int) -> GraphSpec:
    """The graph to be, for one stream and a history of so many frames."""
    tokens, token_dim = model.autoencoder.tokens, model.autoencoder.token_dim
    state_dim, action_dim = model.spec.state_dim, model.spec.action_dim
    inputs = {
        "latents": torch.randn(1, frames, tokens, token_dim),
        "state": torch.randn(1, frames, state_dim),
        "action": torch.randn(1, frames, action_dim),
    }
    module = DynamicsStep(model.dynamics).eval()
    with torch.no_grad():
        count = len(module(*inputs.values()))
    outputs = ["next_latents", "next_state", *(f"outcome.{index}" for index in range(count - 2))]
    return GraphSpec("dynamics", module, inputs, outputs)


def _motion(frames: Tensor) -> Tensor:
    """The change since the frame before, [B, T, ...]; 0 for the first."""
    return torch.diff(frames, dim=1, prepend=frames[:, :1])


@contextlib.contextmanager
def _attention_in_four_dimensions() -> Iterator[None]:
    """The exporter knows attention over [B, heads, N, size] only; of more dimensions the first ones become one."""
    attention = F.scaled_dot_product_attention

    def flattened(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **options: Any) -> Tensor:
        if query.ndim <= 4 or arguments or options:
            return attention(query, key, value, *arguments, **options)
        lead = query.shape[:-3]
        return attention(query.flatten(0, -4), key.flatten(0, -4), value.flatten(0, -4)).unflatten(0, lead)

    F.scaled_dot_product_attention = flattened
    try:
        yield
    finally:
        F.scaled_dot_product_attention = attention
