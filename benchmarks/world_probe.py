"""The state probe: reads where things are from pictures, real, rebuilt or imagined. What a world model is judged by.

PSNR cannot distinguish a world model from a still picture; the error of a probe can. The probe is trained on real
pictures and true positions, which only a simulator or a motion-capture system knows. The world model never uses it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from vla_rl.core.progress import track
from vla_rl.core.types import Episode, Float32Array
from vla_rl.data.cache import FrameCache
from world_model.protocol import Observations, WorldSpec

_WIDTH = 32  # channels
_STEPS, _BATCH_SIZE, _LEARNING_RATE = 2000, 32, 2e-3


class StateProbe(nn.Module):
    """Pictures of all cameras -> positions of K points.

    Args:
        spec: cameras and image size.
        points: K.

    Attributes:
        cameras: names, in the order of the pictures.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, spec: WorldSpec, points: int) -> None:
        super().__init__()
        self.cameras = spec.cameras
        width, (height, breadth) = _WIDTH, spec.image_size
        self.features = nn.Sequential(
            nn.Conv2d(3 * len(spec.cameras), width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 4, stride=2, padding=1),
            nn.SiLU(),
            nn.Conv2d(width, width, 4, stride=2, padding=1),
            nn.SiLU(),
        )
        flat = width * (height // 8) * (breadth // 8)
        self.readout = nn.Sequential(nn.Flatten(), nn.Linear(flat, 128), nn.SiLU(), nn.Linear(128, 3 * points))
        self.register_buffer("mean", torch.zeros(points, 3))
        self.register_buffer("std", torch.ones(points, 3))

    def forward(self, images: Tensor) -> Tensor:
        """uint8 [B, cameras, H, W, 3] -> meters [B, K, 3]."""
        x = images.permute(0, 1, 4, 2, 3).flatten(1, 2).float() / 255 - 0.5
        out: Tensor = self.readout(self.features(x)).unflatten(1, (-1, 3))
        return out * self.std + self.mean


def true_positions(cache: FrameCache, truth: Callable[[Episode], Float32Array]) -> Float32Array:
    """Positions of all frames of the cache's real episodes, in their order, float32 [N, K, 3].

    Args:
        cache: the episodes.
        truth: episode -> positions of K points at every observation, float32 [T, K, 3], meters, for example by sending
            its actions again in the simulator.
    """
    episodes = track(cache.episodes, "true positions", "episode")
    return np.concatenate([truth(cache.store.read(episode.episode_id)) for episode in episodes])


def train_probe(spec: WorldSpec, cache: FrameCache, positions: Float32Array) -> StateProbe:
    """Train a probe on real frames.

    Args:
        spec: cameras.
        cache: the episodes.
        positions: from `true_positions` of the same cache.
    """
    frames = np.concatenate([np.arange(e.start, e.start + e.length) for e in cache.episodes])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        probe = StateProbe(spec, positions.shape[1])
    target = torch.from_numpy(positions)
    probe.mean.copy_(target.mean(0))
    probe.std.copy_(target.std(0).clamp(min=1e-4))
    optimizer = torch.optim.AdamW(probe.parameters(), _LEARNING_RATE, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    random = np.random.default_rng(0)
    for _ in track(range(_STEPS), "state probe", "step"):
        drawn = random.integers(len(frames), size=_BATCH_SIZE)
        error = (probe(Observations(cache, frames[drawn]).pictures(spec.cameras)) - target[drawn]) / probe.std
        loss = F.smooth_l1_loss(error, torch.zeros_like(error), beta=0.05)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    return probe.eval().requires_grad_(False)


@torch.no_grad()
def read_positions(probe: StateProbe, images: Tensor, batch: int = 256) -> Float32Array:
    """What the probe reads of frames uint8 [B, cameras, H, W, 3]: float32 [B, K, 3], meters."""
    parts = [probe(part) for part in images.split(batch)]
    return torch.cat(parts).numpy()


def position_error(found: NDArray[np.float32], true: NDArray[np.float32], points: Sequence[int]) -> Float32Array:
    """Mean distance over some of the points, float32 [...], meters, of [..., K, 3] and [..., K, 3]."""
    distance = np.linalg.norm(found[..., list(points), :] - true[..., list(points), :], axis=-1)
    return distance.mean(-1).astype(np.float32)
