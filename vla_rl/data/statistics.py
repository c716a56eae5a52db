"""What a policy is made from: the interface of the robot that recorded the episodes, and their statistics."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import UNDECLARED, Pair, missing_dimensions
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.normalization import Statistics, VectorStatistics
from vla_rl.core.policy_spec import PolicySpec, shared_spec
from vla_rl.data.cache import FrameCache
from vla_rl.data.episode_header import EpisodeHeader

_LEARNED_WELL = 3.0  # limits of an input; actions that are further out are named


def spec_of(episodes: Sequence[EpisodeHeader], delta_dims: tuple[int, ...] = ()) -> PolicySpec:
    """Return the interface of a policy for episodes, of one robot or of several.

    Raises:
        UserError: if there are none, the cameras are of different sizes, or the robots cannot share a policy.
    """
    if not episodes:
        raise UserError("there is no episode to take a policy's interface from; give a store that holds some")
    cameras = tuple(episodes[0].cameras)
    specs = dict.fromkeys(_spec_of_one(entry, cameras, delta_dims) for entry in episodes)
    shared = shared_spec([*specs])
    if beyond := [dim for dim in delta_dims if dim >= shared.action_dim]:
        raise ConfigError(f"delta_dims names {beyond}; the data's actions have {shared.action_dim} dimensions")
    return replace(shared, env_id=" ".join(sorted({spec.env_id for spec in specs})))


def _spec_of_one(episode: EpisodeHeader, cameras: tuple[str, ...], delta_dims: tuple[int, ...]) -> PolicySpec:
    """Return the interface of a policy for one episode, its cameras in this order if they are these."""
    sizes = sorted(set(episode.cameras.values()))
    if len(sizes) > 1:
        raise UserError(
            f"a policy needs cameras of one size, the episodes have {sizes}; scale them "
            "alike: mapping.lerobot.image_size=[96,96] or mapping.bag.image_size"
        )
    return PolicySpec(
        env_id=episode.env_id,
        cameras=cameras if set(cameras) == set(episode.cameras) else tuple(episode.cameras),
        image_size=sizes[0] if sizes else (1, 1),
        state_dim=episode.state_dim,
        action_dim=episode.action_dim,
        control_hz=episode.control_hz,
        delta_dims=tuple(dim for dim in delta_dims if dim < episode.action_dim),
        dimensions=(episode.dimensions,),
    )


def data_statistics(cache: FrameCache, discrete_dims: Sequence[int], ticks: int = 0) -> Statistics:
    """Return statistics of everything in the cache; each dimension's over the robots that have it.

    With the ticks in which one chunk is executed, they hold the usual change of the action in these.
    """
    state_lacks, action_lacks = _lacking(cache)
    declared = _dimensions(cache)
    found = Statistics.from_arrays(cache.state, cache.action, discrete_dims, ~state_lacks, ~action_lacks, declared)
    state = found.state.with_floor(declared[0].units, _shown(cache, ~state_lacks))
    return replace(found, state=state, change=_change(cache, ~action_lacks, ticks) if ticks else ())


def _shown(cache: FrameCache, present: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return how many episodes have a state dimension that changes within none, int64 [S]; 0: it changes in one."""
    frames = np.arange(cache.total_frames)
    later, _ = cache.later(frames, 1)
    changes = ((cache.state[later] != cache.state[frames]) & present).any(0)
    first = np.flatnonzero(np.diff(cache.episode_index, prepend=-1))
    return np.where(changes, 0, present[first].sum(0))


def _change(cache: FrameCache, present: NDArray[np.bool_], ticks: int) -> tuple[float, ...]:
    """Return the root mean square change of each action dimension in these ticks. If no episode is so long: empty."""
    frames = np.arange(cache.total_frames)
    later, inside = cache.later(frames, ticks)
    square = np.square(cache.action[later].astype(np.float64) - cache.action[frames])
    counted = present & inside[:, None]
    if not counted.any(0).all():
        return ()
    return tuple(map(float, np.sqrt(square.mean(0, where=counted))))


def scale_notes(cache: FrameCache, statistics: Statistics) -> list[str]:
    """Return sentences on dimensions whose scale is a floor, and on those beyond the limit of a network's inputs."""
    found = []
    columns = zip(("state", "action"), (cache.state, cache.action), _lacking(cache), _dimensions(cache), strict=True)
    for what, column, lacks, declared in columns:
        vector: VectorStatistics = getattr(statistics, what)
        names = declared.names or tuple(map(str, range(vector.size)))
        discrete = statistics.discrete_dims if what == "action" else ()
        offset, scale = vector.affine(discrete)
        still = [d for d in np.flatnonzero(vector.floored) if d not in discrete]
        floored = [f"{names[d]} ({vector.std[d]:.2g} -> {scale[d]:.2g})" for d in still]
        if floored:
            found.append(f"{what} dimensions of which the data show little get a larger scale: {', '.join(floored)}")
        away = np.abs(np.where(lacks, offset, column) - offset).max(0, initial=0.0)
        reach = np.divide(away, scale, out=np.zeros_like(scale), where=scale > 0)
        limit = vector.limits()
        if what == "state":
            beyond = [f"{names[d]} ({reach[d]:.0f}, limit {limit[d]:.0f})" for d in np.flatnonzero(reach > limit)]
            found += [f"state dimensions reach more scales than networks read: {', '.join(beyond)}"] if beyond else []
        elif far := [f"{names[d]} ({reach[d]:.0f})" for d in np.flatnonzero(reach > _LEARNED_WELL * limit)]:
            found.append(
                f"action dimensions reach more scales than a policy learns well: {', '.join(far)}. Name those with two "
                "levels in discrete_dims, or train a new policy on this data"
            )
    return found


def _dimensions(cache: FrameCache) -> Pair:
    """State and action dimensions of the robot with the largest vectors; undeclared if no robot has both."""
    sizes = cache.state.shape[1], cache.action.shape[1]
    largest = (episode.dimensions for episode in cache.episodes if (episode.state_dim, episode.action_dim) == sizes)
    return next(largest, (UNDECLARED, UNDECLARED))


def _lacking(cache: FrameCache) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """bool [N, S] and [N, A], the entries of the cache that the robot of the episode does not have."""
    states = missing_dimensions([episode.state_dim for episode in cache.episodes], cache.state.shape[1])
    actions = missing_dimensions([episode.action_dim for episode in cache.episodes], cache.action.shape[1])
    return states[cache.episode_index], actions[cache.episode_index]
