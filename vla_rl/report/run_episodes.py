"""Chooses the episodes of the report: the same seeds under the first and the last policy, and traces."""

import contextlib
import itertools
import re
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from vla_rl.core.errors import StoreError
from vla_rl.core.types import Episode, Origin, Source
from vla_rl.data.store import EpisodeHeader, EpisodeStore
from vla_rl.report.wording import outcome


class Panel(NamedTuple):
    """One axis along an episode, with the columns of a trace file, from low to high; None: as the values and 0 need."""

    title: str
    columns: tuple[str, ...]
    low: float | None = None
    high: float | None = None


# To draw another column of `Algorithm.trace` along an episode, add a line. A column is drawn in the first panel that
# has it, and a trace shows the panels whose first column it has.
PANELS = (
    Panel("chance of success", ("viability",), 0.0, 1.0),
    Panel("discounted chance of success", ("discounted_value",), 0.0, 1.0),
    Panel("expected steps to success, negated", ("efficiency",), None, 0.0),
    Panel("expected return (0: at the goal, \N{MINUS SIGN}1: failure)", ("value",), -1.0, 0.0),
    Panel("N-step advantage, in lengths of the task", ("advantage",)),
    Panel("indicator (1: better than usual, 0: not)", ("indicator",), 0.0, 1.0),
    Panel("advantage gate (solid) and weight in the actor's loss (dashed)", ("advantage_gate", "weight"), 0.0, 2.0),
    Panel("weight in the actor's loss", ("weight",), 0.0),
)
_IN_PANELS = tuple(dict.fromkeys(name for panel in PANELS for name in panel.columns))
_COLUMNS = (*_IN_PANELS, "viability_advantage", "efficiency_advantage")
# Errors of numpy and zipfile for a damaged file.
_NPZ_ERRORS = (ValueError, EOFError, RuntimeError, zipfile.BadZipFile, zlib.error)
_AVERAGED_STEPS = 5
_EVALUATION_ID = re.compile(r"v(\d{4,})-(\d+)")


@dataclass(frozen=True)
class Pair:
    """One evaluation seed under the first and the last policy."""

    first: EpisodeHeader
    last: EpisodeHeader

    @property
    def outcome(self) -> tuple[bool, bool]:
        """Whether the first and the last policy succeeded."""
        return self.first.success is True, self.last.success is True


