"""What all scripted experts share: reading the arms, straight bounded motion, and picking up an object from the side.

An expert keeps no phase. It decides anew at every step, from the true state. So it continues sensibly from any state
that a policy has made. Its action is a function of the present state, which a policy can learn from a picture.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sim.env import CHANNELS_PER_ARM, TabletopEnv
from sim.scene import GRIPPER_OPENING_MAX

LOOKAHEAD_M = 0.011  # how far ahead of an arm its target runs at normal pace; the servos turn this into about 0.2 m/s
CLOSE_ENOUGH_M = 0.012
CLEAR_ABOVE_M = 0.050  # a hand this far above a grip point passes over the object
STRAY_X_M = 0.030  # the right arm's object is astray when it is further left than this
_STREAM = 3


@dataclass(frozen=True)
class Style:
    """How one episode's expert differs from the next one's."""

    pace: float  # multiplies the look-ahead
    grip_offset: NDArray[np.float64]  # [3] meters, where objects are gripped
    meeting_offset: NDArray[np.float64]  # [3] meters, where arms meet


@dataclass(frozen=True)
class Grasp:
    """How to hold an object; lengths in meters.

    Args:
        height: grip height above its base.
        width: its width between the fingers.
        half_length: how far it reaches from the grip point towards the palm.
        along: the grip point's place along the object's x axis.
        slack: how far off in height the hand may close.
    """

    height: float
    width: float
    half_length: float
    along: float = 0.0
    slack: float = 0.016


def expert_rng(seed: int) -> np.random.Generator:
    """Return the draws of an expert's episode, kept apart from those of the environment, which has the same seed."""
    return np.random.default_rng([seed, _STREAM])


class CorrelatedNoise:
    """Noise that wanders instead of jittering (a first-order autoregressive process), as a hand's does.

    ``scale`` is its standard deviation, ``shape`` that of one draw.
    """

    memory = 0.8  # per step

    def __init__(self, rng: np.random.Generator, scale: float, shape: tuple[int, ...]) -> None:
        self._rng, self._scale = rng, scale
        self._value = np.zeros(shape)

    def draw(self) -> NDArray[np.float64]:
        """Return the next value; the first ones are small, since it starts from zero."""
        fresh = self._rng.normal(0.0, self._scale, self._value.shape)
        self._value = self.memory * self._value + np.sqrt(1 - self.memory**2) * fresh
        return self._value


