"""Episodes of a policy in a world that does not change, in chunks of two ticks."""

from dataclasses import replace

import numpy as np
from tiny_world import P, make_episode

from vla_rl.core.types import Episode, Observation
from vla_rl.policies.acting import ActingPolicy

CHUNKS, TICKS = 4, 2


def observations(seed: int) -> list[Observation]:
    """What a policy sees where the chunks of an episode are planned."""
    random = np.random.default_rng(seed)
    image, state = random.integers(0, 255, (8, 8, 3), dtype=np.uint8), random.normal(size=2).astype(np.float32)
    return [Observation({"front": image}, state, "put it in", tick) for tick in range(0, CHUNKS * TICKS, TICKS)]


def planned(policy: ActingPolicy, seed: int) -> np.ndarray:
    """What it would do in that episode, [CHUNKS, TICKS, A], raw units."""
    policy.reset(seed)
    return np.array([policy.infer(observation).actions[:TICKS] for observation in observations(seed)])


def recorded(policy: ActingPolicy, name: str, seed: int, actions: np.ndarray, success: bool) -> Episode:
    """The episode in which it did what `planned` returns."""
    length, seen = CHUNKS * TICKS, observations(seed)[0]
    extras = {"chunk_id": np.repeat(np.arange(CHUNKS), TICKS), "chunk_index": np.tile(np.arange(TICKS), CHUNKS)}
    states = seen.state[None].repeat(length, 0)
    episode = make_episode(
        name, [P] * length, success, version=policy.version, state=states, action=np.concatenate(actions)
    )
    episode.images["front"][:] = seen.images["front"]
    return replace(episode, seed=seed, extras=extras)
