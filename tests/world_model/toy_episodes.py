"""A toy world on the disk: a bright square that its action moves, seen by two cameras. Success is the right edge."""

from pathlib import Path
from typing import Any

import numpy as np

from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.cache import FrameCache
from vla_rl.data.store import EpisodeStore


def draw(position: np.ndarray) -> np.ndarray:
    """The square at a position in [-1, 1]^2: uint8 [16, 16, 3]."""
    image = np.full((16, 16, 3), 40, np.uint8)
    row, column = (np.clip((position[::-1] + 1) * 6, 0, 12)).astype(int)
    image[row : row + 4, column : column + 4] = (230, 60, 60)
    return image


def toy_episode(episode_id: str, seed: int, length: int = 12, **labels: Any) -> Episode:
    """The state follows the action, an absolute target, half way at each step."""
    random = np.random.default_rng(seed)
    position = random.uniform(-0.9, 0.2, 2)
    goal = np.array([1.0 if seed % 2 else -1.0, random.uniform(-1, 1)])
    states, actions, images = [], [], []
    for _ in range(length):
        action = np.clip(position + 0.3 * (goal - position) + random.normal(0, 0.05, 2), -1, 1)
        states.append([*position, 0.5])
        actions.append(action)
        images.append(draw(position))
        position = position + 0.5 * (action - position)
    pictures = np.stack(images)
    success = bool(seed % 2)
    columns: dict[str, Any] = {
        "images": {"front": pictures, "top": pictures[:, ::-1].copy()},
        "state": np.array(states, np.float32),
        "action_policy": np.array(actions, np.float32),
        "action_sent": np.array(actions, np.float32),
        "source": np.full(length, Source.POLICY, np.uint8),
        "task": "push",
        "success": success,
        "terminated": success,
        "origin": Origin.SIM,
        "policy_version": 0,
        "seed": seed,
        "control_hz": 20.0,
        "env_id": "toy",
    }
    return Episode(episode_id, **(columns | labels))


def toy_cache(folder: Path, episodes: int = 6, length: int = 12) -> FrameCache:
    store = EpisodeStore(folder / "episodes")
    for index in range(episodes):
        store.add(toy_episode(f"toy-{index:03d}", index, length))
    cache = FrameCache(store, folder / "cache")
    cache.refresh()
    return cache
