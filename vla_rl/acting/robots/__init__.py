"""The robots of ``vla-rl rollout --robot NAME``. Each is a function ``set_up(RobotRequest) -> RobotSetup``, imported
when it is named, so that no robot's packages are needed for another one. `vla_rl.core.registry` gives it its name.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from robot_io.description import Description
from robot_io.gate import GateConfig, SafetyGate
from robot_io.limits import check_names
from vla_rl.core.clock import Clock
from vla_rl.core.dimensions import UNDECLARED, Pair
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Subscriber, TakeoverSource
from vla_rl.core.registry import find
from vla_rl.core.robot_matching import both_lists, declared, match_robot
from vla_rl.core.signals import robot_is_connected
from vla_rl.core.types import Origin
from vla_rl.execution.loop import EpisodicRobot


@dataclass(frozen=True)
class RobotRequest:
    """What a robot is set up for.

    Attributes:
        policy: the interface of the policy that will act; None: only a person acts.
        clock: monotonic with ``--realtime``, else virtual. A robot that lives in real time refuses a virtual one.
        gripper_dims: dimensions of the policy's action that a takeover commands absolutely: its discrete ones.
        gate: limits from ``--limits`` and overrides; the empty ones are the robot's own.
        task: the section ``task`` of the run's config, where there is one.
        takeover: the section ``takeover`` of the run's config: who supervises a simulated robot.
        options: ``robot.KEY=VALUE`` overrides, for the robot's own configuration.
    """

    policy: PolicySpec | None
    clock: Clock
    gate: GateConfig
    gripper_dims: tuple[int, ...] = ()
    task: Mapping[str, Any] = field(default_factory=dict)
    takeover: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    def grippers_of(self, robot: Sequence[str]) -> tuple[int, ...]:
        """Return the robot's own dimensions of ``gripper_dims``: by name where the policy has the names of the robot's
        action dimensions, else by position. Those of the limits, where the policy has none.
        """
        if self.policy is None or not self.gripper_dims:
            return () if self.policy is None else tuple(self.gate.discrete_dims)
        policy = self.policy.of_robot(len(robot))
        names = policy.dimensions_of(policy.state_dim)[1].names
        if set(names) != set(robot):
            return tuple(dim for dim in self.gripper_dims if dim < len(robot))
        return tuple(list(robot).index(names[dim]) for dim in self.gripper_dims if dim < len(names))


@dataclass(frozen=True)
class RobotSetup:
    """A robot ready to be connected, and what belongs to it.

    Attributes:
        robot: the caller closes it.
        gate: with the robot's limits.
        origin: real or sim; after a stop a real robot waits for a person.
        env_id: the name under which its episodes are stored.
        make_takeover: makes the takeover source of ``--takeover``; None: there is none.
        wait_for_person: returns when a person at the terminal lets the next attempt begin; None for simulators, and
            where a service prepares the scene.
        stop_input: how a person can stop it beside the gate; empty: not at all.
        description: the URDF to which the limits have been held; None: there is none.
        subscribers: the robot's own; they get every step.
    """

    robot: EpisodicRobot
    gate: SafetyGate
    origin: Origin
    env_id: str
    make_takeover: Callable[[], TakeoverSource] | None = None
    wait_for_person: Callable[[], None] | None = None
    stop_input: str = ""
    description: Description | None = None
    subscribers: Sequence[Subscriber] = ()


def check_fits(
    policy: PolicySpec,
    cameras: Collection[str],
    state_dim: int,
    action_dim: int,
    dimensions: Pair = (UNDECLARED, UNDECLARED),
) -> None:
    """Refuse a robot that the policy was not trained on, before anything is connected. It may have more cameras.

    Raises:
        UserError: for a missing camera, a state or an action of another size, or other names.
    """
    for camera in policy.cameras:
        if camera not in cameras:
            raise UserError(f"the policy needs a camera {camera!r}, the robot has none.{did_you_mean(camera, cameras)}")
    if policy.action_sizes.get(state_dim) != action_dim:
        expected = " or ".join(f"{state} and {action}" for state, action in policy.action_sizes.items())
        raise UserError(
            f"the robot has {state_dim} numbers of state and {action_dim} of action, "
            f"the policy was trained on {expected}. Was it trained on this robot?{both_lists(policy, dimensions)}"
        )
    match_robot(policy, action_dim, dimensions, state_dim)


def check_rate(policy: PolicySpec, control_hz: float, any_rate: bool) -> None:
    """Refuse to play a policy's actions faster or slower than they were learned.

    Raises:
        UserError: for another rate than the policy's, unless ``any_rate`` says that it is wanted.
    """
    if not any_rate and abs(control_hz - policy.control_hz) > 0.01 * policy.control_hz:
        raise UserError(
            f"control_hz is {control_hz:g}, and the policy acts at {policy.control_hz:g} Hz. The robot would move "
            f"{control_hz / policy.control_hz:.2g} times as fast as in training. Leave control_hz out, "
            "or set any_rate to true"
        )


def set_up_robot(name: str, request: RobotRequest) -> RobotSetup:
    """Set up the robot of that name; UserError for an unknown one, and whatever the robot refuses."""
    set_up: Callable[[RobotRequest], RobotSetup] = find("robots", name)
    setup = set_up(request)
    if setup.origin is Origin.REAL:
        robot_is_connected()
    check_names(request.gate, declared(setup.robot)[1])
    return setup
