"""What large pictures cost: bytes of the frame cache, and time of a gradient step."""

import time
from collections.abc import Sequence

import numpy as np
import torch

from vla_rl.algorithms.base import Algorithm
from vla_rl.data.episode_header import EpisodeHeader

_LARGE_PX = 256  # the longer side from which a picture is large
_PROPOSED_PX = 96  # the shorter side of the proposed size
_TIMED_SAMPLES = 8  # a whole batch of large pictures may not fit in memory


def large_pictures(headers: Sequence[EpisodeHeader], steps: int = 0, step_s: float = 0.0) -> str:
    """Return what pictures of such a size cost, and the option that scales them; empty if they are small.

    All episodes have the same cameras. ``steps`` gradient steps take ``step_s`` each; 0: not measured.
    """
    sizes = headers[0].cameras.values()
    height, width = max(sizes, key=max, default=(0, 0))
    if max(height, width) <= _LARGE_PX:
        return ""
    frame_bytes = 3 * sum(high * wide for high, wide in sizes)
    frames = sum(header.length for header in headers)
    cost = f"{frame_bytes / 1e6:.2f} MB per frame, {frame_bytes * frames / 1e9:.3g} GB for {frames} frames"
    if step_s:
        cost += (
            f", about {step_s:.2g} s per gradient step of the policy ({steps * step_s / 3600:.2g} hours for {steps})"
        )
    proposed = [max(round(side * _PROPOSED_PX / min(height, width)), 1) for side in (height, width)]
    return (
        f"{len(sizes)} cameras of {height} x {width}: {cost}. Name a size: mapping.lerobot.image_size={proposed} or "
        f"mapping.bag.image_size; [{height}, {width}] keeps it"
    )


def gradient_step_s(learner: Algorithm) -> float:
    """Measure a gradient step of the policy, s. Its time grows with the batch, of which a part is measured.

    Args:
        learner: It has begun its round. Its policy is changed.
    """
    frames = np.arange(min(_TIMED_SAMPLES, learner.data.cache.total_frames))
    started_s = time.perf_counter()
    learner.update_actor(frames, torch.ones(len(frames), device=learner.data.device), 0)
    return (time.perf_counter() - started_s) * learner.config.actor.batch_size / len(frames)
