"""The values that travel through the loop: observation -> chunk -> step -> episode. Numpy arrays in frozen
dataclasses, nothing else.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Self, override

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import UNDECLARED, Dimensions, Pair, match_both
from vla_rl.core.errors import UserError, one_line

Float32Array = NDArray[np.float32]
Uint8Array = NDArray[np.uint8]


PICTURED = "pictured"
"""Extra column of episodes without a picture at every step: 1 where there is one, 0 where the last one is repeated."""

OPERATOR = "operator."
"""Extra columns of episodes in which a person known by name acted, OPERATOR + NAME: 1 at the steps that this person
decided, else 0. The header of an episode lists them, so that the operators are known without reading it.
"""


class Source(IntEnum):
    """Origin of the action that was sent at a step. Stored as uint8."""

    POLICY = 0
    HUMAN = 1
    DEMO = 2
    HOLD = 3


class Origin(StrEnum):
    """Where an episode happened."""

    REAL = "real"
    SIM = "sim"
    DEMO = "demo"


@dataclass(frozen=True, slots=True)
class Observation:
    """What the robot senses at one control tick.

    Attributes:
        images: camera name -> uint8 [H, W, 3], RGB.
        state: float32 [S], proprioception in the robot's own units.
        task: the task sentence.
        tick: the control tick since the start of the episode. A robot that does not count gives 0: the loop counts.
        captured_ns: stream name -> capture time on the monotonic clock, in ns. ``state`` and each camera are streams.
        past: the observations of the ticks before, the oldest first, for a policy that reads several
            (``n_obs_steps``).
    """

    images: Mapping[str, Uint8Array]
    state: Float32Array
    task: str
    tick: int
    captured_ns: Mapping[str, int] = field(default_factory=dict)
    past: "tuple[Observation, ...]" = ()

    def copied(self) -> Self:
        """Return the observation for code that may write into it. Pictures are copied, and drawn, on access."""
        past = tuple(each.copied() for each in self.past)
        return replace(self, images=_CopiedImages(self.images), state=self.state.copy(), past=past)


class _CopiedImages(Mapping[str, Uint8Array]):
    def __init__(self, images: Mapping[str, Uint8Array]) -> None:
        self._images, self._copies = images, dict[str, Uint8Array]()

    @override
    def __getitem__(self, camera: str) -> Uint8Array:
        if camera not in self._copies:
            self._copies[camera] = self._images[camera].copy()
        return self._copies[camera]

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._images)

    @override
    def __len__(self) -> int:
        return len(self._images)


@dataclass(frozen=True, slots=True)
class ActionChunk:
    """The actions float32 [H, A] that a policy planned from one observation.

    Attributes:
        actions: ``actions[i]`` belongs to tick ``start_tick + i``. A copy of what is given: an array, a list or a
            tensor of numbers.
        start_tick: The tick of the observation that the chunk was computed from.
        chunk_id: Counts the chunks of an episode.
        policy_version: The version of the weights that computed it.
    """

    actions: Float32Array
    start_tick: int
    chunk_id: int
    policy_version: int

    def __post_init__(self) -> None:
        try:
            # A copy: a policy may use its array again for the next chunk, while this one is executed.
            object.__setattr__(self, "actions", np.asarray(self.actions, np.float32).copy())
        except (TypeError, ValueError, RuntimeError) as error:
            found = f"a {type(self.actions).__name__} that is no array of numbers [H, A]"
            raise UserError(f"the actions of a chunk are {found}: {one_line(error)}") from error

    @property
    def end_tick(self) -> int:
        """The first tick that the chunk says nothing about."""
        return self.start_tick + len(self.actions)


@dataclass(frozen=True, slots=True)
class Step:
    """One tick of an episode, as subscribers see it.

    Attributes:
        observation: what was sensed at this tick.
        action_policy: float32 [A], what the policy (in a demonstration: the demonstrator) asked for, before noise,
            takeover or gate.
        action_sent: float32 [A], the command that really went to the robot.
        source: origin of ``action_sent``.
        terminated: the task ended at this step (success, or a failure that the environment knows).
        truncated: the episode was cut here, by the time limit or from outside.
        success: the outcome, known at the last step at the earliest.
        extras: further numbers of this tick by name, the same names at every step of an episode; they become columns
            of `Episode.extras`.
        final: Observation after the last command, at the last step only; None if the robot could not be read.
    """

    observation: Observation
    action_policy: Float32Array
    action_sent: Float32Array
    source: Source
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    extras: Mapping[str, int | float] = field(default_factory=dict)
    final: Observation | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """A finished episode as columns of T steps. The unit of storage, of credit, and of exchange between collector and
    learner.

    Attributes:
        episode_id: unique within a store, and its sort key; a file name ([A-Za-z0-9._-], at most 100 characters).
        images: camera name -> uint8 [T, H, W, 3].
        state: float32 [T, S].
        action_policy: float32 [T, A], see `Step`.
        action_sent: float32 [T, A].
        source: uint8 [T], values of `Source`.
        task: the task sentence.
        success: the outcome; None if it is not labeled.
        terminated: True if the last step ended the task, False if the episode was truncated.
        origin: real, sim or demo.
        policy_version: the version of the weights that acted (-1: no policy).
        seed: of the environment's reset, if there was one.
        control_hz: steps per second.
        env_id: the environment or robot, so that data of another one is not mixed in by mistake.
        extras: further columns, name -> array [T, ...] (for example ``captured_ns.front``, ``chunk_id``,
            ``chunk_index``, ``action_age_ms``).
        state_dimensions: Names and units of the S numbers of the state.
        action_dimensions: Names and units of the A numbers of both actions.
        source_columns: Columns of the source dataset: column -> the part of the episode that it became, its shape and
            its names, as JSON data. An export writes them again.
        final_state: float32 [S], the state after the last command; None: the source has no observation after it. No
            command belongs to it, so nothing that learns commands reads it.
        final_images: camera name -> uint8 [H, W, 3], the pictures after the last command; empty without that
            observation.
    """

    episode_id: str
    images: Mapping[str, Uint8Array]
    state: Float32Array
    action_policy: Float32Array
    action_sent: Float32Array
    source: Uint8Array
    task: str
    success: bool | None
    terminated: bool
    origin: Origin
    policy_version: int
    seed: int | None
    control_hz: float
    env_id: str
    extras: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)
    state_dimensions: Dimensions = UNDECLARED
    action_dimensions: Dimensions = UNDECLARED
    source_columns: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    final_state: Float32Array | None = None
    final_images: Mapping[str, Uint8Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.state)

    def imitation_action(self) -> Float32Array:
        """Return the action to imitate, float32 [T, A]: the clean action of a demonstrator, else what was sent."""
        demo = (self.source == Source.DEMO)[:, None]
        return np.where(demo, self.action_policy, self.action_sent)

    def rows(self, kept: slice | NDArray[np.int64]) -> Self:
        """Return the episode with some of its steps only; the final observation stays."""
        return replace(
            self,
            images={camera: images[kept] for camera, images in self.images.items()},
            state=self.state[kept],
            action_policy=self.action_policy[kept],
            action_sent=self.action_sent[kept],
            source=self.source[kept],
            extras={name: column[kept] for name, column in self.extras.items()},
        )

    def validate(self) -> Self:
        """Return the episode if its columns fit together.

        Raises:
            UserError: for no steps, unequal lengths, wrong dtypes or dimensions, numbers that are not finite, or
                unknown sources.
        """
        length, where = len(self.state), f"episode {self.episode_id!r}"
        if length == 0:
            raise UserError(f"{where} has no steps; record at least one step before saving it")
        expected: dict[str, tuple[NDArray[Any], type[np.generic], int]] = {
            "state": (self.state, np.float32, 2),
            "action_policy": (self.action_policy, np.float32, 2),
            "action_sent": (self.action_sent, np.float32, 2),
            "source": (self.source, np.uint8, 1),
        }
        for name, image in self.images.items():
            expected[f"images[{name}]"] = (image, np.uint8, 4)
        for name, (array, dtype, ndim) in expected.items():
            if array.dtype != dtype or array.ndim != ndim or len(array) != length:
                raise UserError(
                    f"{where}: {name} is {array.dtype} {list(array.shape)}, "
                    f"expected {np.dtype(dtype)} with {ndim} dimensions and {length} steps"
                )
            if dtype is np.float32 and not np.isfinite(array).all():
                step = int(np.argwhere(~np.isfinite(array))[0, 0])
                raise UserError(f"{where}: {name} is not finite at step {step}; check the sensor or the policy")
        for name, column in self.extras.items():
            if len(column) != length:
                raise UserError(f"{where}: extra column {name!r} has {len(column)} rows, expected {length}")
        for name, image in self.images.items():
            if image.shape[-1] != 3:
                raise UserError(f"{where}: images[{name}] is {list(image.shape)}, expected [T, H, W, 3]")
        if self.action_policy.shape != self.action_sent.shape:
            shapes = f"{list(self.action_policy.shape)} and {list(self.action_sent.shape)}"
            raise UserError(f"{where}: action_policy and action_sent have shapes {shapes}; they must be equal")
        self.state_dimensions.check_size(self.state.shape[1], f"{where}: state")
        self.action_dimensions.check_size(self.action_sent.shape[1], f"{where}: action")
        if self.source.max(initial=0) > max(Source):
            raise UserError(f"{where}: source {self.source.max()} is unknown; known are 0 to {max(Source)}")
        self._validate_final(where)
        return self

    def _validate_final(self, where: str) -> None:
        expected: dict[str, NDArray[Any]] = {}
        found: dict[str, NDArray[Any]] = {}
        if self.final_state is not None:
            found["final_state"], expected["final_state"] = self.final_state, self.state[0]
            expected |= {f"final_images[{name}]": image[0] for name, image in self.images.items()}
        found |= {f"final_images[{name}]": image for name, image in self.final_images.items()}
        if found.keys() != expected.keys():
            raise UserError(f"{where}: the final observation has {sorted(found)}, expected {sorted(expected)} or none")
        for name, row in expected.items():
            array = found[name]
            if array.dtype != row.dtype or array.shape != row.shape or not np.isfinite(array).all():
                raise UserError(
                    f"{where}: {name} is {array.dtype} {list(array.shape)}, expected {row.dtype} {list(row.shape)} of "
                    "finite numbers, as in every step"
                )

    @property
    def dimensions(self) -> Pair:
        """Dimensions of the state and of the actions."""
        return self.state_dimensions, self.action_dimensions

    def matched(self, expected: Pair, expected_in: str) -> "Episode":
        """Return the episode with state and actions in the expected order and units, see `dimensions.match`."""
        sizes = (self.state.shape[1], self.action_sent.shape[1])
        states, actions = match_both(expected, self.dimensions, sizes, expected_in, f"episode {self.episode_id!r}")
        return replace(
            self,
            state=states.apply(self.state),
            action_policy=actions.apply(self.action_policy),
            action_sent=actions.apply(self.action_sent),
            final_state=None if self.final_state is None else states.apply(self.final_state),
            state_dimensions=expected[0] or self.state_dimensions,
            action_dimensions=expected[1] or self.action_dimensions,
        )
