"""The action expert: a transformer over the action tokens that reads the prefix through keys, values and modulations
computed once.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vla_rl.policies.flow_vla.config import ExpertConfig

TIME_FEATURES = 32
NOISY_SHIFT = 10  # added to the rotary position of actions that are not committed (Xiaomi-Robotics-0, 2602.12684)
MODULATIONS = 4  # scale and shift before attention, scale and shift before the feed-forward part


class Prefix(NamedTuple):
    """What the expert reads of an observation, computed once for all Euler steps of its chunks. A flat structure of
    tensors, exportable.

    Attributes:
        keys, values: One [B, heads, N, size] per expert layer.
        modulation: [B, layers, MODULATIONS x width].
        mask: bool [B, N], True where there is a token.
    """

    keys: list[Tensor]
    values: list[Tensor]
    modulation: Tensor
    mask: Tensor

    def repeat(self, times: int) -> "Prefix":
        """Each observation ``times`` times in a row, for several draws per observation."""
        keys = [key.repeat_interleave(times, 0) for key in self.keys]
        values = [value.repeat_interleave(times, 0) for value in self.values]
        return Prefix(keys, values, self.modulation.repeat_interleave(times, 0), self.mask.repeat_interleave(times, 0))


def time_features(time: Tensor) -> Tensor:
    """Sines and cosines of the flow time in [0, 1], [...] -> [..., TIME_FEATURES]; periods 4e-3 to 4, as in pi0."""
    half = TIME_FEATURES // 2
    frequency = torch.exp(
        torch.linspace(math.log(2 * math.pi / 4.0), math.log(2 * math.pi / 4e-3), half, device=time.device)
    )
    angle = time[..., None] * frequency
    return torch.cat([angle.sin(), angle.cos()], -1)


def split_heads(rows: Tensor, heads: int) -> Tensor:
    """[B, N, heads x size] -> [B, heads, N, size]."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def rotate(rows: Tensor, angle: Tensor) -> Tensor:
    """Rotary positions (RoFormer, arXiv 2104.09864): rows [B, heads, T, size] turned by angles [B, 1, T, size / 2]."""
    first, second = rows.chunk(2, -1)
    cosine, sine = angle.cos().to(rows.dtype), angle.sin().to(rows.dtype)
    return torch.cat([first * cosine - second * sine, second * cosine + first * sine], -1)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """Attend in float32 on a CPU: its bfloat16 kernel takes twice as long on rows as few as these."""
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        with torch.autocast("cpu", enabled=False):
            return F.scaled_dot_product_attention(query.float(), key.float(), value.float(), attn_mask=mask)
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)


