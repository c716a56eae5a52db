"""Which number of a policy is which number of a robot, and what differs between two interfaces.

The policy keeps its own order and units. What passes between it and the robot is reordered by name, see `match_robot`;
two policies for one robot are compared by name, see `spec_difference`.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from vla_rl.core.dimensions import UNDECLARED, Dimensions, Match, Pair, match
from vla_rl.core.errors import ConfigError, UserError, did_you_mean
from vla_rl.core.policy_spec import PolicySpec

logger = logging.getLogger(__name__)

_REMEDY = (
    "Choose a policy of this robot, or say which names mean the same: rename={POLICY_NAME: ROBOT_NAME} (in the ROS 2 "
    "node an entry of overrides)"
)


def declared(robot: Any) -> Pair:
    """Return what a robot declares of state and action; UserError for anything but `Dimensions`."""
    found = getattr(robot, "state_dimensions", UNDECLARED), getattr(robot, "action_dimensions", UNDECLARED)
    for dimensions in found:
        if not isinstance(dimensions, Dimensions):
            raise UserError(
                f"{type(robot).__name__} declares its dimensions as {type(dimensions).__name__}; "
                "expected vla_rl.core.dimensions.Dimensions"
            )
    return found


@dataclass(frozen=True)
class RobotMatch:
    """How the numbers of a policy become those of a robot.

    Attributes:
        policy, robot: Interface of the policy towards this robot, in the order, units and names of each.
        state: From the robot's state to the policy's.
        action: From the policy's action to the robot's.
    """

    policy: PolicySpec
    robot: PolicySpec
    state: Match
    action: Match

    @property
    def changes(self) -> bool:
        """Whether anything has to be reordered or converted."""
        return self.state.changes or self.action.changes

    def on_robot(self, dims: Sequence[int]) -> tuple[int, ...]:
        """Return the robot's action dimensions of some of the policy's; those that the robot lacks are left out."""
        index = self.action.index.tolist()
        return tuple(index.index(dim) for dim in dims if dim < len(index))

    def words(self) -> str:
        """Return how state and action are matched, with the names, in one sentence."""
        pairs = zip(("state", "action"), _pair(self.policy), _pair(self.robot), (self.state, self.action), strict=True)
        return "; ".join(f"{what} {_how(own, robots, found)}" for what, own, robots, found in pairs)


def match_robot(
    policy: PolicySpec, action_dim: int, robot: Pair = (UNDECLARED, UNDECLARED), state_dim: int | None = None
) -> RobotMatch:
    """Match a policy with a robot: by name where both declare names, else by position.

    Args:
        policy: Its interface; it may be shared by robots of several sizes.
        action_dim: A of the robot.
        robot: What the robot declares.
        state_dim: S of the robot; None: as many as it declares, else the largest that goes with its A.

    Raises:
        UserError: If sizes differ, a name is missing on either side, or units cannot be converted; with both lists.
    """
    try:
        own = policy.of_robot(action_dim, state_dim or len(robot[0]) or None)
    except UserError as error:
        raise UserError(f"{error}{both_lists(policy, robot)}") from error
    (own_state, own_action), (state, action) = _pair(own), robot
    to_policy = match(own_state, state, own.state_dim, "the policy", "the robot", "state", _REMEDY)
    to_robot = match(action, own_action, own.action_dim, "the robot", "the policy", "action", _REMEDY)
    found = RobotMatch(own, own, to_policy, to_robot)
    steps = tuple(sorted(found.on_robot(own.delta_dims)))
    return replace(found, robot=replace(own, delta_dims=steps, dimensions=(robot,)))


def both_lists(policy: PolicySpec, robot: Pair) -> str:
    """Return the end of an error about sizes: the names on both sides; empty unless both declare some."""
    if not (policy.dimensions and any(robot)):
        return ""
    pairs = {"policy": policy.dimensions_of(policy.state_dim), "robot": robot}
    lists = (f"the {side} {list(state.names)} and {list(action.names)}" for side, (state, action) in pairs.items())
    return f" Names of state and action: {', '.join(lists)}"


def renamed(policy: PolicySpec, names: Mapping[str, str]) -> PolicySpec:
    """Return the interface with the robot's names for the policy's; ConfigError for a name that the policy lacks."""
    known = {name for pair in policy.dimensions for dimensions in pair for name in dimensions.names}
    for name in names:
        if name not in known:
            raise ConfigError(f"rename: the policy has no dimension {name!r}.{did_you_mean(name, known)}")
    if not names:
        return policy
    pairs = tuple((_renamed(state, names), _renamed(action, names)) for state, action in policy.dimensions)
    return replace(policy, dimensions=pairs)


def _pair(spec: PolicySpec) -> Pair:
    return spec.dimensions_of(spec.state_dim)


def _renamed(dimensions: Dimensions, names: Mapping[str, str]) -> Dimensions:
    return Dimensions(tuple(names.get(name, name) for name in dimensions.names), dimensions.units)


def _how(policy: Dimensions, robot: Dimensions, found: Match) -> str:
    if not found.by_name:
        silent = " and ".join(side for side, names in (("policy", policy), ("robot", robot)) if not names)
        return f"by position (no names from the {silent})"
    if not found.changes:
        return f"by name, {robot.words()}"
    return f"by name, {robot.words()} on the robot, {policy.words()} in the policy"
