"""Fixtures: caches of tiny episodes."""

from collections.abc import Callable, Sequence

import pytest

from vla_rl.core.types import Episode
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore


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


@pytest.fixture
def fast_critics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Critics that learn in a few hundred steps what tests ask of them."""
    for name in ("hierarchical.CRITIC_LEARNING_RATE", "chunk_critic._LEARNING_RATE"):
        monkeypatch.setattr(f"vla_rl.algorithms.{name}", 1e-2)


@pytest.fixture
def small_dynamics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamics of tiny worlds, which learn a few numbers."""
    monkeypatch.setattr("world_model.feature_dynamics._HIDDEN", (32,))
    monkeypatch.setattr("world_model.feature_dynamics._BATCH_SIZE", 64)
