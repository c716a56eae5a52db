"""Which frames a training step looks at: a mixture of groups.

Drawn as a pure function of (seed, step), so that a resumed run goes on exactly where it stopped.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import ConfigError, did_you_mean

_PURPOSE = 0x73616D706C65  # "sample"


class MixtureSampler:
    """Draws frames with replacement: first the group by its weight, then a frame of it, uniformly or by priority.

    Args:
        groups: name -> frame numbers, int [N_g]. A group may be empty; its weight is then shared out over the others in
            proportion.
        weights: name -> weight >= 0, of any scale. A group without a weight is an error, so that none is forgotten.
        seed: of all draws, >= 0.
        priorities: name -> float [N_g] >= 0; frames are drawn in proportion to them. Groups not named here are drawn
            uniformly. A group whose priorities are all 0 counts as empty.

    Raises:
        ConfigError: for weights or priorities that do not fit the groups, are negative or not finite, or leave nothing
            to draw from.
    """

    def __init__(
        self,
        groups: Mapping[str, NDArray[np.integer]],
        weights: Mapping[str, float],
        seed: int,
        priorities: Mapping[str, NDArray[np.floating]] | None = None,
    ) -> None:
        self.names = list(groups)
        self._seed = seed
        self._frames = [np.asarray(groups[name], dtype=np.int64) for name in self.names]
        for name in [*weights, *(priorities or {})]:
            if name not in groups:
                raise ConfigError(f"there is no group {name!r} to sample from.{did_you_mean(name, groups)}")
        self._edges = [_priority_edges(name, (priorities or {}).get(name), len(groups[name])) for name in self.names]
        mass = np.array([_weight(name, weights) for name in self.names])
        for index, (frames, edges) in enumerate(zip(self._frames, self._edges, strict=True)):
            if len(frames) == 0 or (edges is not None and edges[-1] == 0):
                mass[index] = 0.0
        if not mass.sum() > 0:
            sizes = {name: len(frames) for name, frames in zip(self.names, self._frames, strict=True)}
            raise ConfigError(
                f"there is nothing to sample from: every group is empty or has weight 0 (frames per group: {sizes})"
            )
        self.probabilities = mass / mass.sum()  # [G], after sharing out
        self._group_edges = _edges(mass)

    def sample(self, step: int, batch_size: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the frames of one training step, O(B log N).

        Returns:
            frames: int64 [B].
            group_index: int64 [B], the group of each frame as an index into ``names``.
        """
        # The counter keeps these draws apart from those that other parts key by the same seed and step.
        random = np.random.Generator(np.random.Philox(key=[self._seed, step], counter=[0, 0, 0, _PURPOSE]))
        uniform = random.random((2, batch_size))
        group_index = np.searchsorted(self._group_edges, uniform[0], side="right")
        frames = np.empty(batch_size, dtype=np.int64)
        for index in np.unique(group_index):
            rows = np.flatnonzero(group_index == index)
            members, edges = self._frames[index], self._edges[index]
            if edges is None:
                picks = np.minimum((uniform[1, rows] * len(members)).astype(np.int64), len(members) - 1)
            else:
                picks = np.searchsorted(edges, uniform[1, rows], side="right")
            frames[rows] = members[picks]
        return frames, group_index


def _weight(name: str, weights: Mapping[str, float]) -> float:
    if name not in weights:
        raise ConfigError(
            f"the sampler's group {name!r} has no weight; give it one (0 leaves it out).{did_you_mean(name, weights)}"
        )
    weight = float(weights[name])
    if not np.isfinite(weight) or weight < 0:
        raise ConfigError(f"the sampler's weight of {name!r} is {weight}; weights are finite and >= 0")
    return weight


def _priority_edges(name: str, priorities: NDArray[np.floating] | None, length: int) -> NDArray[np.float64] | None:
    if priorities is None:
        return None
    values = np.asarray(priorities, dtype=np.float64)
    if values.shape != (length,):
        raise ConfigError(
            f"the priorities of group {name!r} have the shape {list(values.shape)}, its frames [{length}]"
        )
    if not np.isfinite(values).all() or (values < 0).any():
        raise ConfigError(f"the priorities of group {name!r} must be finite and >= 0")
    return _edges(values) if values.any() else values


def _edges(mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the upper edges of the intervals that [0, 1) is divided into in proportion to the masses."""
    edges = np.cumsum(mass / mass.sum())
    edges[np.flatnonzero(mass)[-1] :] = 1.0  # rounding must not let a draw fall behind the last one with any mass
    return edges
