"""The action expert: a transformer over the action tokens. It reads the prefix through keys, values and modulations computed once."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.policies.flow_vla.config import ExpertConfig

TIME_FEATURES = 32


def time_features(time: Tensor) -> Tensor:
    """Sines and cosines of the flow time in [0, 1], [B, H] -> [B, H, TIME_FEATURES]; periods from 4e-3 to 4, as in pi0."""
    half = TIME_FEATURES // 2
    frequency = torch.exp(
        torch.linspace(math.log(2 * math.pi / 4.0), math.log(2 * math.pi / 4e-3), half, device=time.device)
    )
    angle = time[..., None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """[B, N, heads x size] -> [B, heads, N, size]."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


class ExpertLayer(nn.Module):
    """Self-attention, cross-attention to the prefix, feed-forward; each pre-normalised, modulated as in DiT (arXiv 2212.09748)."""

    def __init__(self, config: ExpertConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(3))
        self.self_qkv = nn.Linear(width, 3 * width)
        self.self_out = nn.Linear(width, width)
        self.cross_query = nn.Linear(width, width)
        self.cross_out = nn.Linear(width, width)
        self.feed_in = nn.Linear(width, config.mlp_ratio * width)
        self.feed_out = nn.Linear(config.mlp_ratio * width, width)

    def forward(self, x: Tensor, modulation: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """Args: x: [B, H, width]; modulation: [B, H, 6 width]; key, value: [B, heads, N, size]; mask: bool [B, 1, 1, N]."""
        shift_a, scale_a, gate_a, shift_f, scale_f, gate_f = modulation.chunk(6, -1)
        rows = self.norms[0](x) * (1 + scale_a) + shift_a
        query, own_key, own_value = (split_heads(part, self.heads) for part in self.self_qkv(rows).chunk(3, -1))
        attended = F.scaled_dot_product_attention(query, own_key, own_value)
        x = x + gate_a * self.self_out(attended.transpose(1, 2).flatten(2))
        query = split_heads(self.cross_query(self.norms[1](x)), self.heads)
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        x = x + self.cross_out(attended.transpose(1, 2).flatten(2))
        rows = self.norms[2](x) * (1 + scale_f) + shift_f
        return x + gate_f * self.feed_out(F.gelu(self.feed_in(rows), approximate="tanh"))


class ActionExpert(nn.Module):
    """Noisy actions, per-token flow time and prefix -> velocity."""

    def __init__(self, config: ExpertConfig, action_dim: int, horizon: int) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.action_in = nn.Linear(action_dim, width)
        self.action_position = nn.Parameter(0.02 * torch.randn(horizon, width))
        self.time_in = nn.Linear(TIME_FEATURES, width)
        self.time_modulation = nn.Linear(width, 6 * width)
        self.prefix_key_value = nn.Linear(width, 2 * width * config.layers)
        self.prefix_pool = nn.Sequential(nn.Linear(width, width), nn.SiLU())
        self.prefix_modulation = nn.Linear(width, 6 * width * config.layers)
        self.layers = nn.ModuleList(ExpertLayer(config) for _ in range(config.layers))
        self.norm_out = nn.LayerNorm(width)
        self.action_out = nn.Linear(width, action_dim)
        nn.init.zeros_(self.action_out.weight)
        nn.init.zeros_(self.action_out.bias)

    def read_prefix(self, tokens: Tensor, mask: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
        """Everything of the prefix that the layers need, once per observation.

        Args:
            tokens: [B, N, width].
            mask: bool [B, N], True where there is a token.

        Returns:
            keys and values, one [B, heads, N, size] per layer, and modulations [B, layers, 6 width].
        """
        parts = self.prefix_key_value(tokens).chunk(2 * len(self.layers), -1)
        keys = [split_heads(part, self.heads) for part in parts[0::2]]
        values = [split_heads(part, self.heads) for part in parts[1::2]]
        present = mask[..., None].to(tokens.dtype)
        pooled = (tokens * present).sum(1) / present.sum(1)
        modulation = self.prefix_modulation(self.prefix_pool(pooled)).unflatten(-1, (len(self.layers), -1))
        return keys, values, modulation

    def forward(
        self, noisy: Tensor, time: Tensor, keys: list[Tensor], values: list[Tensor], modulation: Tensor, mask: Tensor
    ) -> Tensor:
        """Velocity [B, H, A] at noisy actions [B, H, A] and flow times [B, H]; the rest as `read_prefix` returns it."""
        x = self.action_in(noisy) + self.action_position
        time_modulation = self.time_modulation(F.silu(self.time_in(time_features(time))))
        attention_mask = mask[:, None, None]
        for index, layer in enumerate(self.layers):
            layer_modulation = time_modulation + modulation[:, index, None]
            x = layer(x, layer_modulation, keys[index], values[index], attention_mask)
        return self.action_out(self.norm_out(x))
