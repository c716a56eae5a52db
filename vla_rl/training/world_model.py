"""Train a world model on the episodes of a run, and film what it predicts."""

import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from vla_rl.acting.policy_folder import find_policy
from vla_rl.acting.world_folder import (
    NEAR_SUCCESS_SEED,
    Eyes,
    WorldFolder,
    collect_near_success,
    episodes_of,
    gather_episodes,
    has_expert,
    open_cache,
    world_spec,
)
from vla_rl.algorithms.imagined_edit import frames_of, what_actions_did
from vla_rl.algorithms.round_data import RoundData
from vla_rl.algorithms.sampling import derived_seed, torch_generator
from vla_rl.core.cache_keys import cache_key, claim
from vla_rl.core.config import load_config, save_config
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.files import write_atomic
from vla_rl.core.json_files import reading
from vla_rl.core.validation import check_ranges
from vla_rl.credit import CreditConfig
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.data.run_folder import RunFolder
from vla_rl.data.store import EpisodeStore
from vla_rl.policies.folders import load_model
from vla_rl.training.branch_film import Film, as_sent, clip, predicted
from vla_rl.training.config import RunConfig
from vla_rl.training.practice import check_device
from world_model.feature_decoder import fit_decoder
from world_model.feature_dynamics import FeatureDynamics, FeatureDynamicsConfig, Transitions, fit_dynamics
from world_model.feature_world import FeatureWorld, Trust, platt_scale, save_world_model
from world_model.protocol import Observations

logger = logging.getLogger(__name__)
_DYNAMICS = "dynamics.safetensors"  # until the decoder is trained too
_JUDGED = 10  # every tenth episode fits `Trust`; the model does not learn from it
_LEAST_JUDGED = 20
_NEAR_SUCCESS = 300
_STARTS = 3  # rollouts of a judged episode
_FAMILIAR_SHARE = 0.95


@dataclass(frozen=True)
class WorldModelConfig:
    """Everything that decides a world model, beside its data and the policy through which it sees.

    Attributes:
        dynamics: Ensemble and gradient steps.
        decoder_steps: Gradient steps of the decoder.
        seed: Of initial weights, batches and noise.
    """

    dynamics: FeatureDynamicsConfig = field(default_factory=functools.partial(FeatureDynamicsConfig, steps=4000))
    decoder_steps: int = 1500
    seed: int = 0

    def __post_init__(self) -> None:
        check_ranges(self, "world model", decoder_steps=">= 1")
        if self.dynamics.members < 2:
            raise ConfigError("dynamics.members is 1; the disagreement of 2 or more says where a world model is lost")


def train_on_run(
    run: Path, out: Path, changes: Sequence[str] = (), near_success: int | None = None, device: str = "cpu"
) -> int:
    """Gather episodes of a run and scripted near successes, and train a world model in the features of the run's newest
    policy.

    An interrupted training goes on with its dynamics, if they were finished.

    Args:
        run: The run folder.
        out: Folder of the world model.
        changes: Items ``key=value`` that change `WorldModelConfig`.
        near_success: Number of scripted episodes; None: 300 if the task has an expert, else 0.
        device: Where to compute.

    Returns:
        Number of training episodes.

    Raises:
        UserError: If there is no run or no policy, a change does not fit, or ``out`` holds another world model.
    """
    source, config = RunFolder.open(run, RunConfig)
    settings = load_config(WorldModelConfig, overrides=changes)
    check_device(device)
    folder, found = WorldFolder(out), find_policy(run)
    if near_success is None:
        near_success = _NEAR_SUCCESS if has_expert(config.task) else 0
    claim(
        folder.path / "key",
        _key(source, config, settings, near_success),
        f"{folder.path} holds a world model of another task or policy, of other episodes or with other settings; "
        "choose another folder, or remove it",
        made=(folder.model / "config.json").exists(),
    )
    folder.path.mkdir(parents=True, exist_ok=True)
    save_config(config.task, folder.task_file)
    encoder = load_model(found.path)[0].encoder
    Eyes(encoder)  # refuses a policy that it cannot see through, before anything is played
    encoder.save(folder.encoder, {"policy_version": found.version})
    near = EpisodeStore(folder.near)
    collect_near_success(config.task, config.gate, near, near_success, NEAR_SUCCESS_SEED)
    if near_success:
        succeeded = [near.read_header(name).success is True for name in near.ids()]
        logger.info("near successes: %.0f %% succeed", 100 * np.mean(succeeded))
    gather_episodes(EpisodeStore(folder.episodes), {"run": source.episodes, "near": folder.near}, config.task.env)
    gather_episodes(EpisodeStore(folder.held_out), {"run": source.evaluation}, config.task.env)
    cache = open_cache(folder.episodes, folder.cache, encoder.spec)
    spec = world_spec(config.task, cache)
    if not (folder.model / "config.json").exists():
        eyes = Eyes(load_model(folder.encoder)[0].to(device))
        world = fit_world(settings, eyes, cache, spec.cameras, folder.model, _ticks(config))
        save_world_model(folder.model, world, spec)
        (folder.model / _DYNAMICS).unlink()
    return len(cache.episodes)


