"""Randomness without state. Every sample is a pure function of (seed, purpose, step). A resumed run needs no
generator's state and continues exactly where it stopped.
"""

import zlib
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from vla_rl.core.errors import ConfigError, did_you_mean

_PURPOSE = 0x73616D706C65  # "sample"


def derived_seed(seed: int, purpose: str, step: int = 0) -> int:
    """A 63-bit seed for one purpose at one step; different purposes and steps are independent."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), step])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def fold_of(episode_id: str, folds: int) -> int:
    """The part, below ``folds``, of the episodes that one belongs to: the same in every round."""
    return zlib.crc32(episode_id.encode()) % folds


def torch_generator(seed: int, purpose: str, step: int) -> torch.Generator:
    """A CPU generator for one purpose at one step."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, step))


class MixtureSampler:
    """Draws frames with replacement: first the group by its weight, then a frame of it, uniformly.

    Args:
        groups: name -> frame numbers, int [N_g]. A group may be empty; its weight is then shared out over the others in
            proportion.
        weights: name -> weight >= 0, of any scale. A group without a weight is an error, so that none is forgotten.
        seed: of all draws, >= 0.

    Raises:
        ConfigError: for weights that do not fit the groups, are negative or not finite, or leave nothing to draw from.
    """

    def __init__(self, groups: Mapping[str, NDArray[np.integer]], weights: Mapping[str, float], seed: int) -> None:
        self.names = list(groups)
        self._seed = seed
        self._frames = [np.asarray(groups[name], dtype=np.int64) for name in self.names]
        for name in weights:
            if name not in groups:
                raise ConfigError(f"there is no group {name!r} to sample from.{did_you_mean(name, groups)}")
        mass = np.array([_weight(name, weights) * (len(groups[name]) > 0) for name in self.names])
        if not mass.sum() > 0:
            sizes = {name: len(frames) for name, frames in zip(self.names, self._frames, strict=True)}
            raise ConfigError(
                f"there is nothing to sample from: every group is empty or has weight 0 (frames per group: {sizes})"
            )
        self.probabilities = mass / mass.sum()  # [G], after sharing out
        self._edges = np.cumsum(self.probabilities)  # upper ends of the groups' intervals in [0, 1)
        self._edges[np.flatnonzero(mass)[-1] :] = 1.0  # rounding must not let a draw fall behind the last group

    def sample(self, step: int, batch_size: int) -> NDArray[np.int64]:
        """The frames of one training step, int64 [B]."""
        # The counter keeps these draws apart from those that other parts key by the same seed and step.
        random = np.random.Generator(np.random.Philox(key=[self._seed, step], counter=[0, 0, 0, _PURPOSE]))
        which, place = random.random((2, batch_size))
        group = np.searchsorted(self._edges, which, side="right")
        frames = np.empty(batch_size, dtype=np.int64)
        for index in np.unique(group):
            rows, members = group == index, self._frames[index]
            frames[rows] = members[np.minimum((place[rows] * len(members)).astype(np.int64), len(members) - 1)]
        return frames


def _weight(name: str, weights: Mapping[str, float]) -> float:
    if name not in weights:
        raise ConfigError(
            f"the sampler's group {name!r} has no weight; give it one (0 leaves it out).{did_you_mean(name, weights)}"
        )
    weight = float(weights[name])
    if not np.isfinite(weight) or weight < 0:
        raise ConfigError(f"the sampler's weight of {name!r} is {weight}; weights are finite and >= 0")
    return weight
