"""A film of branches: the newest episodes above, and below them the model's prediction from one moment on, with the
sent actions.

Dynamics and decoder are trained for the film alone, on all other episodes of the run.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vla_rl.algorithms.imagined_edit import ImaginedEdit
from vla_rl.algorithms.sampling import derived_seed, torch_generator
from vla_rl.core.capabilities import require
from vla_rl.core.errors import UserError
from vla_rl.data.cache import CachedEpisode, FrameCache
from vla_rl.training.practice import learner_of_run
from world_model.feature_decoder import FeatureDecoder, fit_decoder
from world_model.feature_dynamics import FeatureDynamics, Transitions, fit_dynamics

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
    cache = learner.data.cache
    ticks = learner.config.critic.chunk_ticks
    own = [each for each in cache.episodes if each.policy_version >= 0 and each.length > start + chunks * ticks]
    shown = sorted(own, key=lambda each: (each.policy_version, each.episode_id))[-episodes:]
    if not shown:
        raise UserError(
            f"no episode of the policy in {run} has more than {start + chunks * ticks} steps; choose a "
            "smaller --start or --steps"
        )
    every, generator = learner.transitions(), torch_generator(config.seed, "film", 0)
    inside = np.concatenate([np.arange(each.start, each.start + each.length) for each in shown])
    others = torch.ones(cache.total_frames, dtype=torch.bool, device=every.features.device)
    others[torch.from_numpy(inside)] = False
    rest = torch.nonzero(others)[:, 0]
    if not len(rest):
        raise UserError(f"{run} holds no other episodes than the {len(shown)} of the film; show fewer")

    def look(chosen: Tensor) -> Tensor:
        return torch.from_numpy(_pictures(cache, rest[chosen].cpu().numpy()))

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "film", 0))
        dynamics = fit_dynamics(Transitions(*(part[others] for part in every)), learner.config.dynamics, generator)
        steps = min(learner.config.dynamics.steps, _DECODER_STEPS)
        drawn = fit_decoder(every.features[others], look, steps, generator)
    clips = [_clip(cache, each, every, dynamics, drawn, start + ticks * np.arange(chunks + 1)) for each in shown]
    unseen = Transitions(*(part[~others] for part in every))
    return Film(clips, spec.control_hz / ticks / _SLOWER, dynamics.unexplained(unseen))


@torch.no_grad()
def _clip(
    cache: FrameCache,
    episode: CachedEpisode,
    every: Transitions,
    dynamics: FeatureDynamics,
    decoder: FeatureDecoder,
    steps: NDArray[np.int64],
) -> NDArray[np.uint8]:
    """Reality above the branch, [T, 2 H, cameras W, 3]; the branch is the mean of the dynamics' members."""
    frames = episode.start + steps
    features = every.features[frames[:1]]
    seen = [features]
    for frame in frames[:-1]:
        features = dynamics.expected(features, every.actions[frame : frame + 1])
        seen.append(features)
    rows = (_pictures(cache, frames), decoder.pictures(torch.cat(seen)).cpu().numpy())
    return np.concatenate([np.concatenate(list(row.swapaxes(0, 1)), axis=2) for row in rows], axis=1)


def _pictures(cache: FrameCache, frames: NDArray[np.int64]) -> NDArray[np.uint8]:
    """uint8 [B, cameras, H, W, 3]."""
    return np.stack(list(cache.observations(frames).images.values()), axis=1)
