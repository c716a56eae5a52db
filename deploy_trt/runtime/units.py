"""Between raw units and the policy's normalized ones."""

import numpy as np

from deploy_trt.runtime.manifest import Affine, Manifest
from vla_rl.core.types import Float32Array


class Normalization:
    """`Affine` on arrays [..., D]."""

    def __init__(self, affine: Affine) -> None:
        self.offset, self.scale = np.array(affine.offset, np.float32), np.array(affine.scale, np.float32)
        self._inverse = np.divide(1, self.scale, out=np.zeros_like(self.scale), where=self.scale > 0)
        self._limit = np.array(affine.limit or np.inf, np.float32)

    def normalize(self, raw: Float32Array) -> Float32Array:
        """Raw units to normalized units."""
        normalized: Float32Array = (raw - self.offset) * self._inverse
        return normalized

    def network_input(self, raw: Float32Array) -> Float32Array:
        """Raw units to normalized units within the limit: what a network reads."""
        return np.clip(self.normalize(raw), -self._limit, self._limit)

    def denormalize(self, normalized: Float32Array) -> Float32Array:
        """Normalized units to raw units."""
        raw: Float32Array = normalized * self.scale + self.offset
        return raw


class ActionUnits(Normalization):
    """Of the chunks of a deployment."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest.action)
        self._chunk = np.s_[..., : manifest.horizon, : manifest.spec.action_dim]
        self._discrete = manifest.discrete

    def chunk(self, normalized: Float32Array) -> Float32Array:
        """Sampled [..., rows, W] -> float32 [..., H, A], raw units; discrete dimensions to the nearer of two levels."""
        chosen = normalized[self._chunk].astype(np.float32)
        raw = self.denormalize(chosen)
        for dimension, lower, upper in self._discrete:
            raw[..., dimension] = np.where(chosen[..., dimension] > 0, np.float32(upper), np.float32(lower))
        return raw