def world_of(folder: Path) -> Path:
    """Return the folder of a world model. For a run it is the run's own, ``world``, trained now if it has none.

    A model of an earlier policy or of fewer episodes is still used, with a warning.

    Raises:
        UserError: As `train_on_run`.
    """
    if not (folder / "policies").is_dir():
        return folder
    world = WorldFolder(folder / "world")
    if not (world.model / "config.json").exists():
        torch.set_num_threads(1)
        logger.info("%s has no world model yet; one is trained now, once, in %s", folder, world.path)
        train_on_run(folder, world.path)
        return world.path
    source, config = RunFolder.open(folder, RunConfig)
    near = len(EpisodeStore(world.near))
    if world.key.read_text().strip() != _key(source, config, WorldModelConfig(), near):
        logger.warning(
            "%s was trained before the run had its newest policy and episodes, or with other settings; remove it to "
            "train it anew",
            world.path,
        )
    return world.path


def _key(source: RunFolder, config: RunConfig, settings: WorldModelConfig, near_success: int) -> str:
    """Everything that decides the world model of a run, except the code."""
    episodes = [episodes_of(EpisodeStore(path, create=False)) for path in (source.episodes, source.evaluation)]
    policy = find_policy(source.path).path / "config.json"
    return cache_key([config.task, config.gate, settings, _ticks(config), near_success, episodes, policy])


def _ticks(config: RunConfig) -> int:
    """C: as many actions as the run executes before its next plan, at least two."""
    return max(2, config.execution.execute_ticks)


def film_world(world: Path, episodes: int, start: int, steps: int) -> Film:
    """Film held-out episodes: reality above, and below it what the world model predicts of the same actions.

    The prediction begins at step ``start``; the film has ``steps``.

    Raises:
        UserError: If there is no world model, or no episode is long enough.
    """
    folder = WorldFolder(world)
    (model, spec), cache = folder.load(), folder.open_held_out()
    long_enough = [each.start for each in cache.episodes if each.length > start + steps]
    if not long_enough:
        raise UserError(f"no held-out episode has more than {start + steps} steps; choose a smaller --start or --steps")
    clips = []
    for index in np.random.default_rng(0).permutation(len(long_enough))[:episodes]:
        frames = long_enough[index] + start + np.arange(steps + 1)
        sent = as_sent(cache.action_sent[frames[:-1], None])
        row = predicted(model, Observations(cache, frames[:1]), sent, steps, familiar=1.0)
        clips.append(clip([Observations(cache, frames).pictures(spec.cameras), row]))
    return Film(clips, spec.control_hz)


