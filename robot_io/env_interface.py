"""Properties of a gymnasium environment that acting needs. Each comes from the declaration, else from the environment,
else from an assumption that is reported.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

import gymnasium
import numpy as np
from numpy.typing import NDArray

from robot_io.success import AUTO, REWARD, SuccessRule, as_number
from vla_rl.core.dimensions import Dimensions
from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.types import Float32Array

ASSUMED_HZ = 20.0
KINDS = ("absolute", "delta")
_CHANGES = {"state": gymnasium.ObservationWrapper, "action": gymnasium.ActionWrapper}


@dataclass(frozen=True)
class EnvDeclaration:
    """What an environment does not say itself, or says wrongly. What is left empty is taken from the environment.

    Attributes:
        cameras: camera name -> path in the observation, such as ``{wrist: robot.cameras.0}``.
        state: paths of the vectors that make up the state, one behind the other.
        action_kind: per action dimension, or one for all: ``absolute`` (a target: repeated, it holds still) or
            ``delta`` (a step: 0 holds still). Environments say it as ``action_kind``; assumed: absolute.
        action_low: smallest action, for an action space without bounds.
        action_high: largest action.
        gripper_dims: action dimensions with two levels, never averaged; ``gripper_dims`` of the environment.
        rest_action: the action that keeps everything still; ``rest_action(state)`` of the environment. Assumed: 0 for
            steps; for targets the last ones, at first those of the state if they are as many, else the middle.
        control_hz: steps per second; ``metadata["render_fps"]``. Assumed: 20.
        max_episode_steps: an episode is cut here.
        success: What makes the last step a success. ``auto``: ``info["is_success"]`` or ``info["success"]``, else a
            positive reward at an end that is no cut, if no earlier step had one. ``reward``: that reward alone. Any
            other word is a key of the info (nested: ``metrics.solved``), ``reward`` or ``terminated``, true or false.
            A number needs a threshold: ``coverage>=0.95``, with >=, <=, ==, !=, > or <.
        sentence: the task in words; ``task_description`` of the environment. Assumed: its name.
        state_names: Names of the numbers of the state, in its order; ``state_names`` of the environment. Undeclared
            ones are matched by position.
        state_units: One unit for each (``rad``, ``deg``, ``m``, ...; "": not declared); ``state_units``.
        action_names: Names of the numbers of the action; ``action_names``.
        action_units: One unit for each; ``action_units``.
    """

    cameras: dict[str, str] = field(default_factory=dict)
    state: tuple[str, ...] = ()
    action_kind: tuple[str, ...] = ()
    action_low: tuple[float, ...] = ()
    action_high: tuple[float, ...] = ()
    gripper_dims: tuple[int, ...] = ()
    rest_action: tuple[float, ...] = ()
    control_hz: float | None = None
    max_episode_steps: int | None = None
    success: str = AUTO
    sentence: str = ""
    state_names: tuple[str, ...] = ()
    state_units: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.control_hz is not None and not self.control_hz > 0:
            raise ConfigError(f"control_hz is {self.control_hz}; it must be positive")
        if self.max_episode_steps is not None and self.max_episode_steps < 1:
            raise ConfigError(f"max_episode_steps is {self.max_episode_steps}; it must be at least 1")
        if not set(self.action_kind) <= set(KINDS):
            raise ConfigError(f"action_kind is {list(self.action_kind)}; each is one of {', '.join(KINDS)}")
        if self.success not in (AUTO, REWARD):
            SuccessRule.parse(self.success)


@dataclass(frozen=True)
class ActionInterface:
    """The actions of an environment.

    Attributes:
        low: float32 [A], smallest action.
        high: float32 [A], largest action.
        kind: of each dimension, "absolute" or "delta".
        gripper_dims: dimensions with two levels.
        rest: float32 [A], the declared action that keeps everything still, or None.
        notes: what was assumed, in sentences.
    """

    low: Float32Array
    high: Float32Array
    kind: tuple[str, ...]
    gripper_dims: tuple[int, ...]
    rest: Float32Array | None
    notes: tuple[str, ...]

    @property
    def size(self) -> int:
        """A."""
        return len(self.low)


def read_actions(env: Any, declared: EnvDeclaration) -> ActionInterface:
    """Return the known properties of the actions.

    Raises:
        UserError: if the action space is no bounded Box of one dimension, or the environment declares what does not
            fit it.
        ConfigError: if the declaration does not fit it.
    """
    space, notes = env.action_space, []
    if not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1 or space.dtype.kind != "f":
        discrete = " A policy here commands numbers; wrap the task so that it takes a target or a step."
        hint = discrete if not isinstance(space, gymnasium.spaces.Box) else ""
        raise UserError(f"{env} has the action space {space}; expected a Box of float numbers, shape [A].{hint}")
    size = space.shape[0]
    low = _of_size(declared.action_low, size, "action_low") if declared.action_low else space.low
    high = _of_size(declared.action_high, size, "action_high") if declared.action_high else space.high
    low, high = -_at_most(-np.asarray(low)), _at_most(np.asarray(high))
    with np.errstate(over="ignore", invalid="ignore"):
        finite = np.isfinite(high - low).all()
    if not (finite and (low < high).all()):
        raise UserError(
            f"{env} has actions from {low.tolist()} to {high.tolist()}; a policy needs finite bounds: "
            f"declare action_low and action_high, {size} numbers each"
        )
    kind = declared.action_kind if len(declared.action_kind) != 1 else declared.action_kind * size
    own = getattr(env.unwrapped, "action_kind", ())
    kind = kind or ((own,) * size if isinstance(own, str) else tuple(own))
    if not kind:
        kind = KINDS[:1] * size
        notes.append("actions are taken for targets (absolute): declare action_kind=[delta] if 0 keeps it still")
    if len(kind) != size or not set(kind) <= set(KINDS):
        raise UserError(f"{env} declares action_kind {kind}; expected {size} entries, each of them one of {KINDS}")
    grippers = tuple(map(int, declared.gripper_dims or getattr(env.unwrapped, "gripper_dims", ())))
    if not all(0 <= dim < size for dim in grippers):
        raise UserError(f"{env} has gripper_dims {grippers}; it has actions 0 to {size - 1}")
    rest = np.asarray(_of_size(declared.rest_action, size, "rest_action"), np.float32) if declared.rest_action else None
    return ActionInterface(low, high, kind, grippers, rest, tuple(notes))


def _at_most(bound: NDArray[np.floating]) -> Float32Array:
    """Return the largest float32 that is not above a bound: a command at it is inside the environment's own."""
    with np.errstate(over="ignore"):  # too large for float32 is not finite, and refused as such
        rounded = bound.astype(np.float32)
    return np.where(rounded > bound, np.nextafter(rounded, np.float32(-np.inf)), rounded)


