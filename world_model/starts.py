"""Where imagined episodes begin: at first frames of real ones."""

from dataclasses import dataclass

import numpy as np

from vla_rl.core.errors import UserError
from world_model.windows import LatentEpisodes


@dataclass(frozen=True, slots=True)
class Start:
    """A moment of a real episode.

    Attributes:
        episode: its index in `LatentEpisodes`.
        step: at which imagination takes over.
    """

    episode: int
    step: int = 0


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

    def choose(self, seed: int) -> Start:
        """The start of a seed: if a real episode was reset with it, the beginning of that one, so that imagined and
        real outcomes can be compared; else a draw.
        """
        if seed in self._by_seed:
            return Start(self._by_seed[seed])
        return Start(int(np.random.default_rng([seed, 0x7374]).integers(self._episodes)))
