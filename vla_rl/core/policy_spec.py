"""The interface of a policy: cameras, sizes, names and units of what goes in and comes out; how two of them differ."""

import functools
import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np

from vla_rl.core.dimensions import UNDECLARED, Dimensions, Pair, match_both
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Float32Array, Observation
from vla_rl.core.validation import check_vector

logger = logging.getLogger(__name__)

_LARGEST_DIM = 16384  # of a state, an action or a picture
_UNSEEN = (64, 64)  # image size of a policy without cameras, so that all of them are alike
_SLOWEST_HZ, _FASTEST_HZ = 0.01, 10_000.0


@dataclass(frozen=True)
class PolicySpec:
    """What the policy is connected to. Taken from the data or the environment, saved in the checkpoint, compared on
    loading.

    Attributes:
        env_id: the environment or robot.
        cameras: camera names, in the order of the prefix tokens.
        image_size: height and width of every camera image, pixels; without cameras it means nothing.
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
                f"{self.action_dim} actions. Name each once; dimensions count from 0"
            )
        if not self.cameras:
            object.__setattr__(self, "image_size", _UNSEEN)
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
        """Return the interface towards one of the robots that share the policy, without the dimensions that it lacks.

        The robot is the one with A actions and S states; None: the largest S that goes with A.

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
        """Return actions [d, A of one of the robots] for a chunk to begin with, float32 [d, A], see `padded_with_mean`.

        Raises:
            UserError: for the actions of no such robot, or more of them than a chunk has.
        """
        sizes = sorted(set(self.action_sizes.values()))
        if actions.ndim != 2 or actions.shape[1] not in sizes or len(actions) > horizon:
            size = " or ".join(map(str, sizes))
            raise UserError(f"given actions are {list(actions.shape)}, expected [at most {horizon}, {size}]")
        return padded_with_mean(actions.astype(np.float32, copy=False), mean)

    def check(self, observation: Observation) -> None:
        """Refuse an observation with a missing camera, or an image or a state of another size, by a UserError."""
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
    """Return the interface of one policy for several simulators: the largest vectors; smaller ones are filled up.

    Raises:
        ConfigError: If their cameras, rates or kinds of action differ, or two cannot be distinguished by their state.
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


class Difference(NamedTuple):
    """The first thing in which two interfaces differ."""

    name: str
    found: Any
    expected: Any


def spec_difference(found: PolicySpec, expected: PolicySpec, but: Collection[str] = ()) -> Difference | None:
    """Return the first field, not in ``but``, in which two interfaces of policies differ; None if nothing does.

    Names that only one of the two declares are no difference: those vectors are matched by position, which is logged
    once.
    """
    return _sizes_difference(found, expected, but) or names_difference(found, expected)


def successor_difference(found: PolicySpec, expected: PolicySpec) -> Difference | None:
    """Return why a policy cannot take the place of another one that is connected already; None if it can.

    The robot stays matched by what the first policy declares. So names and units must be declared alike, beside all
    that `spec_difference` compares. Only the ``env_id`` may differ.
    """
    if differs := _sizes_difference(found, expected, ("env_id",)):
        return differs
    for what, one, other in _each_vector(found, expected):
        if one != other:
            return Difference(f"{what} dimensions", one.words() or "undeclared", other.words() or "undeclared")
    return None


def names_difference(found: PolicySpec, expected: PolicySpec) -> Difference | None:
    """Return the first vector whose names, order or units differ; arguments as of `spec_difference`."""
    for what, one, other in _each_vector(found, expected):
        if bool(one) != bool(other):
            _say_once(f"only one of two policies of {expected.env_id} names its {what}: matched by position")
        elif not one.agrees(other):
            return Difference(f"{what} dimensions", one.words(), other.words())
    return None


def _sizes_difference(found: PolicySpec, expected: PolicySpec, but: Collection[str]) -> Difference | None:
    for name in (field.name for field in fields(PolicySpec) if field.name not in ("dimensions", *but)):
        if getattr(found, name) != getattr(expected, name):
            return Difference(name, getattr(found, name), getattr(expected, name))
    return None


def _each_vector(found: PolicySpec, expected: PolicySpec) -> Iterator[tuple[str, Dimensions, Dimensions]]:
    for size in expected.action_sizes:
        yield from zip(("state", "action"), found.dimensions_of(size), expected.dimensions_of(size), strict=True)


@functools.cache
def _say_once(sentence: str) -> None:
    logger.info(sentence)


def _check_same_order(first: PolicySpec, spec: PolicySpec, known: dict[int, Pair]) -> None:
    """Add the dimensions of a robot to those known by the size of its state; refuse another order or other units."""
    ours, theirs = known.get(spec.state_dim, (UNDECLARED, UNDECLARED)), spec.dimensions_of(spec.state_dim)
    matches = match_both(ours, theirs, (spec.state_dim, spec.action_dim), first.env_id, spec.env_id)
    if any(each.changes for each in matches):
        lists = " and ".join(
            str([list(zip(each.names, each.unit_of_each(), strict=True)) for each in pair]) for pair in (ours, theirs)
        )
        raise ConfigError(
            f"{first.env_id} and {spec.env_id} cannot share a policy: their state and action dimensions are {lists}. "
            "Declare them in the same order and units"
        )
    known[spec.state_dim] = (ours[0] or theirs[0], ours[1] or theirs[1])


def padded_with_mean(vectors: Float32Array, mean: Float32Array) -> Float32Array:
    """float32 [..., d] -> [..., D]: dimensions that a smaller robot lacks get their mean [D], which normalizes to 0."""
    if vectors.shape[-1] == len(mean):
        return vectors
    behind = np.broadcast_to(mean[vectors.shape[-1] :], (*vectors.shape[:-1], len(mean) - vectors.shape[-1]))
    return np.concatenate([vectors, behind], axis=-1)


def with_still_end(actions: Float32Array, length: int, delta_dims: Sequence[int]) -> Float32Array:
    """Return actions [T, A], made up to [length, A] by actions that hold still: targets repeat, steps are 0.

    Example:
        >>> with_still_end(np.array([[1.0, 2.0]], np.float32), 2, delta_dims=(0,)).tolist()
        [[1.0, 2.0], [0.0, 2.0]]
    """
    still = actions[-1].copy()
    still[list(delta_dims)] = 0
    return np.concatenate([actions, np.tile(still, (max(0, length - len(actions)), 1))])
