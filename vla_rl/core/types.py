"""The values that travel through the loop: observation -> chunk -> step -> episode. Numpy arrays in frozen
dataclasses, nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from vla_rl.core.dimensions import UNDECLARED, Dimensions, Pair, match_both
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.outside import check_vector

Float32Array = NDArray[np.float32]
Uint8Array = NDArray[np.uint8]

_LARGEST_DIM = 16384  # of a state, an action or a picture
_SLOWEST_HZ, _FASTEST_HZ = 0.01, 10_000.0


PICTURED = "pictured"
"""An extra column of episodes that were simulated without a picture at every step: 1 where there is one, 0 where the
last one is repeated.
"""

OPERATOR = "operator."
"""Extra columns of episodes in which somebody known by name acted, OPERATOR + NAME: 1 at the steps that this person
decided, else 0. The header of an episode lists them, so that who acted is known without reading it.
"""


class Source(IntEnum):
    """Who decided the action that was sent at a step. Stored as uint8."""

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
    """

    images: Mapping[str, Uint8Array]
    state: Float32Array
    task: str
    tick: int
    captured_ns: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ActionChunk:
    """The actions that a policy planned from one observation.

    Attributes:
        actions: float32 [H, A]; ``actions[i]`` belongs to tick ``start_tick + i``.
        start_tick: the tick of the observation that the chunk was computed from.
        chunk_id: counts the chunks of an episode.
        policy_version: the version of the weights that computed it.
    """

    actions: Float32Array
    start_tick: int
    chunk_id: int
    policy_version: int

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
        source: who decided ``action_sent``.
        terminated: the task ended at this step (success, or a failure that the environment knows).
        truncated: the episode was cut here, by the time limit or from outside.
        success: the outcome, known at the last step at the earliest.
        extras: further numbers of this tick by name, the same names at every step of an episode; they become columns
            of `Episode.extras`.
    """

    observation: Observation
    action_policy: Float32Array
    action_sent: Float32Array
    source: Source
    terminated: bool = False
    truncated: bool = False
    success: bool | None = None
    extras: Mapping[str, int | float] = field(default_factory=dict)


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
        success: the outcome; None if nobody has labelled it.
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
        source_columns: Columns of the dataset that the episode was read from: column -> the part of the episode that
            it became, its shape and its names, as JSON data. An export writes them again.
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

    def __len__(self) -> int:
        return len(self.state)

    def imitation_action(self) -> Float32Array:
        """The action that imitation should reproduce, float32 [T, A]: the clean action of a demonstrator, else what
        was sent.
        """
        demo = (self.source == Source.DEMO)[:, None]
        return np.where(demo, self.action_policy, self.action_sent)

    def validate(self) -> Self:
        """Return the episode if its columns fit together.

        Raises:
            UserError: for no steps, unequal lengths, wrong dtypes or dimensions, numbers that are not finite, or
                unknown sources.
        """
        length = len(self.state)
        if length == 0:
            raise UserError(f"episode {self.episode_id!r} has no steps; record at least one step before saving it")
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
                    f"episode {self.episode_id!r}: {name} is {array.dtype} {list(array.shape)}, "
                    f"expected {np.dtype(dtype)} with {ndim} dimensions and {length} steps"
                )
            if dtype is np.float32 and not np.isfinite(array).all():
                step = int(np.argwhere(~np.isfinite(array))[0, 0])
                raise UserError(
                    f"episode {self.episode_id!r}: {name} is not finite at step {step}; check the sensor or the policy"
                )
        for name, column in self.extras.items():
            if len(column) != length:
                raise UserError(
                    f"episode {self.episode_id!r}: extra column {name!r} has {len(column)} rows, expected {length}"
                )
        for name, image in self.images.items():
            if image.shape[-1] != 3:
                raise UserError(
                    f"episode {self.episode_id!r}: images[{name}] is {list(image.shape)}, expected [T, H, W, 3]"
                )
        if self.action_policy.shape != self.action_sent.shape:
            shapes = f"{list(self.action_policy.shape)} and {list(self.action_sent.shape)}"
            raise UserError(
                f"episode {self.episode_id!r}: action_policy and action_sent have shapes {shapes}; they must be equal"
            )
        self.state_dimensions.check_size(self.state.shape[1], f"episode {self.episode_id!r}: state")
        self.action_dimensions.check_size(self.action_sent.shape[1], f"episode {self.episode_id!r}: action")
        if self.source.max(initial=0) > max(Source):
            raise UserError(
                f"episode {self.episode_id!r}: source {self.source.max()} is unknown; known are 0 to {max(Source)}"
            )
        return self

    @property
    def dimensions(self) -> Pair:
        """Dimensions of the state and of the actions."""
        return self.state_dimensions, self.action_dimensions

    def matched(self, expected: Pair, expected_in: str) -> "Episode":
        """Return the episode with state and actions in the expected order and units.

        Args:
            expected: What the receiver declares; undeclared dimensions match by position.
            expected_in: Name of the receiver, for the error.

        Raises:
            UserError: If a name is missing, or declared units cannot be converted.
        """
        sizes = (self.state.shape[1], self.action_sent.shape[1])
        states, actions = match_both(expected, self.dimensions, sizes, expected_in, f"episode {self.episode_id!r}")
        return replace(
            self,
            state=states.apply(self.state),
            action_policy=actions.apply(self.action_policy),
            action_sent=actions.apply(self.action_sent),
            state_dimensions=expected[0] or self.state_dimensions,
            action_dimensions=expected[1] or self.action_dimensions,
        )

    def with_success(self, success: bool | None) -> "Episode":
        """The same episode with another outcome label."""
        return replace(self, success=success)


@dataclass(frozen=True)
class PolicySpec:
    """What the policy is connected to. Taken from the data or the environment, saved in the checkpoint, compared on
    loading.

    Attributes:
        env_id: the environment or robot.
        cameras: camera names, in the order of the prefix tokens.
        image_size: height and width of every camera image, pixels.
        state_dim: S.
        action_dim: A.
        control_hz: actions per second.
        delta_dims: action dimensions that are steps, of which 0 holds still; the others are targets.
        sizes: (state, action) sizes of the robots that share the policy, if they differ. Then S and A are the largest;
            smaller vectors are filled up with their mean over the data.
        dimensions: (state, action) dimensions of each robot in the order of `action_sizes`, or empty if undeclared.

    Raises:
        ConfigError: for sizes and rates that no robot has, or for names that do not fit the sizes.
    """

    env_id: str
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    state_dim: int
    action_dim: int
    control_hz: float = 20.0
    delta_dims: tuple[int, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()
    dimensions: tuple[Pair, ...] = ()

    def __post_init__(self) -> None:
        sizes = (("image_size", self.image_size, 2, 1), ("state_dim", (self.state_dim,), 1, 0))
        try:
            for name, numbers, count, least in (*sizes, ("action_dim", (self.action_dim,), 1, 1)):
                check_vector(name, numbers, count, least=least, most=_LARGEST_DIM)
            check_vector("control_hz", (self.control_hz,), 1, least=_SLOWEST_HZ, most=_FASTEST_HZ)
            for state_dim, action_dim in self.sizes:
                check_vector("sizes", (state_dim,), 1, least=0, most=self.state_dim)
                check_vector("sizes", (action_dim,), 1, least=1, most=self.action_dim)
        except ValueError as error:
            raise ConfigError(f"no policy can be connected like this: {error}") from error
        if len(set(self.cameras)) < len(self.cameras) or not {*self.delta_dims} <= {*range(self.action_dim)}:
            raise ConfigError(
                f"no policy can be connected to cameras {self.cameras} with delta_dims {self.delta_dims} of "
                f"{self.action_dim} actions; each stands there once, dimensions count from 0"
            )
        if not any(names for pair in self.dimensions for names in pair):
            object.__setattr__(self, "dimensions", ())
        elif len(self.dimensions) != len(self.action_sizes):
            raise ConfigError(
                f"a policy for robots of (state, action) sizes {list(self.action_sizes.items())} has the dimensions of "
                f"{len(self.dimensions)}; give one pair for each"
            )
        for size, (state, action) in zip(self.action_sizes.items(), self.dimensions, strict=False):
            state.check_size(size[0], "the policy's state")
            action.check_size(size[1], "the policy's action")

    @property
    def action_sizes(self) -> dict[int, int]:
        """The action size of each robot that shares the policy, by the size of its state."""
        return dict(self.sizes or [(self.state_dim, self.action_dim)])

    def dimensions_of(self, state_dim: int) -> Pair:
        """Return the state and action dimensions of the robot whose state has this many numbers."""
        found = dict(zip(self.action_sizes, self.dimensions, strict=False))
        return found.get(state_dim, (UNDECLARED, UNDECLARED))

    def of_robot(self, action_dim: int, state_dim: int | None = None) -> "PolicySpec":
        """The interface towards one of the robots that share the policy, without the dimensions that it lacks.

        Args:
            action_dim: A of the robot.
            state_dim: S of the robot; None: the largest that goes with its A.

        Raises:
            UserError: if the policy was made for no such robot.
        """
        fitting = [size for size, actions in self.action_sizes.items() if actions == action_dim]
        if not fitting or state_dim not in (None, *fitting):
            found = f"{action_dim} numbers of action" + ("" if state_dim is None else f" and {state_dim} of state")
            expected = " or ".join(f"{actions} and {size}" for size, actions in self.action_sizes.items())
            raise UserError(f"the robot has {found}, the policy was made for {expected}; was it trained on this robot?")
        size = max(fitting) if state_dim is None else state_dim
        return replace(
            self,
            state_dim=size,
            action_dim=action_dim,
            delta_dims=tuple(dim for dim in self.delta_dims if dim < action_dim),
            sizes=(),
            dimensions=(self.dimensions_of(size),),
        )

    def given(self, actions: Float32Array, horizon: int, mean: Float32Array) -> Float32Array:
        """Actions [d, A of one of the robots] for a chunk to begin with, float32 [d, A], see `filled_up`.

        Raises:
            UserError: for the actions of no such robot, or more of them than a chunk has.
        """
        sizes = sorted(set(self.action_sizes.values()))
        if actions.ndim != 2 or actions.shape[1] not in sizes or len(actions) > horizon:
            size = " or ".join(map(str, sizes))
            raise UserError(f"given actions are {list(actions.shape)}, expected [at most {horizon}, {size}]")
        return filled_up(actions.astype(np.float32, copy=False), mean)

    def check(self, observation: Observation) -> None:
        """Refuse an observation that the policy was not made for.

        Raises:
            UserError: for a missing camera, or an image or a state of another size.
        """
        expected = [*self.image_size, 3]
        for camera in self.cameras:
            if camera not in observation.images:
                known = ", ".join(sorted(observation.images)) or "none"
                raise UserError(f"the policy needs camera {camera!r}, the observation has {known}; check the names")
            found = observation.images[camera]
            if list(found.shape) != expected or found.dtype != np.uint8:
                raise UserError(
                    f"camera {camera!r} gives {found.dtype} {list(found.shape)}, "
                    f"the policy was made for uint8 {expected}; set the image size"
                )
        if observation.state.ndim != 1 or observation.state.size not in self.action_sizes:
            sizes = " or ".join(f"[{size}]" for size in self.action_sizes)
            raise UserError(f"the state is {list(observation.state.shape)}, the policy was made for {sizes}")


def shared_spec(specs: Sequence[PolicySpec]) -> PolicySpec:
    """The interface of one policy for several stations: the largest vectors; smaller ones are filled up.

    Raises:
        ConfigError: if their cameras, rates or kinds of action differ, or two cannot be told apart by their state.
    """
    first = specs[0]
    largest = max(specs, key=lambda spec: spec.action_dim)
    for spec in specs[1:]:
        for name in ("cameras", "image_size", "control_hz"):
            if getattr(spec, name) != getattr(first, name):
                ours, theirs = getattr(first, name), getattr(spec, name)
                each = " and ".join(dict.fromkeys((first.env_id, spec.env_id)))
                raise ConfigError(
                    f"what is of {each} cannot share a policy: their {name} are {ours} and {theirs}; train one for each"
                )
        if spec.delta_dims != tuple(dim for dim in largest.delta_dims if dim < spec.action_dim):
            raise ConfigError(f"{largest.env_id} and {spec.env_id} cannot share a policy: their delta actions differ")
    sizes = {spec.state_dim: spec.action_dim for spec in specs}
    dimensions: dict[int, Pair] = {}
    for spec in specs:
        if sizes[spec.state_dim] != spec.action_dim:
            raise ConfigError(f"{spec.env_id}: another task has the same state size and another action size")
        _check_same_order(first, spec, dimensions)
    return PolicySpec(
        env_id=" ".join(spec.env_id for spec in specs),
        cameras=first.cameras,
        image_size=first.image_size,
        state_dim=max(sizes),
        action_dim=max(sizes.values()),
        control_hz=first.control_hz,
        delta_dims=largest.delta_dims,
        sizes=tuple(sorted(sizes.items())) if len(sizes) > 1 else (),
        dimensions=tuple(dimensions[size] for size in sorted(sizes)),
    )


def _check_same_order(first: PolicySpec, spec: PolicySpec, known: dict[int, Pair]) -> None:
    """Add the dimensions of a robot to those known by the size of its state; refuse another order or other units."""
    ours, theirs = known.get(spec.state_dim, (UNDECLARED, UNDECLARED)), spec.dimensions_of(spec.state_dim)
    matches = match_both(ours, theirs, (spec.state_dim, spec.action_dim), first.env_id, spec.env_id)
    if any(each.changes for each in matches):
        lists = " and ".join(
            str([list(zip(each.names, each.unit_of_each(), strict=True)) for each in pair]) for pair in (ours, theirs)
        )
        raise ConfigError(
            f"{first.env_id} and {spec.env_id} cannot share a policy: their state and action dimensions are {lists}; "
            "declare them in the same order and units"
        )
    known[spec.state_dim] = (ours[0] or theirs[0], ours[1] or theirs[1])


def filled_up(vectors: Float32Array, mean: Float32Array) -> Float32Array:
    """float32 [..., d] -> [..., D]: the dimensions that a smaller robot lacks get their mean, float32 [D], which is 0
    once normalised.
    """
    if vectors.shape[-1] == len(mean):
        return vectors
    behind = np.broadcast_to(mean[vectors.shape[-1] :], (*vectors.shape[:-1], len(mean) - vectors.shape[-1]))
    return np.concatenate([vectors, behind], axis=-1)
