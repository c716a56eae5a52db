"""Fixtures: one thread, and caches of tiny episodes."""

from collections.abc import Callable, Sequence

import pytest
import torch

from vla_rl.core.types import Episode
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore


@pytest.fixture(autouse=True)
def _one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def make_cache(tmp_path) -> Callable[[Sequence[Episode]], FrameCache]:
    """Episodes -> a refreshed cache."""

    def make(episodes: Sequence[Episode]) -> FrameCache:
        number = len(list(tmp_path.iterdir()))
        store = EpisodeStore(tmp_path / f"store{number}")
        for episode in episodes:
            store.add(episode)
        cache = FrameCache(store, tmp_path / f"cache{number}")
        cache.refresh()
        return cache

    return make
