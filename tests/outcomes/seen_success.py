"""Episodes whose success can be seen: the block is bright at the end."""

import sys
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "policies"))
sys.path.append(str(Path(__file__).parents[1] / "data"))

from episode_maker import make_episode
from tiny_policy import SPEC

from vla_rl.core.types import Episode


def played(name: str, success: bool, seed: int, **changes: object) -> Episode:
    """An episode of 8 steps of noise; after the last command of a success all is bright and very far away."""
    random = np.random.default_rng(seed)
    episode = make_episode(name, length=8, seed=seed, size=SPEC.image_size, success=success, terminated=success)

    def picture(level: int, *steps: int) -> dict[str, np.ndarray]:
        shape = (*steps, *SPEC.image_size, 3)
        return {camera: random.integers(level, level + 20, shape).astype(np.uint8) for camera in SPEC.cameras}

    final_state = (episode.state[0] / 4 + (10 if success else 0)).astype(np.float32)
    states = {"state": episode.state / 4, "final_state": final_state}
    fields = {"images": picture(40, 8), "final_images": picture(220 if success else 60), **states, **changes}
    return Episode(**{**{name: getattr(episode, name) for name in Episode.__slots__}, **fields})
