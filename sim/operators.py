"""Imperfect people: scripted operators of different skill, who demonstrate and take over.

An operator drives an expert and is an expert itself (`sim.registration.ScriptedExpert`), so it stands wherever an
expert does. It stays closed loop: what it spoils, the expert underneath sees and repairs at the next frame. What it
sends is also the label, for of a person nothing cleaner than his commands is known.
"""

import itertools
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from sim.experts.base import CorrelatedNoise
from sim.interface import ABSOLUTE
from sim.registration import ScriptedExpert
from vla_rl.core.errors import ConfigError, UserError, did_you_mean
from vla_rl.core.validation import check_ranges

_STREAM = 11  # keeps a person's draws apart from those of environment, expert and supervisor
_IDLE_S = 0.6  # mean length of an idle stretch
_PART_S = 0.5  # mean time before another part may be driven, of a person who drives one part at a time
_ASTRAY_S, _ASTRAY_M_PER_S = (0.8, 1.6), 0.08  # how long and how fast a person does the wrong thing first
_MISS_ASIDE_S, _MISS_CLOSED_S, _MISS_OPEN_S = 0.4, 0.4, 0.3  # a missed grasp: off the object, shut, open again


@dataclass(frozen=True)
class OperatorConfig:
    """The habits of one person. The defaults are those of the expert: no hesitation, no error.

    Six people of three skills, two each, is the design of robomimic's multi-human data sets (arXiv 2108.03298:
    ``better``, ``okay``, ``worse``). It publishes no distributions of habits; where no source is named, the range is
    an assumption, and what it amounts to is measured in docs/people.md.

    Args:
        speed: lowest and highest pace relative to the expert's; uniform, drawn per episode.
        reaction_s: Shortest and longest time from the mark of a takeover, or the start of a demonstration, to the first
            motion. Uniform. 0.5 to 1 s is 10 to 20 frames at 20 Hz.
        idle_share: share of the later time in which nothing moves, in stretches that begin at random (Poisson) and
            last 0.6 s on average (exponential). Up to 0.3; people pause where they have to think.
        tremor_m: standard deviation of the hand's noise, temporally correlated (Gaussian, first order).
        miss_probability: chance that a grasp is aimed badly: the hand shuts beside the object, opens and tries again;
            independent at every attempt.
        aim_m: standard deviation of how far off a bad aim is along each axis; Gaussian, upwards half-Gaussian.
        astray_probability: chance that a demonstration or a takeover begins with a wrong strategy: 0.8 to 1.6 s
            (uniform) of motion in a random direction.
        one_part_probability: Probability, per episode, that only one part of the robot is driven at a time, for 0.5 s
            on average (exponential). A part is one of two arms, or the vertical or horizontal motion of a single arm.
        needless_probability: chance, per episode, of a takeover while nothing is wrong: too early. Its time is
            uniform over the expert's episode.
        late_s: longest time by which a takeover comes later than the supervisor would have taken over; uniform.
        touch_probability: chance, per episode, of a touch: control for 0.15 to 0.4 s without need.
        mark_jitter_s: by how much the recorded beginning of a takeover is off at most, either way; uniform.
    """

    speed: tuple[float, float] = (1.0, 1.0)
    reaction_s: tuple[float, float] = (0.0, 0.0)
    idle_share: float = 0.0
    tremor_m: float = 0.0
    miss_probability: float = 0.0
    aim_m: float = 0.012
    astray_probability: float = 0.0
    one_part_probability: float = 0.0
    needless_probability: float = 0.0
    late_s: float = 0.0
    touch_probability: float = 0.0
    mark_jitter_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("speed", "reaction_s"):
            low, high = getattr(self, name)
            if low > high:
                raise ConfigError(f"an operator's {name} is {(low, high)}; expected (lowest, highest)")
        probabilities = {field.name: "[0, 1]" for field in fields(self) if field.name.endswith("_probability")}
        not_negative = dict.fromkeys(("reaction_s", "tremor_m", "aim_m", "late_s", "mark_jitter_s"), ">= 0")
        check_ranges(self, "operator", speed="> 0", idle_share="[0, 1)", **not_negative, **probabilities)


