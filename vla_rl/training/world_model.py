"""Train a video world model on the episodes of a run, and film what it imagines."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from vla_rl.acting.world_folder import (
    NEAR_SUCCESS_SEED,
    WorldFolder,
    collect_near_success,
    episodes_of,
    gather_episodes,
    open_cache,
    world_spec,
)
from vla_rl.core.cache_keys import cache_key, claim
from vla_rl.core.config import load_config, save_config
from vla_rl.core.errors import UserError
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.training.branch_film import Film, clip
from vla_rl.training.config import RunConfig, world_preset
from vla_rl.training.practice import check_device
from world_model.config import WorldModelConfig
from world_model.model import load_world_model
from world_model.training import train_world_model

logger = logging.getLogger(__name__)


def train_on_run(
    run: Path, out: Path, preset: str, changes: Sequence[str] = (), near_success: int = 300, device: str = "cpu"
) -> int:
    """Gather episodes of a run and of ``near_success`` scripted episodes, and train a world model.

    It goes on where it stopped.

    Args:
        run: The run folder.
        out: Folder of the world model.
        preset: Name of a preset, or a YAML file.
        changes: Items ``key=value`` that change it.

    Returns:
        Number of training episodes.

    Raises:
        UserError: If there is no run, a change does not fit, or ``out`` holds another world model.
    """
    source, config = RunFolder.open(run, RunConfig)
    world = load_config(WorldModelConfig, world_preset(preset), changes)
    check_device(device)
    folder = WorldFolder(out)
    episodes = [episodes_of(EpisodeStore(path, create=False)) for path in (source.episodes, source.evaluation)]
    claim(
        folder.path / "key",
        cache_key([config.task, config.gate, world, near_success, episodes]),
        f"{folder.path} holds a world model of another task, of other episodes or with other settings; choose another "
        "--out",
        made=(folder.model / "config.json").exists(),
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    save_config(config.task, folder.task_file)
    near = EpisodeStore(folder.near)
    collect_near_success(config.task, config.gate, near, near_success, NEAR_SUCCESS_SEED)
    if near_success:
        succeeded = [near.read_header(name).success is True for name in near.ids()]
        logger.info("near successes: %.0f %% succeed", 100 * np.mean(succeeded))
    gather_episodes(EpisodeStore(folder.episodes), {"run": source.episodes, "near": folder.near}, config.task.env)
    gather_episodes(EpisodeStore(folder.held_out), {"run": source.evaluation}, config.task.env)
    cache = open_cache(folder.episodes, folder.cache)
    train_world_model(world, world_spec(config.task, cache), cache, folder.model, device)
    return len(cache.episodes)


def film_world(world: Path, episodes: int, start: int, steps: int) -> Film:
    """Film held-out episodes: reality above, and below it what the world model imagines with the same actions.

    Imagination begins at step ``start``; the film has ``steps``.

    Raises:
        UserError: If there is no world model, or no episode is long enough.
    """
    folder = WorldFolder(world)
    folder.task()  # refuses a folder without a world model
    model, cache = load_world_model(folder.model), open_cache(folder.held_out, folder.held_out_cache)
    long_enough = [each.start for each in cache.episodes if each.length > start + steps]
    if not long_enough:
        raise UserError(f"no held-out episode has more than {start + steps} steps; choose a smaller --start or --steps")
    clips = []
    for index in np.random.default_rng(0).permutation(len(long_enough))[:episodes]:
        frames = long_enough[index] + start + np.arange(steps + 1)
        clips.append(clip(model, cache, model.spec.cameras, frames, cache.action_sent[frames[:-1], None]))
    return Film(clips, model.spec.control_hz)
