"""Block-causal attention over frames of tokens, in two forms that agree: all at once, and one by one with a cache.

A frame attends in full to itself and the ``window - 1`` frames before it. It attends in compressed form to the
``memory_frames`` before those (keys and values averaged over squares of tokens). So the cache is bounded, and a step
costs the same at any time. Distance in frames enters as a fixed bias of each head (ALiBi, arXiv 2108.12409), which is
bounded too.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from world_model.config import DynamicsConfig

_MLP_RATIO = 4  # hidden width of the perceptrons over the tokens' width


@dataclass(frozen=True)
class FrameLayout:
    """The tokens of a frame: ``extra`` ones (proprioception, action), then rows and columns of picture tokens.

    ``pool`` tokens on a side become one in compressed frames.
    """

    extra: int
    grid: tuple[int, int]
    pool: int

    @property
    def tokens(self) -> int:
        """Tokens of a frame, F."""
        return self.extra + self.grid[0] * self.grid[1]

    def compression(self) -> Tensor:
        """Return the averaging matrix [P, F]: extra tokens together, and each square of the picture's."""
        rows = [torch.zeros(self.tokens)] if self.extra else []
        for row in rows:
            row[: self.extra] = 1 / self.extra
        index = torch.arange(self.tokens - self.extra).view(self.grid)
        for square in index.split(self.pool, 0):
            for part in square.split(self.pool, 1):
                row = torch.zeros(self.tokens)
                row[self.extra + part.flatten()] = 1 / part.numel()
                rows.append(row)
        return torch.stack(rows)


