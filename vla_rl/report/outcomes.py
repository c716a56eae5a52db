"""The results of evaluations and of rounds of practice, as objects that a terminal and a notebook show well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.core.types import Uint8Array
from vla_rl.report.statistics import wilson_interval

if TYPE_CHECKING:
    from vla_rl.core.types import Episode
    from vla_rl.data.store import EpisodeStore


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a policy's episodes.

    Attributes:
        seeds: Reset seed of each episode.
        success: Whether each episode succeeded.
        lengths: Number of steps of each episode; empty if unknown.
        store: The episodes; None if they are not kept.

    Example:
        >>> outcomes = Outcomes((1, 2, 3, 4), (True, True, False, True), (30, 35, 120, 41))
        >>> print(outcomes)
        3/4 = 75 % [30, 95]
        >>> outcomes.rate, outcomes.failed
        (0.75, (3,))
    """

    seeds: tuple[int, ...]
    success: tuple[bool, ...]
    lengths: tuple[int, ...] = ()
    store: "EpisodeStore | None" = field(default=None, repr=False, compare=False)

    @property
    def successes(self) -> int:
        """Number of episodes that succeeded."""
        return sum(self.success)

    @property
    def rate(self) -> float:
        """Share of the episodes that succeeded."""
        return self.successes / len(self.success)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % Wilson interval of the rate."""
        return wilson_interval(self.successes, len(self.success))

    @property
    def failed(self) -> tuple[int, ...]:
        """Seeds of the episodes that failed."""
        return tuple(seed for seed, success in zip(self.seeds, self.success, strict=True) if not success)

    def film(self, seed: int) -> "Film":
        """Return the film of an episode, which a notebook plays.

        Args:
            seed: Reset seed of the episode.

        Raises:
            KeyError: If there is no such episode, or the episodes are not kept.
        """
        if self.store is None or seed not in self.seeds:
            raise KeyError(f"there is no episode of seed {seed}; evaluate it with render=True and seeds=[{seed}]")
        names = [name for name in self.store.ids() if self.store.read_header(name).seed == seed]
        return Film(self.store.read(names[-1]))

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.successes}/{len(self.success)} = {self.rate:.0%} [{100 * low:.0f}, {100 * high:.0f}]".replace(
            "%", " %"
        )

    def _repr_html_(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        place = "position:absolute;height:100%"
        bar = (
            '<span style="display:inline-block;position:relative;width:200px;height:1em;background:#8884">'
            f'<span style="{place};left:{low:.1f}%;width:{high - low:.1f}%;background:#1764c866"></span>'
            f'<span style="{place};left:{100 * self.rate:.1f}%;width:2px;background:#1764c8"></span></span>'
        )
        return f"<div>{bar} success {self}</div>"


@dataclass(frozen=True, repr=False)
class Film:
    """An episode as a film of all its cameras; a notebook plays it."""

    episode: "Episode"

    @property
    def images(self) -> Mapping[str, Uint8Array]:
        """Camera -> images, uint8 [T, H, W, 3]."""
        return self.episode.images

    def save(self, file: str | Path) -> None:
        """Write the film as .mp4 or .webp, or (.png) as a strip of frames."""
        from vla_rl.report.media import CAMERA_PX, save_clips, tile_cameras

        save_clips([tile_cameras(self.images, CAMERA_PX // 2)], Path(file), self.episode.control_hz)

    def _repr_html_(self) -> str:
        from vla_rl.report.media import player

        return f'<div style="max-width: 36rem">{player(self.episode, None)}</div>'

    def __repr__(self) -> str:
        return f"Film({self.episode.episode_id!r}, {len(self.episode)} steps)"


@dataclass(frozen=True)
class RoundResult:
    """The result of a round of practice; round 0 is the policy that practice began with.

    Attributes:
        round: Number of the round.
        policy: Folder of the policy that the round made.
        evaluation: Evaluation of that policy on the held-out seeds; None if the round was not evaluated.
        metrics: Last logged value of each metric of the learner.
    """

    round: int
    policy: Path
    evaluation: Outcomes | None
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        return f"round {self.round}: {self.evaluation or 'not evaluated'}"

    def _repr_html_(self) -> str:
        shown = self.evaluation._repr_html_() if self.evaluation else "<div>not evaluated</div>"
        return f"<b>round {self.round}</b>{shown}"


def metrics_of(records: Sequence[Mapping[str, object]], number: int) -> dict[str, float]:
    """Return the last logged value of each metric in a round, from the records of metrics.jsonl."""
    found: dict[str, float] = {}
    for record in records:
        if record.get("round") == number and record.get("kind") == "train":
            found |= {key: float(value) for key, value in record.items() if isinstance(value, int | float)}
    return {key: value for key, value in found.items() if key not in ("round", "time_s")}
