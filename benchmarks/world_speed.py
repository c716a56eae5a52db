"""How fast a world model imagines."""

import time

import numpy as np
import torch

from world_model.imagined_env import ImaginedEnv
from world_model.model import WorldModel
from world_model.open_loop import sampler_noise
from world_model.windows import LatentEpisodes


@torch.no_grad()
def stream_speed(model: WorldModel, data: LatentEpisodes, streams: int, steps: int = 60) -> float:
    """Frames a second of parallel imagined futures, decoding included."""
    rows = torch.arange(streams) % len(data.episodes)
    latents = data.latents[data.start[rows]].to(model.device)
    state, action = data.state[data.start[rows]].to(model.device), data.action[data.start[rows]].to(model.device)
    memory = model.dynamics.begin(latents, state)
    for tick in range(5 + steps):
        if tick == 5:
            started_s = time.perf_counter()
        noise = sampler_noise(np.arange(streams), np.full(streams, tick), *latents.shape[1:]).to(model.device)
        predicted = model.dynamics.step(memory, latents, state, action, noise)
        latents, state = predicted.latents, predicted.state
        model.autoencoder.decode(latents).cpu()
    return streams * steps / (time.perf_counter() - started_s)


def late_latency(model: WorldModel, data: LatentEpisodes, steps: int = 1000) -> float:
    """Median latency of the last 50 of so many steps over that of steps 10 to 60."""
    env = ImaginedEnv(model, data)
    env.reset(seed=0)
    action, times_s = env.action_space.sample(), []
    for _ in range(steps):
        started_s = time.perf_counter()
        env.step(action)
        times_s.append(time.perf_counter() - started_s)
    return float(np.median(times_s[-50:]) / np.median(times_s[10:60]))