class Block(nn.Module):
    """Attention and perceptron, both modulated by the frame's condition (adaptive layer norm, zero at first).

    With ``causal_memory`` it learns an offset of the compressed frames' keys, to distinguish them.
    """

    def __init__(self, width: int, heads: int, causal_memory: bool = True) -> None:
        super().__init__()
        hidden = _MLP_RATIO * width
        self.heads = heads
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, elementwise_affine=False)
        self.mlp = nn.Sequential(nn.Linear(width, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, width))
        self.modulation = nn.Linear(width, 6 * width)
        nn.init.zeros_(self.modulation.weight)
        nn.init.zeros_(self.modulation.bias)
        if causal_memory:
            self.memory_key = nn.Parameter(0.02 * torch.randn(heads, 1, width // heads))

    def queries_keys_values(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Tokens [B, T, F, width], condition [B, T, width] -> q, k, v [B, heads, T, F, size], and the modulation."""
        modulation = self.modulation(F.silu(condition))[:, :, None].unflatten(-1, (6, -1))  # [B, T, 1, 6, width]
        shift, scale = modulation[..., 0, :], modulation[..., 1, :]
        projected = self.project(self.norm(x) * (1 + scale) + shift)
        query, key, value = projected.unflatten(-1, (3, self.heads, -1)).permute(3, 0, 4, 1, 2, 5)
        return query, key, value, modulation

    def finish(self, x: Tensor, attended: Tensor, modulation: Tensor) -> Tensor:
        """Tokens [B, T, F, width] and what they attended to, [B, heads, T, F, size] -> tokens after the block."""
        gate, mlp_shift, mlp_scale, mlp_gate = (modulation[..., index, :] for index in (2, 3, 4, 5))
        x = x + (1 + gate) * self.output(attended.permute(0, 2, 3, 1, 4).flatten(3))
        return x + (1 + mlp_gate) * self.mlp(self.mlp_norm(x) * (1 + mlp_scale) + mlp_shift)

    def within_frames(self, x: Tensor, condition: Tensor) -> Tensor:
        """Return the block with attention inside each frame only."""
        query, key, value, modulation = self.queries_keys_values(x, condition)
        return self.finish(x, F.scaled_dot_product_attention(query, key, value), modulation)


class Blocks(nn.ModuleList):
    """A list of blocks that says so to the type checker."""

    def __iter__(self) -> Iterator[Block]:
        return (cast(Block, block) for block in super().__iter__())


@dataclass
class Memory:
    """The bounded cache of B streams, which step together; a stream begins anew when its age is set to 0.

    Attributes:
        recent: per layer, keys and values [B, heads, window, F, size]; frame g stands in slot g % window.
        compressed: per layer, keys and values [B, heads, memory_frames, P, size]; frame g in slot g % memory_frames.
        step: frames pushed so far, over all streams.
        age: int64 [B], frames pushed since each stream's start.
        last: latents [B, N, D] and state [B, S] of the frame before, for the motion input.
    """

    recent: list[tuple[Tensor, Tensor]]
    compressed: list[tuple[Tensor, Tensor]]
    age: Tensor
    last: tuple[Tensor, Tensor]
    step: int = 0

    def copy(self) -> "Memory":
        """Return a memory that goes on by itself."""
        recent, compressed = (
            [(key.clone(), value.clone()) for key, value in layers] for layers in (self.recent, self.compressed)
        )
        return Memory(recent, compressed, self.age.clone(), self.last, self.step)


class BlockCausalTransformer(nn.Module):
    """The transformer over frames.

    Args:
        config: sizes and mechanisms.
        layout: the tokens of a frame.
    """

    compression: Tensor
    slopes: Tensor

    def __init__(self, config: DynamicsConfig, layout: FrameLayout) -> None:
        super().__init__()
        self.config, self.layout = config, layout
        self.blocks = Blocks(Block(config.width, config.heads) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.register_buffer("compression", layout.compression(), persistent=False)
        # The first head looks at all distances alike, the others ever closer.
        slopes = torch.cat([torch.zeros(1), 0.125 * 2.0 ** torch.arange(config.heads - 1)])
        self.register_buffer("slopes", slopes.view(-1, 1, 1), persistent=False)

    def forward(self, frames: Tensor, condition: Tensor) -> Tensor:
        """Return all frames [B, T, F, width] at once, under a condition [B, T, width].

        A frame depends on itself and on earlier ones.
        """
        bias = self._bias(frames.shape[1], frames.device)
        for block in self.blocks:
            query, key, value, modulation = block.queries_keys_values(frames, condition)
            keys, values = [key.flatten(2, 3)], [value.flatten(2, 3)]
            if self.config.memory_frames:
                keys.append((self._compress(key) + block.memory_key[:, None]).flatten(2, 3))
                values.append(self._compress(value).flatten(2, 3))
            attended = F.scaled_dot_product_attention(
                query.flatten(2, 3), torch.cat(keys, 2), torch.cat(values, 2), attn_mask=bias
            )
            frames = block.finish(frames, attended.unflatten(2, query.shape[2:4]), modulation)
        return self.norm(frames)

    def new_memory(self, latents: Tensor, state: Tensor) -> Memory:
        """Return an empty memory; latents [B, N, D] and state [B, S] give shapes and device."""
        config, streams, device = self.config, len(latents), latents.device
        size = config.width // config.heads

        def empty(*shape: int) -> list[tuple[Tensor, Tensor]]:
            full = (streams, config.heads, *shape, size)
            return [(torch.zeros(full, device=device), torch.zeros(full, device=device)) for _ in self.blocks]

        return Memory(
            recent=empty(config.window, self.layout.tokens),
            compressed=empty(config.memory_frames, len(self.compression)),
            age=torch.zeros(streams, dtype=torch.int64, device=device),
            last=(torch.zeros_like(latents), torch.zeros_like(state)),
        )

    def push(self, memory: Memory, frame: Tensor, condition: Tensor) -> Tensor:
        """Add one frame [B, 1, F, width] to every stream, under a condition [B, 1, width]: what `forward` gives for it.

        The memory is changed in place.
        """
        window, remembered = self.config.window, self.config.memory_frames
        slot = memory.step % window
        bias = self._stream_bias(memory)
        for layer, block in enumerate(self.blocks):
            query, key, value, modulation = block.queries_keys_values(frame, condition)
            recent_keys, recent_values = memory.recent[layer]
            compressed_keys, compressed_values = memory.compressed[layer]
            if remembered:  # what falls out of the window is compressed
                place = (memory.step - window) % remembered
                left = self._compress(recent_keys[:, :, slot : slot + 1])[:, :, 0]
                compressed_keys[:, :, place] = left + block.memory_key
                compressed_values[:, :, place] = self._compress(recent_values[:, :, slot : slot + 1])[:, :, 0]
            recent_keys[:, :, slot], recent_values[:, :, slot] = key[:, :, 0], value[:, :, 0]
            keys, values = [recent_keys.flatten(2, 3)], [recent_values.flatten(2, 3)]
            if remembered:
                keys.append(compressed_keys.flatten(2, 3))
                values.append(compressed_values.flatten(2, 3))
            attended = F.scaled_dot_product_attention(
                query[:, :, 0], torch.cat(keys, 2), torch.cat(values, 2), attn_mask=bias
            )
            frame = block.finish(frame, attended[:, :, None], modulation)
        memory.step += 1
        memory.age += 1
        return self.norm(frame)

    def _compress(self, frames: Tensor) -> Tensor:
        """[B, heads, T, F, size] -> [B, heads, T, P, size]."""
        return torch.einsum("pf,bhtfs->bhtps", self.compression, frames)

    def _bias(self, length: int, device: torch.device) -> Tensor:
        """Added to attention scores: [1, heads, T F, keys], -inf where a query must not look."""
        config, tokens, pooled = self.config, self.layout.tokens, len(self.compression)
        frame = torch.arange(length, device=device)
        distance = frame[:, None] - frame  # [T, T]
        full = self._penalty(distance, (distance >= 0) & (distance < config.window))
        parts = [full.repeat_interleave(tokens, 2)]
        if config.memory_frames:
            inside = (distance >= config.window) & (distance < config.window + config.memory_frames)
            parts.append(self._penalty(distance, inside).repeat_interleave(pooled, 2))
        # With four dimensions the fused kernels take it.
        return torch.cat(parts, 2).repeat_interleave(tokens, 1)[None]

    def _stream_bias(self, memory: Memory) -> Tensor:
        """Return the bias of the frame that is about to be pushed: [B, heads, 1, keys]."""
        config, tokens, device = self.config, self.layout.tokens, memory.age.device
        distance = (memory.step - torch.arange(config.window, device=device)) % config.window
        seen = distance <= memory.age[:, None]  # [B, window]
        parts = [self._stream_penalty(distance, seen).repeat_interleave(tokens, 2)]
        if config.memory_frames:
            slots = torch.arange(config.memory_frames, device=device)
            distance = config.window + (memory.step - config.window - slots) % config.memory_frames
            seen = distance <= memory.age[:, None]
            parts.append(self._stream_penalty(distance, seen).repeat_interleave(len(self.compression), 2))
        return torch.cat(parts, 2)[:, :, None]

    def _penalty(self, distance: Tensor, inside: Tensor) -> Tensor:
        """[T, T] -> [heads, T, T]."""
        return torch.where(inside, -self.slopes * distance, -torch.inf)

    def _stream_penalty(self, distance: Tensor, seen: Tensor) -> Tensor:
        """[K] and bool [B, K] -> [B, heads, K]."""
        return torch.where(seen[:, None], -self.slopes[:, :, 0] * distance, -torch.inf)
