"""How fast a world model imagines."""

import time
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vla_rl.data.cache import FrameCache
from world_model.protocol import Observations, WorldModel


def stream_speed(world: WorldModel[Any], cache: FrameCache, streams: int, steps: int = 60) -> float:
    """Frames a second of parallel imagined futures, decoding included."""
    starts = np.array([episode.start for episode in cache.episodes])[np.arange(streams) % len(cache.episodes)]
    return streams / float(np.mean(_step_times_s(world, cache, starts, 5 + steps)[5:]))


def late_latency(world: WorldModel[Any], cache: FrameCache, steps: int = 1000) -> float:
    """Return the median latency of the last 50 steps of one stream, divided by the median of steps 10 to 60."""
    times_s = _step_times_s(world, cache, np.array([cache.episodes[0].start]), steps)
    return float(np.median(times_s[-50:]) / np.median(times_s[10:60]))


def _step_times_s(world: WorldModel[Any], cache: FrameCache, starts: NDArray[np.int64], steps: int) -> list[float]:
    """Seconds of every step: prediction, disagreement and picture, all that a person who drives gets."""
    state, actions = world.encode(Observations(cache, starts)), torch.from_numpy(cache.action_sent[starts])[:, None]
    times_s = []
    for _ in range(steps):
        started_s = time.perf_counter()
        state, success, disagreement = world.predict(state, actions)
        for answer in (success, disagreement(), world.decode(state)):
            answer.cpu()
        times_s.append(time.perf_counter() - started_s)
    return times_s
