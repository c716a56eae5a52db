"""Where imagined episodes begin: at first frames of real ones, and at key frames of failures (WoVR, arXiv 2602.13977).

WoVR does not state its rule for key frames, nor their fraction. Ours: a step drawn uniformly from each failed episode
of the newest policy version that failed at all. A practice run makes its key frames before its critics see the round,
so that no viability is there to choose them by.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Origin
from world_model.windows import LatentEpisodes


@dataclass(frozen=True)
class StartConfig:
    """Where imagined episodes begin.

    Attributes:
        keyframe_fraction: share of the imagined episodes that begin at a key frame; the others at a first frame.
    """

    keyframe_fraction: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.keyframe_fraction <= 1:
            raise ConfigError(f"starts.keyframe_fraction is {self.keyframe_fraction}; it must be in [0, 1]")


@dataclass(frozen=True, slots=True)
class Start:
    """A moment of a real episode.

    Attributes:
        episode: its index in `LatentEpisodes`.
        step: at which imagination takes over.
    """

    episode: int
    step: int

    @property
    def is_keyframe(self) -> bool:
        return self.step > 0


class StartBank:
    """Draws starts. A function of the seed alone.

    Args:
        data: real episodes.
        config: see `StartConfig`.

    Raises:
        UserError: if there are no real episodes.

    Attributes:
        first_frames: starts at first frames.
        keyframes: starts at key frames.
    """

    def __init__(self, data: LatentEpisodes, config: StartConfig) -> None:
        self.config = config
        self.first_frames = [Start(index, 0) for index in range(len(data.episodes))]
        if not self.first_frames:
            raise UserError("there are no real episodes to begin imagined ones from")
        self.keyframes = _keyframes(data) if config.keyframe_fraction else []
        self._by_seed = {
            episode.seed: Start(index, 0) for index, episode in enumerate(data.episodes) if episode.seed is not None
        }

    def choose(self, seed: int) -> Start:
        """The start of a seed: if a real episode was reset with it, the beginning of that one, so that imagined and
        real outcomes can be compared; else a draw.
        """
        if seed in self._by_seed:
            return self._by_seed[seed]
        random = np.random.default_rng([seed, 0x7374])
        if self.keyframes and random.random() < self.config.keyframe_fraction:
            return self.keyframes[random.integers(len(self.keyframes))]
        return self.first_frames[random.integers(len(self.first_frames))]


def _keyframes(data: LatentEpisodes) -> list[Start]:
    starts = []
    for index in _failures(data):
        start, length = int(data.start[index]), int(data.length[index])
        random = np.random.default_rng([start, 0x6B66])
        step = int(random.integers(1, max(length - 1, 2)))
        if 0 < step < length - 1:
            starts.append(Start(index, step))
    return starts


def _failures(data: LatentEpisodes) -> Sequence[int]:
    """Failed episodes of the newest policy version that failed at all."""
    failed = {
        index: episode.policy_version
        for index, episode in enumerate(data.episodes)
        if episode.success is False and episode.policy_version >= 0 and episode.origin is not Origin.DEMO
    }
    newest = max(failed.values(), default=-1)
    return [index for index, version in failed.items() if version == newest]
