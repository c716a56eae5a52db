"""The results of evaluations and of rounds of practice, as objects that a terminal and a notebook show well."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from vla_rl.core.errors import UserError
from vla_rl.core.types import Episode, Uint8Array
from vla_rl.data.store import EpisodeStore
from vla_rl.report.statistics import sequential_test, wilson_interval
from vla_rl.report.wording import percent, percent_interval


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a policy's episodes.

    Attributes:
        seeds: Reset seed of each episode.
        success: Whether each episode succeeded.
        lengths: Number of steps of each episode; empty if unknown.
        tasks: Name of the task of each episode; empty if unknown.
        store: The episodes; None if they are not kept.
        not_finite: Seeds of the episodes in which the policy planned actions that are not finite. The safety gate held
            the robot instead.
        episodes: Id of each episode in the store; empty if they are not kept.

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
    tasks: tuple[str, ...] = ()
    store: EpisodeStore | None = field(default=None, repr=False, compare=False)
    not_finite: tuple[int, ...] = ()
    episodes: tuple[str, ...] = field(default=(), repr=False, compare=False)

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
        """Return the film of the episode with a reset seed, of the first one if there are several tasks.

        A notebook plays it.

        Raises:
            KeyError: If there is no such episode, or the episodes are not kept.
        """
        if self.store is None or seed not in self.seeds or not self.episodes:
            raise KeyError(f"there is no episode of seed {seed}; evaluate it with render=True and seeds=[{seed}]")
        return Film(self.store.read(self.episodes[self.seeds.index(seed)]))

    def __str__(self) -> str:
        share = f"{percent(self.rate)} {percent_interval(self.interval)}"
        count = len(self.not_finite)
        wrong = f", actions that are not finite in {count} episode{'s' * (count > 1)}" if count else ""
        return f"{self.successes}/{len(self.success)} = {share}{wrong}"

    def _repr_html_(self) -> str:
        low, high = (100 * bound for bound in self.interval)
        place = "position:absolute;height:100%"
        bar = (
            '<span style="display:inline-block;position:relative;width:200px;height:1em;background:#8884">'
            f'<span style="{place};left:{low:.1f}%;width:{high - low:.1f}%;background:#1764c866"></span>'
            f'<span style="{place};left:{100 * self.rate:.1f}%;width:2px;background:#1764c8"></span></span>'
        )
        return f"<div>{bar} success {self}</div>"


@dataclass(frozen=True)
class Comparison:
    """The outcomes of two policies on the same seeds, and the decision between them.

    The decision may be read after every pair of episodes: see `vla_rl.report.statistics.sequential_test`.

    Raises:
        UserError: If the policies played different episodes.

    Attributes:
        a: Outcomes of the first policy.
        b: Outcomes of the second policy, on the same seeds in the same order.
        error: Probability of a decision if both policies succeed equally often.

    Example:
        >>> seeds = tuple(range(10))
        >>> comparison = Comparison(Outcomes(seeds, (True,) * 10), Outcomes(seeds, (False,) * 9 + (True,)))
        >>> print(comparison)
        a is better (confidence 98.0 %, 10 pairs): a 10/10 = 100 % [72, 100], b 1/10 = 10 % [2, 40], only a 9, only b 0
        >>> comparison.better, comparison.only
        ('a', (9, 0))
    """

    a: Outcomes
    b: Outcomes
    error: float = 0.05

    def __post_init__(self) -> None:
        if (self.a.seeds, self.a.tasks) != (self.b.seeds, self.b.tasks):
            raise UserError("the two policies played other seeds or tasks; evaluate both on the same ones")

    @property
    def better(self) -> Literal["a", "b"] | None:
        """The better policy; None if the comparison is undecided."""
        p, lead = self._test
        return None if p > self.error else "a" if lead > 0 else "b"

    @property
    def confidence(self) -> float:
        """1 - p, where p is valid at every stopping time."""
        return 1 - self._test[0]

    @property
    def only(self) -> tuple[int, int]:
        """Numbers of discordant pairs: seeds on which only a succeeded, and on which only b did."""
        return self._pairs.count((True, False)), self._pairs.count((False, True))

    @property
    def _pairs(self) -> list[tuple[bool, bool]]:
        return list(zip(self.a.success, self.b.success, strict=True))

    @property
    def _test(self) -> tuple[float, int]:
        return sequential_test(self._pairs)

    def __str__(self) -> str:
        (only_a, only_b), verdict = self.only, f"{self.better} is better" if self.better else "undecided"
        shown = f"{verdict} (confidence {100 * self.confidence:.1f} %, {len(self._pairs)} pairs)"
        return f"{shown}: a {self.a}, b {self.b}, only a {only_a}, only b {only_b}"


@dataclass(frozen=True, repr=False)
class Film:
    """An episode as a film of all its cameras; a notebook plays it."""

    episode: Episode

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
