"""How fast a world model imagines."""

import time

import numpy as np

from world_model.imagined_env import ImaginedVectorEnv
from world_model.model import WorldModel
from world_model.windows import LatentEpisodes


def stream_speed(model: WorldModel, data: LatentEpisodes, streams: int, steps: int = 60) -> float:
    """Frames a second that a vector of imagined environments gives, decoding included."""
    env = ImaginedVectorEnv(model, data, streams)
    env.reset(seed=0)
    action = env.action_space.sample()
    for _ in range(5):
        env.step(action)
    started_s = time.perf_counter()
    for _ in range(steps):
        env.step(action)
    return streams * steps / (time.perf_counter() - started_s)


def late_latency(model: WorldModel, data: LatentEpisodes, steps: int = 1000) -> float:
    """Median latency of the last 50 of so many steps over that of steps 10 to 60."""
    env = ImaginedVectorEnv(model, data, 1)
    env.reset(seed=0)
    action, times_s = env.action_space.sample(), []
    for _ in range(steps):
        started_s = time.perf_counter()
        env.step(action)
        times_s.append(time.perf_counter() - started_s)
    return float(np.median(times_s[-50:]) / np.median(times_s[10:60]))
