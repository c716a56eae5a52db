"""How fast a world model imagines."""

import time

import numpy as np
import torch

from vla_rl.data.cache import FrameCache
from world_model.imagined_env import ImaginedEnv
from world_model.model import VideoModel
from world_model.protocol import Observations


def stream_speed(model: VideoModel, cache: FrameCache, streams: int, steps: int = 60) -> float:
    """Frames a second of parallel imagined futures, decoding included."""
    starts = np.array([episode.start for episode in cache.episodes])[np.arange(streams) % len(cache.episodes)]
    state, actions = model.encode(Observations(cache, starts)), torch.from_numpy(cache.action_sent[starts])[:, None]
    for tick in range(5 + steps):
        if tick == 5:
            started_s = time.perf_counter()
        state = model.predict(state, actions).state
        model.decode(state).cpu()
    return streams * steps / (time.perf_counter() - started_s)


def late_latency(model: VideoModel, cache: FrameCache, steps: int = 1000) -> float:
    """Median latency of the last 50 of so many steps over that of steps 10 to 60."""
    env = ImaginedEnv(model, model.spec, cache)
    env.reset(seed=0)
    action, times_s = env.action_space.sample(), []
    for _ in range(steps):
        started_s = time.perf_counter()
        env.step(action)
        times_s.append(time.perf_counter() - started_s)
    return float(np.median(times_s[-50:]) / np.median(times_s[10:60]))
