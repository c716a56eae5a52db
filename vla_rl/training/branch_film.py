"""A film of branches: the newest episodes above, and below them the model's prediction from one moment on, with the
sent actions.

Dynamics and decoder are trained for the film alone, on all other episodes of the run.
"""

from collections.abc import Sequence
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
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.training.practice import learner_of_run
from world_model.feature_decoder import fit_decoder
from world_model.feature_dynamics import FeatureWorld, Transitions
from world_model.protocol import Observations, WorldModel

CHUNKS = 7
"""Of a branch in a film, by default: twice as many as practice imagines."""
_SLOWER = 4
_DECODER_STEPS = 600


@dataclass(frozen=True)
class Film:
    """Reality above, imagination below: clips uint8 [T, 2 H, cameras W, 3].

    ``unexplained`` is the fraction of variance of what the chunks changed that the dynamics did not predict; 0: not
    measured.
    """

    clips: list[NDArray[np.uint8]]
    frames_per_s: float
    unexplained: float = 0.0


def film_branches(
    run: Path,
    episodes: int = 2,
    start: int = 10,
    chunks: int = CHUNKS,
) -> Film:
    """Film branches from the newest real episodes of a run: a picture for each chunk, at a quarter of their speed.

    Each branch begins at the step ``start``.

    Raises:
        UserError: for an algorithm that imagines no branches, or if no episode is long enough.
    """
    learner, config, spec = learner_of_run(run)
    require(f"a film of {run} with algorithm={config.algorithm}", frozenset({"branches"}), learner.provides)
    learner = cast(ImaginedEdit, learner)
    cache, cameras = learner.data.cache, tuple(learner.data.cache.images)
    ticks = learner.config.critic.chunk_ticks
    own = [each for each in cache.episodes if each.policy_version >= 0 and each.length > start + chunks * ticks]
    shown = sorted(own, key=lambda each: (each.policy_version, each.episode_id))[-episodes:]
    if not shown:
        raise UserError(
            f"no episode of the policy in {run} has more than {start + chunks * ticks} steps; choose a "
            "smaller --start or --steps"
        )
    world = world_without(learner, shown, config.seed)
    clips = []
    for each in shown:
        frames = each.start + start + ticks * np.arange(chunks + 1)
        clips.append(clip(world, cache, cameras, frames, learner.data.sent_chunks(frames[:-1], ticks)[0]))
    inside = frames_of(shown)
    whole = inside[learner.transitions().lasted[torch.from_numpy(inside)].cpu().numpy()]
    return Film(clips, spec.control_hz / ticks / _SLOWER, learner.unexplained(world, whole))


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
def clip(
    world: WorldModel[Any],
    cache: FrameCache,
    cameras: tuple[str, ...],
    frames: NDArray[np.int64],
    sent: NDArray[np.float32],
) -> NDArray[np.uint8]:
    """Return reality above the world model's prediction from the first of T frames on, uint8 [T, 2 H, cameras W, 3].

    ``sent`` [T - 1, C, A] are the actions between the frames, raw units.
    """
    state = world.encode(Observations(cache, frames[:1]))
    drawn = [world.decode(state)]
    for actions in torch.from_numpy(sent):
        state = world.predict(state, actions[None]).state
        drawn.append(world.decode(state))
    rows = (Observations(cache, frames).pictures(cameras).numpy(), torch.cat(drawn).cpu().numpy())
    return np.concatenate([np.concatenate(list(row.swapaxes(0, 1)), axis=2) for row in rows], axis=1)