OPERATORS = {
    "better_1": OperatorConfig(
        speed=(0.9, 1.0), reaction_s=(0.5, 0.6), idle_share=0.03, tremor_m=0.001, miss_probability=0.05,
        touch_probability=0.05, mark_jitter_s=0.1,
    ),
    "better_2": OperatorConfig(
        speed=(0.85, 1.0), reaction_s=(0.5, 0.7), idle_share=0.05, tremor_m=0.0015, miss_probability=0.1,
        needless_probability=0.05, touch_probability=0.05, mark_jitter_s=0.15,
    ),
    "okay_1": OperatorConfig(
        speed=(0.7, 0.9), reaction_s=(0.5, 0.8), idle_share=0.12, tremor_m=0.0015, miss_probability=0.25,
        astray_probability=0.1, needless_probability=0.1, late_s=0.5, touch_probability=0.1, mark_jitter_s=0.25,
    ),
    "okay_2": OperatorConfig(
        speed=(0.75, 0.95), reaction_s=(0.6, 0.9), idle_share=0.15, tremor_m=0.002, miss_probability=0.2,
        astray_probability=0.15, one_part_probability=0.15, late_s=0.3, touch_probability=0.15, mark_jitter_s=0.25,
    ),
    "worse_1": OperatorConfig(
        speed=(0.5, 0.7), reaction_s=(0.7, 1.0), idle_share=0.3, tremor_m=0.002, miss_probability=0.35,
        astray_probability=0.25, late_s=1.0, touch_probability=0.2, mark_jitter_s=0.5,
    ),
    "worse_2": OperatorConfig(
        speed=(0.6, 0.8), reaction_s=(0.7, 1.0), idle_share=0.2, tremor_m=0.002, miss_probability=0.35,
        astray_probability=0.3, one_part_probability=0.25, needless_probability=0.25, touch_probability=0.2,
        mark_jitter_s=0.5,
    ),
}  # fmt: skip
"""Six people: the named presets."""


def operator_config(name: str) -> OperatorConfig:
    """Return the habits of a named operator; ConfigError for an unknown name."""
    if name not in OPERATORS:
        raise ConfigError(f"there is no operator {name!r}.{did_you_mean(name, OPERATORS)}")
    return OPERATORS[name]


def check_recovers(expert: ScriptedExpert) -> None:
    """Raise UserError if an expert says ``follows_script``: its motions are timed, whatever became of them."""
    if getattr(expert, "follows_script", False):
        raise UserError(
            f"The expert of {type(expert.env).__name__} follows a script and never repeats a motion that failed. "
            "It can demonstrate, but cannot supervise or err like a person. Let it demonstrate without task.operators."
        )


