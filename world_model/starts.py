"""Where imagined episodes begin: at first frames of real ones, and at key frames of failures (WoVR, arXiv 2602.13977).

WoVR does not state its rule for key frames, nor their fraction. Ours, per failed episode of a policy:

- ``viability_fall``: the key frame stands ``lead_steps`` before the steepest fall of the viability p_v over
  ``fall_steps``: the last moment at which the episode could probably still be saved. Needs viabilities, which whoever
  makes the bank must have; a practice run makes its key frames before its critics see the round.
- ``uniform``, the default: a step drawn uniformly from the failed episode.

Failures of the newest policy version come first: key frames are drawn from the newest ``versions`` versions that have
any.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Origin
from world_model.windows import LatentEpisodes


@dataclass(frozen=True)
class StartConfig:
    """Where imagined episodes begin.

    Attributes:
        keyframe_fraction: share of the imagined episodes that begin at a key frame; the others at a first frame.
        keyframe_rule: see the module.
        lead_steps: how long before the steepest fall.
        fall_steps: over how many steps a fall is measured.
        versions: policy versions, from the newest, whose failures give key frames.
    """

    keyframe_fraction: float = 0.3
    keyframe_rule: Literal["viability_fall", "uniform"] = "uniform"
    lead_steps: int = 10
    fall_steps: int = 5
    versions: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.keyframe_fraction <= 1:
            raise ConfigError(f"starts.keyframe_fraction is {self.keyframe_fraction}; it must be in [0, 1]")
        if self.keyframe_rule not in ("viability_fall", "uniform"):
            raise ConfigError(f"starts.keyframe_rule is {self.keyframe_rule!r}; expected 'viability_fall' or 'uniform'")


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
        viability: p_v of every frame of ``data``, float [N], for the rule ``viability_fall``.

    Raises:
        ConfigError: if that rule is asked for without viabilities.
        UserError: if there are no real episodes.

    Attributes:
        first_frames: starts at first frames.
        keyframes: starts at key frames.
    """

    def __init__(
        self, data: LatentEpisodes, config: StartConfig, viability: NDArray[np.floating] | None = None
    ) -> None:
        self.config = config
        self.first_frames = [Start(index, 0) for index in range(len(data.episodes))]
        if not self.first_frames:
            raise UserError("there are no real episodes to begin imagined ones from")
        self.keyframes = _keyframes(data, config, viability) if config.keyframe_fraction else []
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


def steepest_fall(viability: NDArray[np.floating], fall_steps: int) -> int:
    """The step t at which p_v(t + fall_steps) - p_v(t) is lowest; 0 in an episode that is too short."""
    if len(viability) <= fall_steps:
        return 0
    return int(np.argmin(viability[fall_steps:] - viability[:-fall_steps]))


def _keyframes(data: LatentEpisodes, config: StartConfig, viability: NDArray[np.floating] | None) -> list[Start]:
    if config.keyframe_rule == "viability_fall" and viability is None:
        raise ConfigError(
            "starts.keyframe_rule is 'viability_fall', and there are no viabilities here; take 'uniform', or no key "
            "frames (starts.keyframe_fraction=0)"
        )
    failures = _failures(data, config.versions)
    starts = []
    for index in failures:
        start, length = int(data.start[index]), int(data.length[index])
        if config.keyframe_rule == "uniform":
            random = np.random.default_rng([start, 0x6B66])
            step = int(random.integers(1, max(length - 1, 2)))
        else:
            assert viability is not None
            step = steepest_fall(viability[start : start + length], config.fall_steps) - config.lead_steps
        if 0 < step < length - 1:
            starts.append(Start(index, step))
    return starts


def _failures(data: LatentEpisodes, versions: int) -> Sequence[int]:
    """Failed episodes of the newest policy versions that failed at all."""
    failed = {
        index: episode.policy_version
        for index, episode in enumerate(data.episodes)
        if episode.success is False and episode.policy_version >= 0 and episode.origin is not Origin.DEMO
    }
    newest = sorted(set(failed.values()), reverse=True)[:versions]
    return [index for index, version in failed.items() if version in newest]
