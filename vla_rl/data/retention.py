"""Which episodes training goes on reading when there are too many or too old ones.

A pure function of headers, applied to the frame cache; the store keeps everything.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vla_rl.core.errors import ConfigError, StoreError
from vla_rl.core.types import Origin
from vla_rl.data.episode_file import EpisodeHeader


@dataclass(frozen=True)
class RetentionConfig:
    """Bounds on what the frame cache holds. Demonstrations are never dropped.

    Attributes:
        max_frames: the most frames (steps) to hold; None for no bound. A frame takes about 3 H W bytes per camera.
        max_staleness: rollouts whose policy version is older than the newest one by more than this are dropped; None
            keeps all.
        slack: when ``max_frames`` is exceeded, this fraction of it is set free, so that dropping, which copies what
            remains, is rare.
    """

    max_frames: int | None = None
    max_staleness: int | None = None
    slack: float = 0.1

    def __post_init__(self) -> None:
        if self.max_frames is not None and self.max_frames < 1:
            raise ConfigError(f"retention.max_frames is {self.max_frames}; it must be at least 1, or null for no bound")
        if self.max_staleness is not None and self.max_staleness < 0:
            raise ConfigError(
                f"retention.max_staleness is {self.max_staleness}; it must be at least 0, or null to keep all"
            )
        if not 0 <= self.slack < 1:
            raise ConfigError(f"retention.slack is {self.slack}; it must be in [0, 1)")


def episodes_to_drop(headers: Sequence[EpisodeHeader], config: RetentionConfig) -> set[str]:
    """The ids to drop: rollouts too stale, then the oldest (by policy version, then arrival) until the rest fits.

    Args:
        headers: all episodes, in order of arrival.
        config: the bounds.

    Raises:
        StoreError: if the demonstrations alone exceed ``max_frames``.
    """
    rollouts = [header for header in headers if not is_demonstration(header)]
    newest_version = max((header.policy_version for header in rollouts), default=0)
    dropped: set[str] = set()
    if config.max_staleness is not None:
        oldest_allowed = newest_version - config.max_staleness
        dropped = {header.episode_id for header in rollouts if header.policy_version < oldest_allowed}
    frames = sum(header.length for header in headers if header.episode_id not in dropped)
    if config.max_frames is None or frames <= config.max_frames:
        return dropped
    demo_frames = sum(header.length for header in headers if is_demonstration(header))
    if demo_frames > config.max_frames:
        raise StoreError(
            f"the demonstrations alone hold {demo_frames} frames, more than retention.max_frames = "
            f"{config.max_frames}; raise the bound or give the run fewer demonstrations"
        )
    target = int(config.max_frames * (1 - config.slack))
    for header in sorted(rollouts, key=lambda header: header.policy_version):  # stable: arrival decides among equals
        if frames <= target:
            break
        if header.episode_id not in dropped:
            dropped.add(header.episode_id)
            frames -= header.length
    return dropped


def is_demonstration(header: EpisodeHeader) -> bool:
    """Whether nobody but a demonstrator acted."""
    return header.origin is Origin.DEMO or header.policy_version < 0
