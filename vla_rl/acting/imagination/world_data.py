"""The episodes of a world model, gathered from runs and from the spoilt expert into one store, and its spec."""

from dataclasses import replace
from pathlib import Path

from vla_rl.acting.task import episode_limit, open_robot
from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.errors import UserError
from vla_rl.core.progress import track
from vla_rl.data.cache import FrameCache
from vla_rl.data.edits import Changes
from vla_rl.data.store import EpisodeStore
from world_model.config import WorldSpec
from world_model.windows import spec_of


def gather_episodes(store: EpisodeStore, sources: dict[str, Path], env_id: str) -> None:
    """Copy the episodes of other stores that happened in an environment.

    What is there already stays, but for its edits, which are those of the source.

    Args:
        store: where they go, under the source's name and their own id.
        sources: name -> episode store.
        env_id: of the episodes that are wanted.
    """
    for name, path in sources.items():
        source = EpisodeStore(path, create=False)
        for episode_id in track(source.ids(left_out=True), f"episodes of {name}", "episode"):
            copied, edited = f"{name}-{episode_id}", source.edited_values(episode_id)
            if copied not in store:
                episode = source.recorded(episode_id)
                if episode.env_id != env_id or edited["left_out"]:
                    continue
                # Simulated captures, chunks and ages tell a world model nothing.
                store.add(replace(episode, episode_id=copied, extras={}))
            if store.edited_values(copied) != edited:
                store.edit(copied, **edited)


def episodes_of(store: EpisodeStore) -> list[tuple[str, str, Changes]]:
    """Return id, digest of the recording and edits of each episode, as ingredients of a key."""
    return [(name, store.recorded_digest(name), store.changes(name)) for name in store.ids()]


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


def world_spec(task: TaskConfig, cache: FrameCache) -> WorldSpec:
    """The spec of a task's world model: what the episodes show, and the limits of the environment."""
    robot = open_robot(task)
    actions, limit = robot.actions, episode_limit(robot.env)
    assert limit is not None, "every environment of a task has a limit"
    robot.close()
    spec = spec_of(cache, limit, actions.low.tolist(), actions.high.tolist())
    return replace(spec, action_kind=actions.kind, gripper_dims=actions.gripper_dims)
