"""Windows of real episodes as training batches. Draws are functions of (seed, step), so that a resumed run goes on
exactly where it stopped.
"""

import numpy as np
import torch
from torch import Tensor

from vla_rl.data.cache import FrameCache
from world_model.autoencoder import Autoencoder
from world_model.dynamics import WorldBatch
from world_model.protocol import Observations

_ENCODE_FRAMES, _BACKGROUND_FRAMES = 64, 256
_WINDOWS, _PICTURES = 0x77696E, 0x706963  # purposes of draws


def draw_pictures(cache: FrameCache, cameras: tuple[str, ...], seed: int, step: int, batch_size: int) -> Tensor:
    """Frames of real episodes, uniformly: uint8 [B, cameras, H, W, 3]."""
    random = np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, 0, _PICTURES]))
    return Observations(cache, random.integers(cache.total_frames, size=batch_size)).pictures(cameras)


def background(cache: FrameCache, cameras: tuple[str, ...], seed: int) -> Tensor:
    """Return the median picture of each camera around 0, float [cameras, 3, H, W]."""
    drawn = draw_pictures(cache, cameras, seed, 0, _BACKGROUND_FRAMES)
    return drawn.median(0).values.permute(0, 3, 1, 2).float() / 255 - 0.5


class LatentEpisodes:
    """The real episodes of a cache as latents, in memory. The cache must not be refreshed while this is used.

    The autoencoder is trained, with its statistics set.

    Attributes:
        latents: float32 [N, tokens, D].
        state: float32 [N, S].
        action: float32 [N, A], what was sent.
        start, length: int64 [E], the frames of each episode.
        success, terminated: bool [E].
    """

    def __init__(self, cache: FrameCache, autoencoder: Autoencoder) -> None:
        device, frames = autoencoder.latent_mean.device, np.arange(cache.total_frames)
        parts = np.split(frames, range(_ENCODE_FRAMES, len(frames), _ENCODE_FRAMES))
        seen = (Observations(cache, part).pictures(autoencoder.cameras).to(device) for part in parts)
        with torch.no_grad():
            self.latents = torch.cat([autoencoder.encode(each) for each in seen]).cpu()
        self.state, self.action = torch.tensor(cache.state), torch.tensor(cache.action_sent)
        self.length = torch.tensor([episode.length for episode in cache.episodes])
        self.start = torch.tensor([episode.start for episode in cache.episodes])
        self.success = torch.tensor([episode.success is True for episode in cache.episodes])
        self.terminated = torch.tensor([episode.terminated for episode in cache.episodes])

    def changes(self) -> tuple[Tensor, Tensor]:
        """Changes from frame to frame within episodes: of latents [M, tokens, D] and of state [M, S]."""
        last = self.start + self.length - 1
        inner = torch.ones(len(self.state), dtype=torch.bool)
        inner[last] = False
        first = inner.nonzero()[:, 0]
        return self.latents[first + 1] - self.latents[first], self.state[first + 1] - self.state[first]

    def windows(self, episode: Tensor, first: Tensor, frames: int) -> WorldBatch:
        """Return the windows of ``frames`` steps that begin at step ``first`` [B] of the episodes [B]."""
        start, length = self.start[episode], self.length[episode]
        step = first[:, None] + torch.arange(frames + 1)  # [B, T + 1]
        index = start[:, None] + torch.minimum(step, length[:, None] - 1)
        previous = start + (first - 1).clamp(min=0)
        at_end = step[:, :-1] == length[:, None] - 1
        return WorldBatch(
            latents=self.latents[index],
            state=self.state[index],
            action=self.action[index[:, :-1]],
            previous_latents=self.latents[previous],
            previous_state=self.state[previous],
            has_previous=first > 0,
            inside=step[:, :-1] < length[:, None],
            has_next=step[:, 1:] < length[:, None],
            success=(at_end & (self.success & self.terminated)[episode][:, None]).float(),
            termination=(at_end & self.terminated[episode][:, None]).float(),
        )

    def draw(
        self,
        seed: int,
        step: int,
        batch_size: int,
        frames: int,
        ending_share: float = 0.0,
        beginning_share: float = 0.0,
    ) -> WorldBatch:
        """Sample the batch of a training step: windows at any step, and shares that begin or end with their episode."""
        random = np.random.Generator(np.random.Philox(key=[seed, step], counter=[0, 0, 0, _WINDOWS]))
        uniform = torch.from_numpy(random.random((3, batch_size)))
        # Episodes in proportion to their length: every step is as likely.
        drawn = (uniform[0] * len(self.state)).long().clamp(max=len(self.state) - 1)
        episode = torch.searchsorted(self.start, drawn, right=True) - 1
        length = self.length[episode]
        anywhere = (uniform[1] * (length - frames // 2).clamp(min=1)).long()
        ending = (length - frames).clamp(min=0)
        first = torch.where(uniform[2] < ending_share, ending, anywhere)
        first[uniform[2] >= 1.0 - beginning_share] = 0
        return self.windows(episode, first, frames)