class Expert(ABC):
    """Scripted solution of one task, by the true state of the environment at every `act`.

    ``action_noise`` is the standard deviation in meters of the temporally correlated noise on the motion that is sent.
    The clean action stays the label.
    """

    meters_per_action = 1.0  # what a motion action of 1 means

    def __init__(self, env: TabletopEnv, action_noise: float = 0.0) -> None:
        self.env: TabletopEnv = env.unwrapped  # type: ignore[assignment]
        self.action_noise = action_noise
        self.pace = 1.0
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines its style and its noise."""
        rng = expert_rng(seed)
        self.style = Style(
            pace=rng.uniform(0.85, 1.1),
            grip_offset=rng.uniform(-1, 1, 3) * (0.005, 0.0, 0.004),
            meeting_offset=rng.uniform(-1, 1, 3) * (0.012, 0.012, 0.006),
        )
        self._noise = CorrelatedNoise(rng, self.action_noise, (len(self.env.arms), CHANNELS_PER_ARM - 1))

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the clean action (the label) and the one to send, both float32 [A] and within bounds."""
        space: Any = self.env.action_space
        clean = np.stack(self.plan())  # [arms, 4]
        sent = clean.copy()
        sent[:, :3] += self._noise.draw()
        clean, sent = (np.clip(action.reshape(-1), space.low, space.high) for action in (clean, sent))
        return clean.astype(np.float32), sent.astype(np.float32)

    def last_sent(self) -> NDArray[np.float64]:
        """Return the action of the last step, float64 [A]; after a reset, the one that holds the arms still."""
        return self.env.data.ctrl

    @abstractmethod
    def plan(self) -> list[NDArray[np.float64]]:
        """Return the target [4] of every arm in the present state."""

    @abstractmethod
    def progress(self) -> float:
        """Return how much of the task is done, 0 to 1; grows within a sub-goal and from one to the next."""

    def move(self, arm: int, goal: NDArray[np.float64], opening: float, pace: float = 1.0) -> NDArray[np.float64]:
        """Target [4] that takes an arm straight towards `goal` at a bounded speed."""
        here = self.env.grip_points()[arm]
        way = goal - here
        limit = LOOKAHEAD_M * self.style.pace * self.pace * pace
        distance = float(np.linalg.norm(way))
        if distance > limit:
            way = way * (limit / distance)
        return np.append(here + way, opening)

    def grip_target(self, name: str, grasp: Grasp) -> NDArray[np.float64]:
        """Return where the grip point must be to hold an object, [3] meters."""
        return self._grip_point(name, grasp) + self.style.grip_offset

    def holds(self, arm: int, name: str, grasp: Grasp) -> bool:
        """Return whether an arm's fingers are closed on an object."""
        off = np.abs(self.env.grip_points()[arm] - self._grip_point(name, grasp))
        near = off[0] < grasp.half_length + 0.012 and off[1] < 0.014 and off[2] < 0.022
        return bool(near and self.env.openings()[arm] < grasp.width + 0.007)

    def _grip_point(self, name: str, grasp: Grasp) -> NDArray[np.float64]:
        return self.env.position(name) + self.env.rotation(name) @ (grasp.along, 0.0, grasp.height)

    def pick(self, arm: int, name: str, grasp: Grasp) -> NDArray[np.float64]:
        """Target [4] on the way to holding an object: go beside it, come in, close."""
        outwards = -1.0 if self.env.arms[arm].side == "left" else 1.0
        here, opening = self.env.grip_points()[arm], self.env.openings()[arm]
        goal = self.grip_target(name, grasp)
        beside = goal + np.array([outwards * (grasp.half_length + 0.045), 0.0, 0.0])
        off = np.abs(here - goal)
        room = (GRIPPER_OPENING_MAX - grasp.width) / 2
        straddling = off[0] < grasp.half_length + 0.025
        sideways, upright = (0.85 * room, grasp.slack) if straddling else (min(0.6 * room, 0.012), 0.75 * grasp.slack)
        aligned = off[1] < sideways and off[2] < upright
        if aligned and off[0] < CLOSE_ENOUGH_M:
            return self.move(arm, goal, 0.0, pace=0.4)
        open_enough = opening > grasp.width + 0.6 * (GRIPPER_OPENING_MAX - grasp.width)
        behind = (here[0] - beside[0]) * outwards > -0.010
        if aligned and (open_enough or behind):
            return self.move(arm, goal, GRIPPER_OPENING_MAX)
        if behind:
            return self.move(arm, beside, GRIPPER_OPENING_MAX)
        # Too far in and not in line: over the top if the object is in the way, else back out the way it came.
        in_the_way = (goal[0] - here[0]) * outwards > grasp.half_length
        if in_the_way and here[2] < goal[2] + CLEAR_ABOVE_M:
            return self.move(arm, here + np.array([0.0, 0.0, LOOKAHEAD_M]), GRIPPER_OPENING_MAX)
        return self.move(arm, np.array([beside[0] + outwards * 0.005, here[1], here[2]]), GRIPPER_OPENING_MAX)

    def out_of_the_way(self, stray: NDArray[np.float64], height: float) -> NDArray[np.float64]:
        """Return where the left arm waits with its object while the right one fetches its own from the middle, [3]."""
        return np.array([-0.09, -0.085 if stray[1] > 0 else 0.085, height])

    def reached(self, arm: int, name: str, grasp: Grasp) -> float:
        """Return how far an arm is on the way to holding an object: 0 far away, 0.7 around it, 1 holding it."""
        if self.holds(arm, name, grasp):
            return 1.0
        way = float(np.linalg.norm(self.env.grip_points()[arm] - self.grip_target(name, grasp)))
        return 0.7 * nearness(way, 0.20)


def nearness(distance: float, scale: float) -> float:
    """1 at distance 0, falling linearly to 0 at `scale`."""
    return max(0.0, 1.0 - distance / scale)
