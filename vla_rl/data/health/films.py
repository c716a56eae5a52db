"""Checks of pictures: a camera that stands still, shows nothing, or is swapped with another one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import PICTURED, Episode, Uint8Array
from vla_rl.data.health.report import LARGEST_EVIDENCE_PX, Evidence, HealthFinding

FROZEN_S = 0.5  # how long a picture may stay the same while the robot moves
MOVED = 0.05  # of a dimension's range over the data: the robot moves
DARK, FLAT = 8.0, 2.0  # mean and standard deviation of a picture, of 255, that shows nothing
DARK_SHARE = 0.1  # of an episode's pictures
SWAP_RATIO = 0.5  # distance of two cameras' pictures to each other's median, over that to their own
_THUMBNAIL, _JUDGED_PX = 16, 64


@dataclass(frozen=True, slots=True)
class Film:
    """What is kept of one camera of an episode.

    Attributes:
        size: Height and width, as ``480x640``.
        thumbnail: First picture, float32 [16, 16, 3].
        frozen: First step and number of steps of the longest stretch of equal pictures.
        dark_share: Share of the pictures that show nothing.
        evidence: Pictures of what is suspicious.
    """

    size: str
    thumbnail: NDArray[np.float32]
    frozen: tuple[int, int]
    dark_share: float
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """What the checks keep of an episode: the episode without its pictures, and a `Film` for each camera."""

    episode: Episode
    films: dict[str, Film]


def ids(kept: Iterable[Kept]) -> tuple[str, ...]:
    """Return the ids of the episodes."""
    return tuple(each.episode.episode_id for each in kept)


def keep(episode: Episode) -> Kept:
    """Return what the checks need of an episode."""
    pictured = np.asarray(episode.extras.get(PICTURED, np.ones(len(episode)))).astype(bool)
    films = {}
    for camera, pictures in episode.images.items():
        stride = [max(size // _JUDGED_PX, 1) for size in pictures.shape[1:3]]
        small = pictures[:, :: stride[0], :: stride[1]].astype(np.float32)
        dark = (small.mean(axis=(1, 2, 3)) < DARK) | (small.std(axis=(1, 2, 3)) < FLAT)
        first, length = _frozen_stretch(pictures, pictured)
        steps = [int(np.argmax(dark))] if dark.mean() > DARK_SHARE else []
        steps += [first, first + length - 1] if length > FROZEN_S * episode.control_hz else []
        evidence = tuple(Evidence(_shrunk(pictures[step]), f"{episode.episode_id} {camera} {step}") for step in steps)
        size = f"{pictures.shape[1]}x{pictures.shape[2]}"
        films[camera] = Film(size, _thumbnail(pictures[0]), (first, length), float(dark.mean()), evidence)
    return Kept(replace(episode, images={}), films)


def _frozen_stretch(pictures: Uint8Array, pictured: NDArray[np.bool_]) -> tuple[int, int]:
    """First step and number of steps of the longest stretch in which every picture equals the one before."""
    same = np.zeros(len(pictures), dtype=bool)
    for step in range(1, len(pictures)):
        same[step] = pictured[step] and pictured[step - 1] and np.array_equal(pictures[step], pictures[step - 1])
    best = (0, 1)
    start = 0
    for step in range(1, len(same)):
        if not same[step]:
            start = step
        elif step - start + 1 > best[1]:
            best = (start, step - start + 1)
    return best


def _thumbnail(picture: Uint8Array) -> NDArray[np.float32]:
    """float32 [16, 16, 3]."""
    rows, columns = (np.linspace(0, size - 1, _THUMBNAIL).round().astype(int) for size in picture.shape[:2])
    return picture[rows][:, columns].astype(np.float32)


def _shrunk(picture: Uint8Array) -> Uint8Array:
    step = max(picture.shape[0] // LARGEST_EVIDENCE_PX, 1)
    return picture[::step, ::step].copy()


def check_films(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    """Pictures that stand still while the robot moves, and pictures that show nothing."""
    usual = ranges([each.episode.state for each in kept])
    for camera in sorted({camera for each in kept for camera in each.films}):
        with_camera = [each for each in kept if camera in each.films]
        dark = [each for each in with_camera if each.films[camera].dark_share > DARK_SHARE]
        frozen = [each for each in with_camera if each not in dark and _is_frozen(each, camera, usual)]
        if frozen:
            seconds = max(each.films[camera].frozen[1] / each.episode.control_hz for each in frozen)
            yield HealthFinding(
                "frozen video",
                "problem",
                ids(frozen),
                f"{camera} shows one picture for up to {seconds:.1f} s while the state moves",
                "leave them out or trim them (vla-rl edit)",
                _evidence(frozen, camera),
            )
        if dark:
            share = max(each.films[camera].dark_share for each in dark)
            yield HealthFinding(
                "black video",
                "problem",
                ids(dark),
                f"up to {100 * share:.0f} % of the pictures of {camera} are black or of one color",
                "check the camera; leave them out (vla-rl edit)",
                _evidence(dark, camera),
            )


def ranges(columns: Sequence[NDArray[np.float32]]) -> dict[int, NDArray[np.float32]]:
    """Width of a vector -> range of each dimension over all columns [T, D] of that width."""
    by_width: dict[int, list[NDArray[np.float32]]] = {}
    for column in columns:
        by_width.setdefault(column.shape[1], []).append(column)
    return {width: np.ptp(np.concatenate(those), axis=0) for width, those in by_width.items()}


def _is_frozen(each: Kept, camera: str, usual: dict[int, NDArray[np.float32]]) -> bool:
    first, length = each.films[camera].frozen
    state = each.episode.state[first : first + length]
    if length <= FROZEN_S * each.episode.control_hz or not state.shape[1]:
        return False
    return bool((np.ptp(state, axis=0) > MOVED * usual[state.shape[1]] + 1e-6).any())


def check_swaps(kept: Sequence[Kept]) -> Iterable[HealthFinding]:
    """Episodes in which two cameras show what the other one shows elsewhere."""
    cameras = sorted(set.intersection(*(set(each.films) for each in kept))) if kept else []
    typical = {name: np.median([each.films[name].thumbnail for each in kept], axis=0) for name in cameras}
    pairs = [(one, other) for number, one in enumerate(cameras) for other in cameras[number + 1 :]]
    for one, other in pairs:

        def distance(each: Kept, first: str, second: str, pair: tuple[str, str] = (one, other)) -> float:
            seen = zip(pair, (first, second), strict=True)
            return float(sum(np.abs(each.films[name].thumbnail - typical[like]).mean() for name, like in seen))

        swapped = [each for each in kept if distance(each, other, one) < SWAP_RATIO * distance(each, one, other)]
        if swapped and len(kept) > 2:
            detail = f"{one} and {other} look swapped in {len(swapped)} of {len(kept)} episodes"
            remedy = "map their cameras the other way round"
            evidence = tuple(
                Evidence(each.films[name].thumbnail.astype(np.uint8), f"{each.episode.episode_id} {name} 0")
                for each in swapped[:3]
                for name in (one, other)
            )
            yield HealthFinding("camera swap", "problem", ids(swapped), detail, remedy, evidence)


def _evidence(kept: Sequence[Kept], camera: str) -> tuple[Evidence, ...]:
    return tuple(picture for each in kept[:3] for picture in each.films[camera].evidence)
