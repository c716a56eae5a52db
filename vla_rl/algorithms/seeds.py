"""Randomness without state: every draw is keyed by (seed, purpose, step), so that a resumed run needs no generator's
state.
"""

import zlib

import numpy as np
import torch


def derived_seed(seed: int, purpose: str, step: int = 0) -> int:
    """A 63-bit seed for one purpose at one step; different purposes and steps are independent."""
    sequence = np.random.SeedSequence([seed, zlib.crc32(purpose.encode()), step])
    return int(sequence.generate_state(1, np.uint64)[0] >> 1)


def fold_of(episode_id: str, folds: int) -> int:
    """The part, below ``folds``, of the episodes that one belongs to: the same in every round."""
    return zlib.crc32(episode_id.encode()) % folds


def torch_generator(seed: int, purpose: str, step: int) -> torch.Generator:
    """A CPU generator for one purpose at one step."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, step))