class ExpertLayer(nn.Module):
    """Attention over prefix and action tokens at once (as in pi0), then feed-forward; both modulated."""

    def __init__(self, config: ExpertConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.norm_attention = nn.LayerNorm(width, elementwise_affine=False)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.norm_feed = nn.LayerNorm(width, elementwise_affine=False)
        self.feed_in = nn.Linear(width, config.mlp_ratio * width)
        self.feed_out = nn.Linear(config.mlp_ratio * width, width)

    def forward(
        self,
        x: Tensor,
        modulation: Tensor,
        prefix_key: Tensor,
        prefix_value: Tensor,
        mask: Tensor,
        angle: Tensor | None,
    ) -> Tensor:
        """One layer.

        Args:
            x: [B, T, width].
            modulation: [MODULATIONS, B, T, width].
            prefix_key, prefix_value: [B, heads, N, size].
            mask: bool, broadcastable to [B, heads, T, N + T], True where a token may look.
            angle: rotary angles [B, 1, T, size / 2]; keys of the prefix stand at position 0.
        """
        rows = self.norm_attention(x) * (1 + modulation[0]) + modulation[1]
        query, key, value = (split_heads(part, self.heads) for part in self.query_key_value(rows).chunk(3, -1))
        if angle is not None:
            query, key = rotate(query, angle), rotate(key, angle)
        key, value = torch.cat([prefix_key, key], 2), torch.cat([prefix_value, value], 2)
        attended = _attend(query, key, value, mask)
        x = x + self.attention_out(attended.transpose(1, 2).flatten(2))
        rows = self.norm_feed(x) * (1 + modulation[2]) + modulation[3]
        return x + self.feed_out(F.gelu(self.feed_in(rows), approximate="tanh"))


class ActionExpert(nn.Module):
    """Noisy actions, per-action flow time and prefix -> velocity.

    ``actions_per_token`` neighboring actions, with the flow time of each, share a token: T = H / actions_per_token.
    """

    frequency: Tensor

    def __init__(self, config: ExpertConfig, action_dim: int, horizon: int) -> None:
        super().__init__()
        width, group = config.width, config.actions_per_token
        self.heads, self.group, self.tokens = config.heads, group, horizon // group
        self.window, self.rotary = config.window, config.rotary
        self.action_in = nn.Linear(group * action_dim, width)
        if config.rotary:
            size = width // config.heads
            frequency = 100.0 ** (-torch.arange(0, size, 2) / size)  # chunks are short: periods from 6 to 600 actions
            self.register_buffer("frequency", frequency, persistent=False)
        else:
            self.position = nn.Parameter(0.02 * torch.randn(self.tokens, width))
        self.time_in = nn.Linear(group * TIME_FEATURES, width)
        self.time_modulation = nn.Linear(width, MODULATIONS * width)
        self.prefix_key_value = nn.Linear(width, 2 * width * config.layers)
        self.prefix_pool = nn.Linear(width, width)
        self.prefix_modulation = nn.Linear(width, MODULATIONS * width * config.layers)
        self.layers = nn.ModuleList(ExpertLayer(config) for _ in range(config.layers))
        self.norm_out = nn.LayerNorm(width)
        self.action_out = nn.Linear(width, group * action_dim)
        nn.init.zeros_(self.action_out.weight)
        nn.init.zeros_(self.action_out.bias)

    def read_prefix(self, tokens: Tensor, mask: Tensor) -> Prefix:
        """Everything that the layers need of tokens [B, N, width] and their mask bool [B, N], once per observation."""
        parts = self.prefix_key_value(tokens).chunk(2 * len(self.layers), -1)
        keys = [split_heads(part, self.heads) for part in parts[0::2]]
        values = [split_heads(part, self.heads) for part in parts[1::2]]
        present = mask[..., None].to(tokens.dtype)
        pooled = (tokens * present).sum(1) / present.sum(1)
        modulation = self.prefix_modulation(F.silu(self.prefix_pool(pooled))).unflatten(-1, (len(self.layers), -1))
        return Prefix(keys, values, modulation, mask)

    def modulate(self, time: Tensor) -> Tensor:
        """Return what the layers need of the flow times alone, [B, H] -> [MODULATIONS, B, T, width]."""
        features = time_features(time).unflatten(1, (self.tokens, self.group)).flatten(2)
        of_time = self.time_modulation(F.silu(self.time_in(features)))
        return of_time.unflatten(-1, (MODULATIONS, -1)).movedim(2, 0)

    def denoise(
        self, noisy: Tensor, of_time: Tensor, undecided: Tensor, prefix: Prefix, hidden: Tensor | None = None
    ) -> Tensor:
        """Velocity [B, H, A].

        Args:
            noisy: [B, H, A].
            of_time: What `modulate` returns for the flow times.
            undecided: bool [B, H], or [1, H] for the same of all, actions that are not committed.
            prefix: What `read_prefix` returns.
            hidden: bool [B, H], committed actions that uncommitted actions do not attend to.
        """
        keys, values, modulation, mask = prefix
        undecided = undecided[:, :: self.group]  # [B, T]
        x = self.action_in(noisy.unflatten(1, (self.tokens, self.group)).flatten(2))  # [B, T, width]
        angle = None
        if self.rotary:
            index = torch.arange(self.tokens, device=noisy.device) + NOISY_SHIFT * undecided
            angle = (index[..., None] * self.frequency)[:, None]
        else:
            x = x + self.position
        of_prefix = modulation.unflatten(-1, (MODULATIONS, -1)).movedim(2, 0)  # [MODULATIONS, B, layers, width]
        visible = self._visible(mask, None if hidden is None else undecided[..., None] & hidden[:, None])
        for depth, layer in enumerate(self.layers):
            x = layer(x, of_time + of_prefix[:, :, depth, None], keys[depth], values[depth], visible, angle)
        return self.action_out(self.norm_out(x)).flatten(1).view_as(noisy)

    def _visible(self, mask: Tensor, blocked: Tensor | None) -> Tensor:
        """Where an action token may look, bool [B, 1, 1 or T, N + T].

        Args:
            mask: bool [B, N], which prefix tokens there are; all are visible.
            blocked: bool [B, T, T], which action tokens (last) must not be seen by which.
        """
        own = mask.new_ones(len(mask), 1, self.tokens)
        if self.window:
            index = torch.arange(self.tokens, device=mask.device)
            back = index[:, None] - index
            own = ((back >= 0) & (back < self.window)).expand(len(mask), -1, -1)
        if blocked is not None:
            own = own & ~blocked
        return torch.cat([mask[:, None].expand(-1, own.shape[1], -1), own], -1)[:, None]
