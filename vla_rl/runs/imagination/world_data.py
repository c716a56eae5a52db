"""The episodes of a world model: gathered from runs and from the spoilt expert into a store of its own."""

from dataclasses import replace
from pathlib import Path

from vla_rl.core.errors import UserError
from vla_rl.core.progress import track
from vla_rl.core.types import Origin
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore


def gather_episodes(store: EpisodeStore, sources: dict[str, Path], env_id: str) -> None:
    """Copy the episodes of other stores that happened in an environment; what is there already stays, but for its
    label.

    Args:
        store: where they go, under the source's name and their own id.
        sources: name -> episode store.
        env_id: of the episodes that are wanted.
    """
    for name, path in sources.items():
        source = EpisodeStore(path, create=False)
        for episode_id in track(source.ids(), f"episodes of {name}", "episode"):
            copied = f"{name}-{episode_id}"
            if copied in store:
                success = source.read_header(episode_id).success
                if store.read_header(copied).success is not success:
                    store.label(copied, success)
                continue
            episode = source.read(episode_id)
            if episode.env_id == env_id and episode.origin is not Origin.IMAGINED:
                # Simulated captures, chunks and ages tell a world model nothing.
                store.add(replace(episode, episode_id=copied, extras={}))


def episodes_of(store: EpisodeStore) -> list[tuple[str, str, bool | None]]:
    """Return id, digest and outcome of each episode, as ingredients of a key."""
    headers = (store.read_header(name) for name in store.ids())
    return [(header.episode_id, header.digest, header.success) for header in headers]


def open_cache(folder: Path, directory: Path) -> FrameCache:
    """The frame cache of a store, up to date.

    Raises:
        UserError: if there are no episodes.
    """
    cache = FrameCache(EpisodeStore(folder, create=False), directory)
    cache.refresh()
    if not cache.episodes:
        raise UserError(f"{folder} holds no episodes; record some first")
    return cache