def fit_world(
    settings: WorldModelConfig, eyes: Eyes, cache: FrameCache, cameras: tuple[str, ...], folder: Path, ticks: int
) -> FeatureWorld:
    """Fit dynamics and decoder to nine tenths of the episodes, and `Trust` to the others.

    Args:
        settings: See `WorldModelConfig`.
        eyes: What the model sees and predicts.
        cache: Real episodes.
        cameras: Names, in the order in which the decoder draws them.
        folder: Keeps the dynamics until the model is saved.
        ticks: C, most actions between two predictions from real or predicted features.

    Raises:
        UserError: If no outcome is known.
    """
    known = [episode for episode in cache.episodes if episode.success is not None]
    if not known:
        raise UserError("no episode has a known outcome; label some first (`vla-rl label`)")
    seen = eyes.look(Observations(cache, np.arange(cache.total_frames)))
    judged = known[::_JUDGED] if len(known) >= _JUDGED * _LEAST_JUDGED else []  # too few: the model needs all
    learnt = torch.ones(len(seen), dtype=torch.bool, device=seen.device)
    learnt[torch.from_numpy(frames_of(judged)).to(seen.device)] = False
    rows = torch.nonzero(learnt)[:, 0].cpu().numpy()
    generator = torch_generator(settings.seed, "world transitions", 0)
    transitions = _transitions(cache, eyes, seen, learnt, ticks, generator)

    def look(chosen: Tensor) -> Tensor:
        return Observations(cache, rows[chosen.numpy()]).pictures(cameras)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(settings.seed, "world model", 0))
        dynamics = _once(
            folder / _DYNAMICS,
            lambda: fit_dynamics(transitions, settings.dynamics, torch_generator(settings.seed, "world dynamics", 0)),
            lambda: FeatureDynamics.of(transitions, settings.dynamics),
        )
        torch.manual_seed(derived_seed(settings.seed, "world model", 1))
        decoder = fit_decoder(
            seen[learnt], look, settings.decoder_steps, torch_generator(settings.seed, "world decoder", 0)
        )
    world = FeatureWorld(dynamics, eyes.look, eyes.normalize, decoder, eyes.sense)
    if not judged:
        logger.warning(
            "fewer than %d episodes have a known outcome. Chances of success are judged by episodes that the model has "
            "learned from, and are too sure",
            _JUDGED * _LEAST_JUDGED,
        )
    return replace(world, trust=_trust(world, cache, judged or known, ticks))


def _once[ModuleT: nn.Module](file: Path, fitted: Callable[[], ModuleT], blank: Callable[[], ModuleT]) -> ModuleT:
    """Return a fitted module, and keep its weights in a file; if they are there, put them into a blank one."""
    if file.exists():
        module = blank().eval()
        with reading(file, "remove it to fit this part anew"):
            module.load_state_dict(safetensors.torch.load(file.read_bytes()))
        return module
    module = fitted()
    file.parent.mkdir(exist_ok=True)
    write_atomic(file, safetensors.torch.save({name: part.contiguous() for name, part in module.state_dict().items()}))
    return module


def _transitions(
    cache: FrameCache, eyes: Eyes, seen: Tensor, learnt: Tensor, ticks: int, generator: torch.Generator
) -> Transitions:
    """What every whole chunk did, and what its first actions did, as many as the generator draws."""
    data = RoundData(cache, CreditConfig(), eyes.policy)
    some = torch.randint(1, ticks, (len(seen),), generator=generator).numpy()
    parts = [what_actions_did(data, seen, eyes.normalize, ticks, count) for count in (np.full_like(some, ticks), some)]
    return Transitions(*(torch.cat([part[learnt] for part in columns]) for columns in zip(*parts, strict=True)))


def _trust(world: FeatureWorld, cache: FrameCache, judged: Sequence[CachedEpisode], ticks: int) -> Trust:
    """Compare predicted with real outcomes of episodes, from several moments of each on, with what was sent."""
    chances, truth, strangest = [], [], []
    for episode in judged:
        end = episode.start + episode.length
        for frame in np.linspace(episode.start, end - 1, _STARTS, endpoint=False).astype(int):
            sent = torch.from_numpy(cache.action_sent[np.arange(frame, end)])
            chances.append(world.predict(world.encode(Observations(cache, np.array([frame]))), sent[None]).success)
            truth.append(bool(episode.success))
        frames = np.arange(episode.start, max(episode.start + 1, end - ticks), ticks)
        sent = torch.from_numpy(cache.chunks(frames, ticks, sent=True)[0])
        strangest.append(world.predict(world.encode(Observations(cache, frames)), sent).disagreement().max().cpu())
    kept = [most for most, episode in zip(strangest, judged, strict=True) if episode.success] or strangest
    familiar = float(torch.stack(kept).quantile(_FAMILIAR_SHARE))
    slope, offset = platt_scale(torch.cat(chances).cpu(), torch.tensor(truth)) if len(set(truth)) > 1 else (1.0, 0.0)
    return Trust(slope, offset, familiar)