class Operator:
    """A person who drives: an expert with a person's habits. Methods as of every expert.

    Raises:
        UserError: the environment does not say which of its actions are grippers, and which are steps. Or the expert
            follows a script, and the person has habits.
    """

    def __init__(self, expert: ScriptedExpert, config: OperatorConfig) -> None:
        if config != OperatorConfig():
            check_recovers(expert)
        for name in ("gripper_dims", "action_kind"):
            if not hasattr(expert.env, name):
                raise UserError(f"{type(expert.env).__name__} does not say its {name}, by which an operator moves")
        self.env, self.meters_per_action = expert.env, expert.meters_per_action
        self._expert, self.config = expert, config
        self.hz = float(self.env.metadata["render_fps"])
        self._space = self.env.action_space
        grippers, size = list(self.env.gripper_dims), self._space.shape[0]
        # Each arm's dimensions end with its gripper.
        self._arms = [np.arange(*ends) for ends in itertools.pairwise([0, *(dim + 1 for dim in grippers)])]
        self._motion = np.setdiff1d(np.arange(size), grippers)
        self._absolute = np.array([kind == ABSOLUTE for kind in self.env.action_kind])
        # A single arm's gripper is always at hand.
        halves = self._motion[2:3], np.delete(self._motion, slice(2, 3))
        self._parts = self._arms if len(self._arms) > 1 else [part for part in halves if len(part)]
        self.pace = 1.0
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines every draw of it."""
        self.rng = np.random.default_rng([seed, _STREAM])
        self._expert.reset(seed)
        self._noise = CorrelatedNoise(self.rng, self.config.tremor_m / self.meters_per_action, self._motion.shape)
        self._shake = np.zeros(self._motion.shape)
        self.pace = self._expert.pace = self.rng.uniform(*self.config.speed)
        self._drives_one = self.rng.random() < self.config.one_part_probability
        self._part = 0
        self._shut = [False] * len(self._arms)
        self.begin()

    def begin(self) -> None:
        """Take control: find the device first, and perhaps do the wrong thing."""
        self._still = self._frames(self.rng.uniform(*self.config.reaction_s))
        self._astray = 0
        if self.rng.random() < self.config.astray_probability:
            self._astray = self._frames(self.rng.uniform(*_ASTRAY_S))
        self._way = self._off(1.0)
        self._way /= max(float(np.linalg.norm(self._way)), 1e-9)
        self._misses: dict[int, tuple[int, NDArray[np.float64]]] = {}  # arm -> frames since, where it is aimed

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the sent command, float32 [A] and within bounds, twice: it is the label too."""
        wanted = self._expert.act()[0].astype(np.float64)
        held = self.held()
        self._see_grippers()
        if self._still > 0:
            self._still -= 1
            return self._sent(held)
        share = self.config.idle_share
        if self.rng.random() < share / ((1 - share) * _IDLE_S * self.hz):
            self._still = self._frames(self.rng.exponential(_IDLE_S))
        if self._astray > 0:
            self._astray -= 1
            step = _ASTRAY_M_PER_S / self.hz / self.meters_per_action
            wanted = held.copy()
            wanted[self._motion] += step * self._way
        for arm, dims in enumerate(self._arms):
            self._aim(arm, dims, wanted, held)
        if self._drives_one:
            self._drive_one(wanted, held)
        before, self._shake = self._shake, self._noise.draw()
        # Of where the hand is, also where an action is a step.
        wanted[self._motion] += self._shake - np.where(self._absolute[self._motion], 0.0, before)
        return self._sent(wanted)

    def held(self) -> NDArray[np.float64]:
        """Return the command that keeps still, float64 [A]: targets and grippers as they were, steps of 0."""
        return np.where(self._absolute, self.last_sent(), 0.0)

    def progress(self) -> float:
        """Return how much of the task is done, 0 to 1."""
        return self._expert.progress()

    def last_sent(self) -> NDArray[np.float64]:
        """Return the action of the last step, float64 [A]."""
        return self._expert.last_sent()

    def _aim(self, arm: int, dims: NDArray[np.int64], wanted: NDArray[np.float64], held: NDArray[np.float64]) -> None:
        """Turn a grasp that is about to shut into a miss now and then, and go on with one that has begun."""
        hand, gripper = dims[:-1], int(dims[-1])
        if arm not in self._misses:
            shuts = self._is_shut(wanted[gripper], gripper) and not self._shut[arm]
            if not shuts or self._astray or self.rng.random() >= self.config.miss_probability:
                return
            self._misses[arm] = (0, self._off(self.config.aim_m / self.meters_per_action)[: len(hand)])
        frame, off = self._misses[arm]
        aside, shut, opened = (self._frames(time) for time in (_MISS_ASIDE_S, _MISS_CLOSED_S, _MISS_OPEN_S))
        wanted[hand] = held[hand] + (off / aside if frame < aside else 0.0)
        is_shut = aside <= frame < aside + shut
        low, high = self._space.low[gripper], self._space.high[gripper]
        wanted[gripper] = low if is_shut == (low >= 0) else high
        self._misses[arm] = (frame + 1, off)
        if frame + 1 == aside + shut + opened:
            del self._misses[arm]

    def _drive_one(self, wanted: NDArray[np.float64], held: NDArray[np.float64]) -> None:
        """Keep all parts still but one; who has further to go has the better chance to be the next."""
        if self.rng.random() < 1 / (_PART_S * self.hz):
            ways = np.array([np.abs(wanted - held)[part].max() + 1e-9 for part in self._parts])
            self._part = int(self.rng.choice(len(self._parts), p=ways / ways.sum()))
        for number, part in enumerate(self._parts):
            if number != self._part:
                wanted[part] = held[part]

    def _see_grippers(self) -> None:
        """Note whether the last command of each gripper shut it. A step of 0 is none, so a pause ends no grasp."""
        sent = self.last_sent()
        for arm, dims in enumerate(self._arms):
            gripper = int(dims[-1])
            if self._absolute[gripper] or sent[gripper]:
                self._shut[arm] = self._is_shut(sent[gripper], gripper)

    def _is_shut(self, command: float, gripper: int) -> bool:
        """Return whether a command shuts a gripper: an opening (never negative) near 0, or a positive effort."""
        low, high = self._space.low[gripper], self._space.high[gripper]
        above = command > (low + high) / 2
        return bool(above != (low >= 0))

    def _off(self, scale: float) -> NDArray[np.float64]:
        """Return how far off every motion dimension is aimed, upwards where it is the third of an arm."""
        off = self.rng.normal(0.0, scale, len(self._motion))
        off[2::3] = abs(off[2::3])
        return off

    def _frames(self, time_s: float) -> int:
        return round(time_s * self.hz)

    def _sent(self, wanted: NDArray[np.float64]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        action = np.clip(wanted, self._space.low, self._space.high).astype(np.float32)
        return action, action
