"""What evaluations and rounds of practice give back, as objects that print well in a terminal and in a notebook."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vla_rl.core.types import Uint8Array
from vla_rl.report.statistics import wilson_interval

if TYPE_CHECKING:
    from vla_rl.data.store import EpisodeStore


@dataclass(frozen=True)
class Outcomes:
    """How the episodes of a policy ended.

    Attributes:
        seeds: Reset seed of each episode.
        success: Whether each succeeded.
        lengths: Steps of each; empty if unknown.
        store: The episodes themselves; None if they are not kept.

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

    def film(self, seed: int, camera: str | None = None) -> Uint8Array:
        """Return the pictures of an episode, uint8 [T, H, W, 3].

        Args:
            seed: Reset seed of the episode.
            camera: Name of a camera; None: the first.

        Raises:
            KeyError: If there is no such episode or camera, or the episodes are not kept.
        """
        if self.store is None or seed not in self.seeds:
            raise KeyError(f"there is no episode of seed {seed}; evaluate it with render=True and seeds=[{seed}]")
        names = [name for name in self.store.ids() if self.store.read_header(name).seed == seed]
        episode = self.store.read(names[-1])
        return episode.images[camera or next(iter(episode.images))]

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.successes}/{len(self.success)} = {self.rate:.0%} [{100 * low:.0f}, {100 * high:.0f}]".replace(
            "%", " %"
        )

    def _repr_html_(self) -> str:
        low, high = (f"{100 * bound:.1f}%" for bound in self.interval)
        bar = (
            f'<span style="display:inline-block;position:relative;width:200px;height:1em;background:#ddd">'
            f'<span style="position:absolute;left:{low};right:calc(100% - {high});height:1em;background:#7ab"></span>'
            "</span>"
        )
        return f"<p>{bar} success {self}</p>"


@dataclass(frozen=True)
class RoundResult:
    """What a round of practice has led to; round 0 is the policy that practice began with.

    Attributes:
        round: Its number.
        policy: Folder of the policy that the round made.
        evaluation: Of that policy on the held-out seeds; None if the round was not evaluated.
        metrics: What the learner logged last in the round, by name.
    """

    round: int
    policy: Path
    evaluation: Outcomes | None
    metrics: Mapping[str, float]

    def __str__(self) -> str:
        return f"round {self.round}: {self.evaluation or 'not evaluated'}"

    def _repr_html_(self) -> str:
        shown = self.evaluation._repr_html_() if self.evaluation else "<p>not evaluated</p>"
        return f"<b>round {self.round}</b>{shown}"


def metrics_of(records: Sequence[Mapping[str, object]], number: int) -> dict[str, float]:
    """Return what the learner logged last in a round, from the records of metrics.jsonl."""
    found: dict[str, float] = {}
    for record in records:
        if record.get("round") == number and record.get("kind") == "train":
            found |= {key: float(value) for key, value in record.items() if isinstance(value, int | float)}
    return {key: value for key, value in found.items() if key not in ("round", "time_s")}
