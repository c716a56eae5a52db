"""Where imagined episodes begin: at first frames of real ones."""

import numpy as np

from vla_rl.core.errors import UserError
from world_model.windows import LatentEpisodes


class StartBank:
    """Draws starts. A function of the seed alone.

    Args:
        data: real episodes.

    Raises:
        UserError: if there are no real episodes.
    """

    def __init__(self, data: LatentEpisodes) -> None:
        self._episodes = len(data.episodes)
        if not self._episodes:
            raise UserError("there are no real episodes to begin imagined ones from")
        self._by_seed = {episode.seed: index for index, episode in enumerate(data.episodes) if episode.seed is not None}

    def choose(self, seed: int) -> int:
        """The index of the episode that a seed begins in: the one that was reset with it, so that imagined and real
        outcomes can be compared; else a draw.
        """
        if seed in self._by_seed:
            return self._by_seed[seed]
        return int(np.random.default_rng([seed, 0x7374]).integers(self._episodes))
