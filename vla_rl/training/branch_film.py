"""A film of branches: the newest episodes, and below them what the model predicts from one moment on.

Dynamics and decoder are trained for the film alone, on all other episodes of the run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.algorithms.imagined_edit import ImaginedEdit, frames_of
from vla_rl.algorithms.sampling import derived_seed, torch_generator
from vla_rl.core.capabilities import require
from vla_rl.core.errors import UserError
from vla_rl.core.metadata import critic_of
from vla_rl.data.cache import CachedEpisode
from vla_rl.data.run_folder import RunFolder
from vla_rl.policies.base import draw_from_flat
from vla_rl.policies.checkpoint import load_selector
from vla_rl.policies.residual import Residual
from vla_rl.training.jobs import practice_round
from vla_rl.training.practice import learner_of_run
from world_model.feature_decoder import fit_decoder
from world_model.feature_dynamics import Transitions
from world_model.feature_world import FeatureState, FeatureWorld
from world_model.protocol import Observations, WorldModel

CHUNKS = 7
"""Of a branch in a film, by default: twice as many as practice imagines."""
_SLOWER = 4
_DECODER_STEPS = 600
_FAMILIAR_SHARE = 0.95  # of real chunks; where the members disagree more, a picture has a red frame
_COMPARED = 512  # real chunks, for that


@dataclass(frozen=True)
class Film:
    """Reality above, predictions below: clips uint8 [T, rows H, cameras W, 3].

    ``unexplained`` is the fraction of variance of what the chunks changed that the dynamics did not predict; None:
    not measured.
    """

    clips: list[NDArray[np.uint8]]
    frames_per_s: float
    unexplained: float | None = None


def film_branches(
    run: Path,
    episodes: int = 2,
    start: int = 10,
    chunks: int = CHUNKS,
    every_round: bool = False,
) -> Film:
    """Film branches from the newest real episodes of a run: a picture for each chunk, at a quarter of their speed.

    Each branch begins at the step ``start``. The rows show reality, then the prediction with the sent actions. If the
    newest policy has a residual, two more rows show the policy's own plan without and with it.

    Args:
        run: Its folder.
        episodes: Number of episodes that are shown, of each round.
        start: Step at which a branch begins.
        chunks: Length of a branch.
        every_round: Film every round, the first one first, with its policy and a model of the episodes up to then.
            Otherwise the newest.

    Raises:
        UserError: for an algorithm that imagines no branches, or if no episode is long enough.
    """
    practiced = [number for number in RunFolder(run).policy_versions() if number]
    if every_round and not practiced:
        raise UserError(f"{run} has no policy of a whole round yet; leave --every-round out")
    films = [_film_of_round(run, number, episodes, start, chunks) for number in practiced if every_round]
    films = films or [_film_of_round(run, None, episodes, start, chunks)]
    clips = [clip for film in films for clip in film.clips]
    tallest = max(clip.shape[1] for clip in clips)
    even = [np.pad(clip, [(0, 0), (0, tallest - clip.shape[1]), (0, 0), (0, 0)]) for clip in clips]
    return Film(even, films[-1].frames_per_s, films[-1].unexplained)


def _film_of_round(run: Path, number: int | None, episodes: int, start: int, chunks: int) -> Film:
    """Film a round with the policy that it made; None: the newest episodes, with the newest policy."""
    versions = RunFolder(run).policy_versions()
    newest = RunFolder(run).policy(versions[-1] if number is None else number) if versions else None
    learner, config, spec = learner_of_run(run, policy=newest)
    require(f"a film of {run} with algorithm={config.algorithm}", frozenset({"branches"}), learner.provides)
    learner = cast(ImaginedEdit, learner)
    cache, cameras = learner.data.cache, tuple(learner.data.cache.images)
    ticks = learner.config.critic.chunk_ticks
    later = [] if number is None else played_after(cache.episodes, number)
    unknown = {each.start for each in later}
    known = [each for each in cache.episodes if each.start not in unknown]
    own = [each for each in known if each.policy_version >= 0 and each.length > start + chunks * ticks]
    shown = sorted(own, key=lambda each: (each.policy_version, each.episode_id))[-episodes:]
    if not shown:
        until = "" if number is None else f" up to round {number}"
        raise UserError(
            f"no episode of the policy in {run}{until} has more than {start + chunks * ticks} steps; choose a "
            "smaller --start or --steps"
        )
    world = world_without(learner, [*shown, *later], config.seed)
    inside = frames_of(shown)
    whole = inside[learner.transitions().lasted[torch.from_numpy(inside)].cpu().numpy()]
    familiar = _familiar(world, learner, frames_of(known))
    critic = critic_of(newest) if newest else None
    residual = load_selector(critic, learner.model, config.device).residual if critic else None
    clips = []
    for each in shown:
        frames = each.start + start + ticks * np.arange(chunks + 1)
        begin, sent = Observations(cache, frames[:1]), learner.data.sent_chunks(frames[:-1], ticks)[0]
        acts = [as_sent(sent)]
        if residual is not None and residual.corrects:
            acts += [_planned(learner, None, start), _planned(learner, residual, start)]
        rows = [predicted(world, begin, act, chunks, familiar) for act in acts]
        clips.append(clip([Observations(cache, frames).pictures(cameras), *rows]))
    return Film(clips, spec.control_hz / ticks / _SLOWER, learner.unexplained(world, whole))


def played_after(episodes: Sequence[CachedEpisode], number: int) -> list[CachedEpisode]:
    """Return the episodes that the policy of a round has not learned from.

    They were played by it, by a later one, or in a later round (`BudgetConfig.staleness`).
    """
    return [each for each in episodes if each.policy_version >= number or practice_round(each.episode_id) > number]


def world_without(learner: ImaginedEdit, unseen: Sequence[CachedEpisode], seed: int) -> FeatureWorld:
    """Fit dynamics and a decoder to all episodes of a learner but some.

    Raises:
        UserError: If there is no other.
    """
    cache, every, generator = learner.data.cache, learner.transitions(), torch_generator(seed, "film", 0)
    others = torch.ones(cache.total_frames, dtype=torch.bool, device=every.features.device)
    others[torch.from_numpy(frames_of(unseen))] = False
    rest = torch.nonzero(others)[:, 0]
    if not len(rest):
        raise UserError(f"the run holds no other episodes than the {len(unseen)} to be predicted; choose fewer")
    cameras = tuple(cache.images)

    def look(chosen: Tensor) -> Tensor:
        return Observations(cache, rest[chosen].cpu().numpy()).pictures(cameras)

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(seed, "film", 0))
        world = learner.learn_world(Transitions(*(part[others] for part in every)), generator)
        steps = min(learner.config.dynamics.steps, _DECODER_STEPS)
        return replace(world, decoder=fit_decoder(every.features[others], look, steps, generator))


@torch.no_grad()
def predicted(
    world: WorldModel[Any],
    begin: Observations,
    act: Callable[[Any, int], Tensor],
    steps: int,
    familiar: float,
) -> Tensor:
    """Return pictures of a prediction, uint8 [steps + 1, cameras, H, W, 3], the first of the real moment.

    Args:
        world: The model.
        begin: One moment.
        act: State and number of the step -> actions [1, C, A], raw units.
        steps: How many of these follow each other.
        familiar: Disagreement above which a picture has a red frame.
    """
    state = world.encode(begin)
    drawn = [world.decode(state)]
    for step in range(steps):
        state, _, disagreement = world.predict(state, act(state, step))
        seen = world.decode(state)
        if float(disagreement()) > familiar:
            for edge in (seen[..., :1, :, :], seen[..., -1:, :, :], seen[..., :, :1, :], seen[..., :, -1:, :]):
                edge.copy_(torch.tensor([255, 0, 0], dtype=torch.uint8))
        drawn.append(seen)
    return torch.cat(drawn).cpu()


def clip(rows: Sequence[Tensor]) -> NDArray[np.uint8]:
    """Return rows of pictures, each uint8 [T, cameras, H, W, 3], one below the other: [T, rows H, cameras W, 3]."""
    wide = [np.concatenate(list(row.numpy().swapaxes(0, 1)), axis=2) for row in rows]
    return np.concatenate(wide, axis=1)


def as_sent(sent: NDArray[np.float32]) -> Callable[[Any, int], Tensor]:
    """Return the sent actions [T, C, A], raw units, as `predicted` takes them."""
    return lambda _, step: torch.from_numpy(sent[step])[None]


def _planned(learner: ImaginedEdit, residual: Residual | None, start: int) -> Callable[[FeatureState, int], Tensor]:
    """What the policy plans from zero noise where it predicts to be, with a residual or without."""
    model, ticks = learner.model.eval(), learner.config.critic.chunk_ticks

    def act(state: FeatureState, step: int) -> Tensor:
        noise = state.features.new_zeros(1, model.horizon, model.spec.action_dim)
        chunk = draw_from_flat(model, state.features, noise)[:, :ticks]
        if residual is None:
            return chunk
        tick = state.features.new_full((1,), start + step * ticks)
        return chunk + residual.raw(residual(residual.rows(state.features, tick, chunk)))[:, None]

    return act


def _familiar(world: WorldModel[Any], learner: ImaginedEdit, frames: NDArray[np.int64]) -> float:
    """Return the disagreement of the members that few real chunks among some frames reach."""
    frames = frames[learner.transitions().lasted[torch.from_numpy(frames)].cpu().numpy()]
    frames = frames[:: max(1, len(frames) // _COMPARED)]
    sent = learner.data.tensor(learner.data.sent_chunks(frames, learner.config.critic.chunk_ticks)[0])
    seen = world.encode(Observations(learner.data.cache, frames))
    return float(world.predict(seen, sent).disagreement().quantile(_FAMILIAR_SHARE))