def read_rate(env: Any, declared: EnvDeclaration) -> tuple[float, str]:
    """Return steps per second, and a sentence if they are assumed."""
    rate = declared.control_hz or (env.metadata or {}).get("render_fps")
    if rate:
        if not (as_number(rate) or 0) > 0:
            expected = "expected a positive number. Declare task.declare.control_hz"
            raise UserError(f"{env} has metadata['render_fps'] {rate!r}; {expected}")
        return float(rate), ""
    remedy = "set task.declare.control_hz, or metadata['render_fps'] of the environment"
    return ASSUMED_HZ, f"{ASSUMED_HZ:g} steps a second are assumed: {remedy}"


def read_sentence(env: Any, declared: EnvDeclaration) -> tuple[str, str]:
    """Return the task in words, and a sentence if they are assumed."""
    own = declared.sentence or getattr(env.unwrapped, "task_description", "")
    if own:
        return str(own), ""
    name = env.spec.id if getattr(env, "spec", None) is not None else type(env.unwrapped).__name__
    words = name.rpartition("/")[2].rpartition(":")[2]
    return words, f"the task sentence is assumed to be {words!r}: declare sentence, or task_description"


def read_dimensions(env: Any, declared: EnvDeclaration, what: Literal["state", "action"], size: int) -> Dimensions:
    """Return the names and units of the ``size`` numbers of the state or the action; they are never made up.

    A wrapper that changes observations or actions hides what the environment inside declares, unless it declares names
    itself. So does a state that is put together of other parts (``declared.state``). What is ``declared`` comes first.

    Raises:
        ConfigError: For names or units that are not as many as the vector has numbers, or a repeated name.
    """
    names, units = getattr(declared, f"{what}_names"), getattr(declared, f"{what}_units")
    if not names and not (what == "state" and declared.state):
        layer = _declaring(env, f"{what}_names", _CHANGES[what])
        names = getattr(layer, f"{what}_names", ())
        units = units or getattr(layer, f"{what}_units", ())
    try:
        return Dimensions(tuple(names), tuple(units)).check_size(size, f"the {what}")
    except UserError as error:
        raise ConfigError(f"{env}: {error}; correct {what}_names and {what}_units") from error


def _declaring(env: Any, attribute: str, changes: type) -> Any:
    """Return the outermost layer of an environment that has an attribute; None if a layer hides it or none has it."""
    while isinstance(env, gymnasium.Wrapper) and not hasattr(env, attribute):
        if isinstance(env, changes):
            return None
        env = env.env
    return env


def _of_size(values: tuple[float, ...], size: int, name: str) -> tuple[float, ...]:
    if len(values) not in (1, size):
        raise ConfigError(f"{name} has {len(values)} numbers; the action has {size}")
    return values * size if len(values) == 1 else values
