"""Which episodes training goes on holding when there are too many.

A pure function of headers, applied to the frame cache; the store keeps everything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vla_rl.core.errors import ConfigError, StoreError
from vla_rl.core.types import Origin
from vla_rl.data.episode_header import EpisodeHeader

SLACK = 0.1
"""Rollouts are dropped in portions of this fraction of the bound: dropping copies what remains, and should be rare."""


@dataclass(frozen=True)
class RetentionConfig:
    """Bounds on what the frame cache holds. Demonstrations are never dropped.

    Attributes:
        max_frames: the most frames (steps) to hold; None for no bound. A frame takes about 3 H W bytes per camera.
    """

    max_frames: int | None = None

    def __post_init__(self) -> None:
        if self.max_frames is not None and self.max_frames < 1:
            raise ConfigError(f"retention.max_frames is {self.max_frames}; it must be at least 1, or null for no bound")


def episodes_to_drop(headers: Sequence[EpisodeHeader], config: RetentionConfig) -> set[str]:
    """The ids to drop: the oldest rollouts (by policy version, then id) until the rest fits.

    As more episodes come, the set grows in portions and never depends on when it was asked for, so that a cache that is
    built anew holds what the lost one held.

    Args:
        headers: all episodes, in any order.
        config: the bounds.

    Raises:
        StoreError: if the demonstrations alone exceed ``max_frames``.
    """
    total = sum(header.length for header in headers)
    if config.max_frames is None or total <= config.max_frames:
        return set()
    excess = total - config.max_frames
    rollouts = [header for header in headers if not is_demonstration(header)]
    surplus = excess - sum(header.length for header in rollouts)
    if surplus > 0:
        raise StoreError(
            f"the demonstrations alone hold {config.max_frames + surplus} frames, more than retention.max_frames = "
            f"{config.max_frames}; raise the bound or give the run fewer demonstrations"
        )
    portion = max(1, int(config.max_frames * SLACK))
    to_free = math.ceil(excess / portion) * portion
    dropped: set[str] = set()
    freed = 0
    for header in sorted(rollouts, key=lambda header: (header.policy_version, header.episode_id)):
        if freed >= to_free:
            break
        dropped.add(header.episode_id)
        freed += header.length
    return dropped


def is_demonstration(header: EpisodeHeader) -> bool:
    """Whether nobody but a demonstrator acted."""
    return header.origin is Origin.DEMO or header.policy_version < 0
