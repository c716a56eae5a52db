"""Train a video world model on the episodes of a run, and film what it imagines."""

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

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
from vla_rl.training.branch_film import Film
from vla_rl.training.config import RunConfig, world_preset
from vla_rl.training.practice import check_device
from world_model.config import WorldModelConfig
from world_model.model import load_world_model
from world_model.open_loop import imagine
from world_model.training import train_world_model
from world_model.windows import LatentEpisodes, pictures

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
    data = LatentEpisodes(cache, model.autoencoder)
    long_enough = (data.length > start + steps).nonzero()[:, 0]
    if len(long_enough) == 0:
        raise UserError(f"no held-out episode has more than {start + steps} steps; choose a smaller --start or --steps")
    order = np.random.default_rng(0).permutation(len(long_enough))
    episode = long_enough[order[:episodes]]
    frame = (data.start[episode] + start)[:, None] + torch.arange(steps)
    future = imagine(model, data, episode, torch.full((len(episode),), start), data.action[frame])
    clips = []
    for row, index in enumerate(episode.tolist()):
        real = pictures(cache, data.episodes[index].start + start + 1 + np.arange(steps), model.spec.cameras)
        with torch.no_grad():
            imagined = model.autoencoder.decode(future.latents[row].to(model.device)).cpu()
        clips.append(np.concatenate([_side_by_side(real.numpy()), _side_by_side(imagined.numpy())], axis=1))
    return Film(clips, model.spec.control_hz)


def _side_by_side(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """[T, cameras, H, W, 3] -> [T, H, cameras W, 3]."""
    return np.concatenate(list(images.swapaxes(0, 1)), axis=2)