@dataclass(frozen=True)
class Trace:
    """The estimates of the critics and the weights of the actor's loss along one episode.

    Attributes:
        kind: "success", "failure", "takeover" or "demonstration".
        episode: The episode, T steps.
        columns: What the algorithm traces, each [T]; `PANELS` has the names.
    """

    kind: str
    episode: Episode
    columns: dict[str, NDArray[np.float64]]

    @property
    def panels(self) -> list[tuple[Panel, dict[str, NDArray[np.float64]]]]:
        """The panels of this trace, with their lines by column."""
        shown: list[tuple[Panel, dict[str, NDArray[np.float64]]]] = []
        drawn: set[str] = set()
        for panel in PANELS:
            if panel.columns[0] in self.columns and panel.columns[0] not in drawn:
                shown.append((panel, {name: self.columns[name] for name in panel.columns if name in self.columns}))
                drawn.update(panel.columns)
        return shown

    @property
    def chance(self) -> NDArray[np.float64] | None:
        """The critic's chance of success, [T]; None if the algorithm has none."""
        found = [self.columns[name] for name in ("viability", "discounted_value") if name in self.columns]
        return found[0] if found and np.isfinite(found[0]).any() else None

    @property
    def fall(self) -> int:
        """The step after which the smoothed chance stays below half of its maximum; T if it never does."""
        assert self.chance is not None
        known = np.where(np.isfinite(self.chance), self.chance, np.nanmean(self.chance))
        width = min(_AVERAGED_STEPS, len(known))
        padded = np.pad(known, (width // 2, width - 1 - width // 2), "edge")
        smooth = np.convolve(padded, np.ones(width) / width, "valid")
        return int(np.flatnonzero(smooth >= smooth.max() / 2)[-1]) + 1


def open_store(directory: Path, problems: list[str]) -> EpisodeStore | None:
    """Open the store in a directory; None if there is none, or if it cannot be read (a problem)."""
    if not directory.exists():
        return None
    try:
        return EpisodeStore(directory, create=False)
    except StoreError as error:
        problems.append(f"The episodes in {directory.name}/ were left out: {error}.")
        return None


def goes_on_after_success(run_dir: Path) -> bool:
    """Return whether no evaluated success ended its episode, so that lengths are the time limit."""
    store, ended = open_store(run_dir / "evaluation", []), []
    if store is None:
        return False
    for name in store.ids():
        with contextlib.suppress(StoreError):  # a damaged episode is reported where it would be shown
            header = store.read_header(name)
            ended += [header.terminated] if header.success else []
    return bool(ended) and not any(ended)


def read_pairs(store: EpisodeStore, problems: list[str]) -> list[Pair]:
    """Pair the episodes of the first and the last policy by seed.

    The order: the first fails and the last succeeds; the opposite; both succeed; both fail.
    """
    numbers = _by_version(store)
    if len(numbers) < 2:
        return []
    return _paired((store, numbers[min(numbers)]), (store, numbers[max(numbers)]), problems)


def last_pairs(first: EpisodeStore, other: EpisodeStore, problems: list[str]) -> list[Pair]:
    """Pair the episodes of the last policies of two runs by seed, in the order of `read_pairs`."""
    ours, theirs = _by_version(first), _by_version(other)
    if not (ours and theirs):
        return []
    return _paired((first, ours[max(ours)]), (other, theirs[max(theirs)]), problems)


def _by_version(store: EpisodeStore) -> dict[int, dict[int, str]]:
    """Return policy version -> number of the seed -> episode."""
    numbers: dict[int, dict[int, str]] = {}
    for episode_id in store.ids():
        if match := _EVALUATION_ID.fullmatch(episode_id):
            numbers.setdefault(int(match[1]), {})[int(match[2])] = episode_id
    return numbers


def _paired(
    first: tuple[EpisodeStore, dict[int, str]], last: tuple[EpisodeStore, dict[int, str]], problems: list[str]
) -> list[Pair]:
    pairs = []
    for number in sorted(first[1].keys() & last[1].keys()):
        try:
            pair = Pair(*(store.read_header(names[number]) for store, names in (first, last)))
            if pair.first.seed == pair.last.seed:
                pairs.append(pair)
        except StoreError as error:
            problems.append(f"Evaluation episode {number} was left out: {error}.")
    order = [(False, True), (True, False), (True, True), (False, False)]
    return sorted(pairs, key=lambda pair: order.index(pair.outcome))


def read_trace(directory: Path, episode: Episode, problems: list[str]) -> Trace | None:
    """Read the trace of an episode; None if there is none, or if it is damaged (a problem)."""
    file = directory / f"{episode.episode_id}.npz"
    try:
        return Trace(_kind(episode), episode, _read_columns(file, len(episode)))
    except FileNotFoundError:
        return None
    except (OSError, *_NPZ_ERRORS) as error:
        problems.append(f"The trace of episode {episode.episode_id} was left out: {error}.")
        return None


def segments(source: NDArray[np.uint8]) -> Iterator[tuple[int, int, int]]:
    """Yield the segments of equal source in [T]: (value, first step, one past the last step)."""
    edges = [0, *(np.flatnonzero(np.diff(source)) + 1).tolist(), len(source)]
    for start, end in itertools.pairwise(edges):
        yield int(source[start]), start, end


def _kind(episode: Episode) -> str:
    if episode.origin == Origin.DEMO:
        return "demonstration"
    return "takeover" if (episode.source == Source.HUMAN).any() else outcome(episode.success)


def _read_columns(file: Path, length: int) -> dict[str, NDArray[np.float64]]:
    # Opened here, since np.load leaves a damaged file open.
    with file.open("rb") as stream:
        content = np.load(stream, allow_pickle=False)
        if not isinstance(content, NpzFile):
            raise ValueError("it is not an npz file")
        columns = {name: np.array(content[name], np.float64) for name in _COLUMNS if name in content.files}
    for name, column in columns.items():
        if column.shape != (length,):
            raise ValueError(f"its {name} has shape {list(column.shape)}, the episode has {length} steps")
        column[~np.isfinite(column)] = np.nan
    if "indicator" in columns:  # 0: not judged, 1: negative, 2: positive
        judged = columns["indicator"] - 1.0
        columns["indicator"] = np.where(judged < 0, np.nan, judged)
    if not columns.keys() & set(_IN_PANELS):
        raise ValueError(f"it has none of {', '.join(_IN_PANELS)}")
    return columns
