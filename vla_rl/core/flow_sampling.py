"""What a flow policy needs beside its network: the noise of a chunk, the numbers of the task's words and the weights of
guidance.

Numpy, so that the policy that trains in torch and the one that is deployed without it share every rule.
"""

import math
import re
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError
from vla_rl.core.types import Float32Array

PADDING = 0


def flow_noise(seed: int, tick: int, horizon: int, action_dim: int) -> Float32Array:
    """Return the noise of the chunk planned at a tick, float32 [H, A]: a function of (seed, tick), so that an episode
    replays exactly.
    """
    generator = np.random.Generator(np.random.Philox(key=[seed % 2**64, tick % 2**64]))
    return generator.standard_normal((horizon, action_dim), dtype=np.float32)


def words_of(sentence: str) -> list[str]:
    """Return the words of a sentence, without case and punctuation."""
    return re.findall(r"\w+", sentence.lower())


def hash_words(sentences: Sequence[str], max_words: int, vocabulary: int) -> NDArray[np.int64]:
    """Return the word numbers of sentences, int64 [B, max_words], padded with 0; longer sentences are cut."""
    ids = np.full((len(sentences), max_words), PADDING, np.int64)
    for row, sentence in enumerate(sentences):
        for column, word in enumerate(words_of(sentence)[:max_words]):
            ids[row, column] = 1 + zlib.crc32(word.encode()) % (vocabulary - 1)
    return ids


def guidance_weights(horizon: int, delay: int, overlap: int) -> Float32Array:
    """Return how firmly each action of the new chunk is held to the old plan (RTC, arXiv 2506.07339, equation 5).

    Args:
        horizon: H, actions in a chunk.
        delay: d, actions that will be executed before the new chunk takes over: weight 1.
        overlap: H - s, actions that the old plan still has; they fade from d on, and the rest is free: weight 0.

    Returns:
        float32 [H]: 1 for i < d; c (e^c - 1) / (e - 1) with c = (H - s - i) / (H - s - d + 1) for d <= i < H - s; 0
            after.

    Raises:
        UserError: unless 0 <= d <= H - s <= H.
    """
    if not 0 <= delay <= overlap <= horizon:
        raise UserError(
            f"guidance needs 0 <= delay <= overlap <= horizon, found {delay}, {overlap} and {horizon}; "
            "execute fewer actions per chunk or plan longer chunks"
        )
    index = np.arange(horizon)
    fade = (overlap - index) / (overlap - delay + 1)
    fading = fade * np.expm1(fade) / (math.e - 1)
    return np.where(index < delay, 1.0, np.where(index < overlap, fading, 0.0)).astype(np.float32)


def guidance_strength(tau: float, beta: float) -> float:
    """min(beta, (1 - tau) / (tau r^2)) with r^2 = (1 - tau)^2 / (tau^2 + (1 - tau)^2) (equation 2 of the paper)."""
    if not 0.0 < tau < 1.0:
        return beta
    return min(beta, (tau**2 + (1 - tau) ** 2) / (tau * (1 - tau)))
