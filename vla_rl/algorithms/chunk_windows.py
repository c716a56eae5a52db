"""The chunks in the data that one actor executed, their labels, and which chunk followed each."""

import numpy as np
from numpy.typing import NDArray

from vla_rl.algorithms.round_data import Frames, RoundData


def windows(data: RoundData, ticks: int, discount: float) -> tuple[Frames, NDArray[np.float32]]:
    """Find all chunks of ``ticks`` that one and the same actor executed, and their labels.

    A window that reaches into another segment is left out; one that reaches beyond the end of its episode is not.

    Returns:
        frames: int64 [N], at which the chunks begin.
        label: float32 [N], discount^(ticks to the end) where the chunk led to success, else 0.
    """
    credit, every, person = data.credit, np.arange(data.cache.total_frames), data.by_people
    judged = credit.viability_mask | (person & credit.known)
    last, _ = data.cache.later(every, data.cache.total_frames)
    whole = (every + ticks <= credit.outcome_stop) | (credit.outcome_stop == last + 1)
    frames = np.flatnonzero(judged & whole)
    label = np.where(person, credit.actor_outcome, credit.viability_label > 0) * discount ** (last - every)
    return frames, label[frames].astype(np.float32)


def followers(data: RoundData, frames: Frames, ticks: int) -> Frames:
    """Find the window, ``ticks`` later, that follows each window of `windows`.

    Returns:
        int64 [N], index in ``frames``; -1: another actor takes over before it, the episode ends, or it has no label.
    """
    later = frames + ticks
    index = np.searchsorted(frames, later).clip(max=len(frames) - 1)
    return np.where((frames[index] == later) & (later < data.credit.outcome_stop[frames]), index, -1)
