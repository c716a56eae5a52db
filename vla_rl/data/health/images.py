"""Checks of pictures: a camera that stands still, shows nothing, or is swapped with another one."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.types import PICTURED, Episode, Uint8Array
from vla_rl.data.health.report import LARGEST_EVIDENCE_PX, Evidence, HealthFinding, problem

FROZEN_S = 0.5  # how long a picture may stay the same while the robot moves
MOVED = 0.05  # of a dimension's range over the data: the robot moves
DARK, FLAT = 8.0, 2.0  # mean and standard deviation of a picture, of 255, that shows nothing
DARK_SHARE = 0.1  # of an episode's pictures
SWAP_RATIO = 0.5  # distance of two cameras' pictures to each other's median, over that to their own
_THUMBNAIL, _JUDGED_PX = 16, 64


@dataclass(frozen=True, slots=True)
class Camera:
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


Cameras = dict[str, Camera]
Seen = Sequence[tuple[Episode, Cameras]]


def look_at(episode: Episode) -> tuple[Episode, Cameras]:
    """Return what the checks need of an episode: the episode without its pictures, and a `Camera` for each camera."""
    pictured = np.asarray(episode.extras.get(PICTURED, np.ones(len(episode)))).astype(bool)
    cameras = {}
    for name, pictures in episode.images.items():
        stride = [max(size // _JUDGED_PX, 1) for size in pictures.shape[1:3]]
        small = pictures[:, :: stride[0], :: stride[1]].astype(np.float32)
        dark = (small.mean(axis=(1, 2, 3)) < DARK) | (small.std(axis=(1, 2, 3)) < FLAT)
        first, length = _frozen_stretch(pictures, pictured)
        steps = [int(np.argmax(dark))] if dark.mean() > DARK_SHARE else []
        steps += [first, first + length - 1] if length > FROZEN_S * episode.control_hz else []
        every = max(pictures.shape[1] // LARGEST_EVIDENCE_PX, 1)
        shrunk = pictures[:, ::every, ::every]
        evidence = tuple(Evidence(shrunk[step].copy(), f"{episode.episode_id} {name} {step}") for step in steps)
        size = f"{pictures.shape[1]}x{pictures.shape[2]}"
        cameras[name] = Camera(size, _thumbnail(pictures[0]), (first, length), float(dark.mean()), evidence)
    return replace(episode, images={}), cameras


def _frozen_stretch(pictures: Uint8Array, pictured: NDArray[np.bool_]) -> tuple[int, int]:
    """First step and number of steps of the longest stretch in which every picture equals the one before."""
    best = (0, 1)
    start = 0
    for step in range(1, len(pictures)):
        both = pictured[step] and pictured[step - 1]
        if not both or not np.array_equal(pictures[step], pictures[step - 1]):
            start = step
        elif step - start + 1 > best[1]:
            best = (start, step - start + 1)
    return best


def _thumbnail(picture: Uint8Array) -> NDArray[np.float32]:
    """float32 [16, 16, 3]."""
    rows, columns = (np.linspace(0, size - 1, _THUMBNAIL).round().astype(int) for size in picture.shape[:2])
    return picture[rows][:, columns].astype(np.float32)


def check_images(seen: Seen) -> Iterable[HealthFinding]:
    """Return pictures that stand still while the robot moves, and pictures that show nothing."""
    states: dict[int, list[NDArray[np.float32]]] = {}
    for episode, _ in seen:
        states.setdefault(episode.state.shape[1], []).append(episode.state)
    usual = {width: np.ptp(np.concatenate(those), axis=0) for width, those in states.items()}
    for name in sorted({name for _, cameras in seen for name in cameras}):
        views = [(episode, cameras[name]) for episode, cameras in seen if name in cameras]
        dark = [(episode, view) for episode, view in views if view.dark_share > DARK_SHARE]
        frozen = [
            (episode, view)
            for episode, view in views
            if view.dark_share <= DARK_SHARE and _is_frozen(episode, view, usual[episode.state.shape[1]])
        ]
        if frozen:
            seconds = max(view.frozen[1] / episode.control_hz for episode, view in frozen)
            detail = f"{name} shows one picture for up to {seconds:.1f} s while the state moves"
            yield _problem("frozen video", frozen, detail, "leave them out or trim them (vla-rl edit)")
        if dark:
            share = max(view.dark_share for _, view in dark)
            detail = f"up to {100 * share:.0f} % of the pictures of {name} are black or of one color"
            yield _problem("black video", dark, detail, "check the camera; leave them out (vla-rl edit)")


def _problem(check: str, views: Sequence[tuple[Episode, Camera]], detail: str, remedy: str) -> HealthFinding:
    evidence = [picture for _, view in views[:3] for picture in view.evidence]
    return problem(check, (episode for episode, _ in views), detail, remedy, evidence)


def _is_frozen(episode: Episode, view: Camera, usual: NDArray[np.float32]) -> bool:
    """Return whether the state moves, by a share of its ``usual`` range [S], while one picture stays."""
    first, length = view.frozen
    if length <= FROZEN_S * episode.control_hz:
        return False
    return bool((np.ptp(episode.state[first : first + length], axis=0) > MOVED * usual + 1e-6).any())


def check_swaps(seen: Seen) -> Iterable[HealthFinding]:
    """Return episodes in which two cameras show what the other one shows elsewhere."""
    if len(seen) < 3:
        return
    common = sorted(set.intersection(*(set(cameras) for _, cameras in seen)))
    typical = {name: np.median([cameras[name].thumbnail for _, cameras in seen], axis=0) for name in common}
    for one, other in combinations(common, 2):
        swapped = [
            (episode, cameras)
            for episode, cameras in seen
            if _distance(cameras, {one: typical[other], other: typical[one]})
            < SWAP_RATIO * _distance(cameras, {one: typical[one], other: typical[other]})
        ]
        if swapped:
            detail = f"{one} and {other} look swapped in {len(swapped)} of {len(seen)} episodes"
            evidence = [
                Evidence(cameras[name].thumbnail.astype(np.uint8), f"{episode.episode_id} {name} 0")
                for episode, cameras in swapped[:3]
                for name in (one, other)
            ]
            remedy = "map their cameras the other way round"
            yield problem("camera swap", (episode for episode, _ in swapped), detail, remedy, evidence)


def _distance(cameras: Cameras, like: dict[str, NDArray[np.float32]]) -> float:
    return float(sum(np.abs(cameras[name].thumbnail - picture).mean() for name, picture in like.items()))
