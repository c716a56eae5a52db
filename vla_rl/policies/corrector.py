"""The residual head of A2C2 (arXiv 2509.23224): corrects each action of a chunk from the newest observation.

Numpy only: it runs in the control process at every tick, where there is no torch. It uses the frozen image encoder of
the planning policy (the keypoints of every camera). Its own small network turns keypoints, state, planned action and
the action's age into a correction. `corrector_training` trains it. One instance belongs to one thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import safetensors.numpy
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from vla_rl.core.config import config_from_dict, config_to_dict
from vla_rl.core.errors import CheckpointError, ConfigError, UserError
from vla_rl.core.metadata import CORRECTOR_FOLDER, read_weights, write_weights
from vla_rl.core.types import Float32Array, Observation, Uint8Array

FORMAT = "vla-rl-corrector"
FORMAT_VERSION = 4
FOLDER = CORRECTOR_FOLDER

Weights = Mapping[str, Float32Array]


@dataclass(frozen=True)
class CorrectorSpec:
    """What a corrector is connected to: cameras in the order of the features, the size of their images, and H.

    ``strides`` are those of the convolutions, ``layers`` the number of linear layers of the head.
    """

    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    strides: tuple[int, ...]
    layers: int
    horizon: int


class ResidualCorrector:
    """An `ActionCorrector` (see `vla_rl.execution.strategies`).

    Args:
        spec: see `CorrectorSpec`.
        weights: ``CAMERA.conv0.weight`` [out, in, k, k], ``CAMERA.conv0.bias``, ..., ``CAMERA.keypoints`` [K, C],
            ``head0.weight`` [out, in], ``head0.bias``, ..., and ``state.offset``, ``state.scale``, ``action.offset``,
            ``action.scale``. normalized = (raw - offset) * scale. ``state.limit`` and ``action.limit`` are the largest
            size of a normalized input. ``action.low`` and ``action.high`` [A] are the two levels of a discrete
            dimension, raw.
    """

    def __init__(self, spec: CorrectorSpec, weights: Weights) -> None:
        self.spec, self.weights = spec, weights
        self._eyes = [_KeypointEye(weights, camera, spec) for camera in spec.cameras]
        self._head = [
            (np.ascontiguousarray(weights[f"head{layer}.weight"].T), weights[f"head{layer}.bias"])
            for layer in range(spec.layers)
        ]
        self._age = age_features(np.arange(spec.horizon), spec.horizon)
        self._input = np.empty(len(self._head[0][0]), np.float32)
        scale = weights["action.scale"]
        self._unit = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)

    def correct(
        self, observation: Observation, action: Float32Array, chunk_index: int, discrete_dims: Sequence[int] = ()
    ) -> Float32Array:
        """Return the corrected action, float32 [A], of one planned ``chunk_index`` ticks ago; ``discrete_dims`` at the
        level that is nearest.

        Raises:
            UserError: for a camera that is missing.
        """
        keypoints = []
        for camera, eye in zip(self.spec.cameras, self._eyes, strict=True):
            if camera not in observation.images:
                known = ", ".join(sorted(observation.images)) or "none"
                raise UserError(f"the corrector needs camera {camera!r}, the observation has {known}; check the names")
            keypoints.append(eye.look(observation.images[camera]))
        weights = self.weights
        state, planned = self._network_input("state", observation.state), self._network_input("action", action)
        age = self._age[min(chunk_index, self.spec.horizon - 1)]
        row = np.concatenate([*keypoints, state, planned, age], out=self._input)
        for matrix, bias in self._head[:-1]:
            row = np.maximum(row @ matrix + bias, 0.0)
        matrix, bias = self._head[-1]
        corrected = action + (row @ matrix + bias) * self._unit
        for dim in discrete_dims:
            low, high = weights["action.low"][dim], weights["action.high"][dim]
            corrected[dim] = high if corrected[dim] > (low + high) / 2 else low
        return corrected

    def _network_input(self, name: str, raw: Float32Array) -> Float32Array:
        """Raw units to normalized units within the limit."""
        normalized = (raw - self.weights[f"{name}.offset"]) * self.weights[f"{name}.scale"]
        limit = self.weights[f"{name}.limit"]
        return np.clip(normalized, -limit, limit)

    def save(self, folder: Path) -> None:
        """Write the corrector, weights first, config.json last."""
        content = safetensors.numpy.save({name: np.ascontiguousarray(part) for name, part in self.weights.items()})
        about = {"format": FORMAT, "format_version": FORMAT_VERSION, "spec": config_to_dict(self.spec)}
        write_weights(folder, "corrector", content, about)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read a corrector; CheckpointError if it is missing, damaged or of another version."""
        if not (folder / "config.json").exists():
            raise CheckpointError(f"{folder} holds no corrector; train it: vla-rl corrector")
        about, content = read_weights(folder, FORMAT, FORMAT_VERSION)
        try:
            weights = safetensors.numpy.load(content)
            if not all(np.isfinite(part).all() for part in weights.values()):
                raise ValueError("it holds numbers that are not finite")
            return cls(config_from_dict(CorrectorSpec, about["spec"]), weights)
        except (KeyError, IndexError, TypeError, ValueError, ConfigError, safetensors.SafetensorError) as error:
            raise CheckpointError(f"{folder} is damaged ({error!r}); train the corrector anew") from error


