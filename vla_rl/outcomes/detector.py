"""What a success detector is: it judges windows of observations, and may say that it is unsure.

A detector is a part: an entry point of ``vla_rl.outcomes`` or ``module:Name``. It sees the last observations of a
window, never a tick, a length or a time-out. Where a success ends the episode, time would give the answer away.

Threading law: numpy only. A detector belongs to one thread at a time.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from vla_rl.core.dimensions import UNDECLARED, Dimensions
from vla_rl.core.types import PICTURED, Episode, Observation

OFFSETS = (4, 2, 0)
"""Ticks before the end of a window at which it has an observation."""


@dataclass(frozen=True)
class Window:
    """The newest observations at one moment of an episode.

    Attributes:
        observations: One per entry of `OFFSETS`, oldest first. The first one of an episode stands in for earlier ones.
        values: Further numbers of the last commanded step by name, which a rule may compare.
        has_final: Whether the last observation follows the last command. False: the source kept none after it, so the
            window ends one tick early.
        state_dimensions: Names and units of the state, as declared.

    Example:
        >>> window = window_at(demos.read("demo-00000"))
        >>> len(window.observations), window.has_final
        (3, True)
    """

    observations: tuple[Observation, ...]
    values: Mapping[str, float] = field(default_factory=dict)
    has_final: bool = True
    state_dimensions: Dimensions = UNDECLARED


@dataclass(frozen=True)
class Judgment:
    """What a detector says of a window.

    Attributes:
        success: Outcome; None: the detector is unsure.
        probability: Probability of success, from 0 to 1.
        reason: Why the detector is unsure; empty if it is sure.

    Example:
        >>> print(Judgment(None, 0.6, "the networks disagree"))
        unsure (0.60, the networks disagree)
    """

    success: bool | None
    probability: float
    reason: str = ""

    def __str__(self) -> str:
        outcome = {True: "success", False: "failure", None: "unsure"}[self.success]
        return f"{outcome} ({self.probability:.2f}{f', {self.reason}' if self.reason else ''})"


class OutcomeDetector(Protocol):
    """Judges windows. A part is a callable that returns one.

    Attributes:
        name: Name and version, which every label of the detector carries.

    Example:
        >>> class Bright:
        ...     name = "bright"
        ...     def judge(self, window):
        ...         bright = next(iter(window.observations[-1].images.values())).mean() > 128
        ...         return Judgment(bool(bright), float(bright))
        >>> Bright().judge(window_at(demos.read("demo-00000"))).reason
        ''
    """

    name: str

    def judge(self, window: Window) -> Judgment:
        """Judge the moment at which a window ends."""
        ...


def window_at(episode: Episode, tick: int | None = None) -> Window:
    """Return the window that ends at a tick of an episode.

    Args:
        episode: Episode of T steps.
        tick: From 0 to T - 1, or T for the observation after the last command. None: the newest observation.

    Example:
        >>> max(each.tick for each in window_at(demos.read("demo-00000"), tick=2).observations)
        0
    """
    has_final = episode.final_state is not None
    newest = len(episode) if has_final else len(episode) - 1
    tick = newest if tick is None else min(tick, newest)
    values = {
        name: float(column[min(tick, len(episode) - 1)]) for name, column in episode.extras.items() if column.ndim == 1
    }
    observations = tuple(observation_at(episode, max(tick - offset, 0)) for offset in OFFSETS)
    names = episode.state_dimensions.names
    values |= {f"state.{name}": float(value) for name, value in zip(names, observations[-1].state, strict=False)}
    return Window(observations, values, has_final, episode.state_dimensions)


def observation_at(episode: Episode, tick: int) -> Observation:
    """Return the observation of a tick, without the tick's number."""
    if tick == len(episode) and episode.final_state is not None:
        return Observation(episode.final_images, episode.final_state, episode.task, 0)
    images = {camera: pictures[tick] for camera, pictures in episode.images.items()}
    return Observation(images, episode.state[tick], episode.task, 0)


def has_every_picture(episode: Episode) -> bool:
    """Return whether an episode has a picture of its own at every step."""
    return bool(np.all(episode.extras.get(PICTURED, 1)))