def age_features(age_ticks: NDArray[np.integer], horizon: int) -> Float32Array:
    """Ages [N] of actions in their chunk -> float32 [N, 8]: sines and cosines with periods from 2 H down to H / 4."""
    angle = np.pi * age_ticks[:, None] / horizon * (1 << np.arange(4))
    return np.concatenate([np.sin(angle), np.cos(angle)], 1).astype(np.float32)


class _KeypointEye:
    """The policy's convolutions and soft-argmax keypoints for one camera, in numpy, in memory taken once."""

    def __init__(self, weights: Weights, camera: str, spec: CorrectorSpec) -> None:
        size: Sequence[int] = spec.image_size
        self._layers = []
        for layer, stride in enumerate(spec.strides):
            convolution = _Convolution(
                weights[f"{camera}.conv{layer}.weight"], weights[f"{camera}.conv{layer}.bias"], stride, size
            )
            self._layers.append(convolution)
            size = convolution.size
        self._logits = weights[f"{camera}.keypoints"]  # [K, C]
        y, x = np.meshgrid(*(np.linspace(-1, 1, side, dtype=np.float32) for side in size), indexing="ij")
        self._grid = np.stack([x.ravel(), y.ravel()], -1)  # [h w, 2]
        self._shape = spec.image_size

    def look(self, image: Uint8Array) -> Float32Array:
        """uint8 [H, W, 3] -> float32 [2 K], x and y of every keypoint in [-1, 1]."""
        if image.shape != (*self._shape, 3):
            raise UserError(f"the corrector was trained on pictures of {self._shape}, this one is {image.shape[:2]}")
        features = image.transpose(2, 0, 1) * np.float32(1 / 127.5) - np.float32(1)
        for layer in self._layers:
            features = layer.apply(features)
        logits = self._logits @ features.reshape(len(features), -1)  # [K, h w]
        weight = np.exp(logits - logits.max(1, keepdims=True))
        return ((weight @ self._grid) / weight.sum(1, keepdims=True)).ravel()


class _Convolution:
    """A strided convolution with ReLU: windows side by side, then one matrix product."""

    def __init__(self, weight: Float32Array, bias: Float32Array, stride: int, size: Sequence[int]) -> None:
        outputs, channels, kernel, _ = weight.shape
        pad = (kernel - 1) // 2
        self.size = tuple((side + 2 * pad - kernel) // stride + 1 for side in size)
        self._weight = weight.reshape(outputs, -1)
        self._bias = bias[:, None]
        padded = np.zeros((channels, *(side + 2 * pad for side in size)), np.float32)
        self._inside = padded[:, pad : pad + size[0], pad : pad + size[1]]
        every = sliding_window_view(padded, (kernel, kernel), axis=(1, 2))  # type: ignore[call-overload]  # numpy's stubs
        self._windows = every[:, ::stride, ::stride].transpose(0, 3, 4, 1, 2)  # [C, k, k, h, w]
        self._columns = np.empty(self._windows.shape, np.float32)
        self._output = np.empty((outputs, self.size[0] * self.size[1]), np.float32)

    def apply(self, features: Float32Array) -> Float32Array:
        """[C, H, W] -> [C', h, w]; valid until the next call."""
        self._inside[:] = features
        np.copyto(self._columns, self._windows)
        np.matmul(self._weight, self._columns.reshape(self._weight.shape[1], -1), out=self._output)
        self._output += self._bias
        return np.maximum(self._output, 0.0, out=self._output).reshape(-1, *self.size)
