"""Before it moves your arm: a list of questions about policy, limits and robot, each answered with yes or no.

``vla-rl robot check`` uses it: it connects and reads the robot and sends nothing. The ROS 2 node prints its part of the
list when it is configured.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robot_io.description import Description
from robot_io.gate import SafetyGate
from robot_io.joint_monitor import measures_effort
from robot_io.limits import RobotLimits, check_limits
from vla_rl.acting.capability import check_strategy
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.acting.robots import RobotRequest, RobotSetup, check_rate, set_up_robot
from vla_rl.acting.rollout import RolloutConfig
from vla_rl.core.clock import MonotonicClock
from vla_rl.core.dimensions import Pair
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import Condition
from vla_rl.core.robot_matching import declared, match_robot, renamed
from vla_rl.execution.strategies import ExecutionConfig


@dataclass(frozen=True)
class Item:
    """One line of the list: a question to which yes is good, the answer, and its grounds or what to do about it."""

    question: str
    answer: bool
    found: str = ""

    def __str__(self) -> str:
        return f"{'yes' if self.answer else 'NO '}  {self.question}{': ' + self.found if self.found else ''}"


@contextlib.contextmanager
def _asked(items: list[Item], question: str, found: str = "") -> Iterator[None]:
    """Add the answer yes, unless the block inside is refused."""
    try:
        yield
        items.append(Item(question, True, found))
    except UserError as error:
        items.append(Item(question, False, str(error)))


def settings_items(
    policy: PolicyFolder,
    execution: ExecutionConfig,
    limits: RobotLimits,
    control_hz: float,
    watched: bool = False,
    description: Description | None = None,
) -> list[Item]:
    """Answer the questions that need no robot: on policy, execution, the limits of the gate and the rate of the loop.

    With ``watched``, newer versions will replace the policy. The limits have been held to ``description``.
    """
    items: list[Item] = []
    sizes = sorted(policy.spec.action_sizes.values())
    with _asked(items, "limits are present and finite for each joint, watchdog times are finite", f"{len(limits.low)}"):
        # Whether there are kinematics for what needs them has been looked at when the gate was made.
        check_limits(limits, control_hz, 1, has_tool_position=True, sees_itself=True)
        limits.joint_monitor.check(len(limits.low))
        if len(limits.low) not in sizes:
            raise UserError(f"the limits are those of {len(limits.low)} joints, the policy commands {sizes}")
    if description is not None:
        items.append(Item("limits are within the robot's description", True, description.words()))
    with _asked(items, "the rate is the policy's", f"{control_hz:g} Hz"):
        check_rate(policy.spec, control_hz, any_rate=False)
    with _asked(items, "the policy supports the execution strategy", execution.strategy):
        check_strategy(execution, policy, watched)
        execution.check_fit(policy.horizon, policy.prefix_ticks)
    items.append(Item("the robot does not stand still to think", execution.strategy != "sync", execution.strategy))
    return items


def names_item(policy: PolicySpec, action_dim: int, robot: Pair) -> Item:
    """Return how the numbers of a robot are matched with those of the policy. Arguments as of `match_robot`."""
    question = "state and action of the robot are the policy's"
    try:
        return Item(question, True, match_robot(policy, action_dim, robot).words())
    except UserError as error:
        return Item(question, False, str(error))


def robot_items(setup: RobotSetup, policy: PolicySpec) -> list[Item]:
    """What the connected robot says of itself. It is read several times, and nothing is sent to it."""
    items: list[Item] = []
    robot, gate = setup.robot, setup.gate
    with _asked(items, "the robot speaks: every stream, the joints several times"):
        robot.reset(0)
    if not items[0].answer:
        return items
    posture = getattr(robot, "rest_readings", robot.rest_command)()
    with _asked(items, "readings agree, and the rest posture is inside the limits", _numbers(posture)):
        gate.reset(posture)
    observation, now_ns = robot.read(), robot.clock.now_ns()
    with _asked(items, "cameras have the policy's names and sizes", ", ".join(policy.cameras)):
        policy.check(observation)
    ages_ms = {stream: (now_ns - at_ns) * 1e-6 for stream, at_ns in observation.captured_ns.items()}
    old = {name: age_ms for name, age_ms in ages_ms.items() if age_ms > gate.config.max_observation_age_ms}
    told = ", ".join(f"{name} {age_ms:.0f} ms" for name, age_ms in (old or ages_ms).items())
    items.append(Item(f"readings are younger than {gate.config.max_observation_age_ms:g} ms", not old, told))
    items.append(_watched(gate, getattr(robot, "condition", None)))
    items.append(stop_item(setup.stop_input))
    return items


def stop_item(stop_input: str) -> Item:
    """Return whether a person can stop the robot beside the gate."""
    return Item("a person can stop it by hand", bool(stop_input), stop_input or "see docs/before_it_moves.md")


def _watched(gate: SafetyGate, condition: Callable[[], Condition] | None) -> Item:
    question = "the joints are watched while they move"
    if condition is None:
        return Item(question, False, "the robot has no method condition()")
    if not gate.config.joint_monitor.max_effort:
        return Item(question, True, "effort is not limited")
    told = measures_effort(condition())
    return Item(question, told, "effort too" if told else "max_effort is set, and the robot reports no effort")


def check_robot(name: str, policy: PolicyFolder, config: RolloutConfig, options: Mapping[str, Any]) -> Sequence[Item]:
    """Return the whole list for a robot of `vla_rl.acting.robots`, with its own options, in real time."""
    items: list[Item] = []
    policy = replace(policy, spec=renamed(policy.spec, config.rename))
    request = RobotRequest(
        policy.spec, MonotonicClock(), config.gate, policy.discrete_dims, config.task, config.takeover, options
    )
    with _asked(items, "the robot fits policy and limits, and no other program commands it", name):
        setup = set_up_robot(name, request)
    if not items[0].answer:
        return [*settings_items(policy, config.execution, config.gate, policy.spec.control_hz), *items]
    limits, hz = setup.gate.config, setup.robot.control_hz
    items.append(names_item(policy.spec, len(limits.low), declared(setup.robot)))
    items = [*settings_items(policy, config.execution, limits, hz, description=setup.description), *items]
    with _asked(items, "it can be connected"):
        setup.robot.connect()
    try:
        return [*items, *robot_items(setup, policy.spec)] if items[-1].answer else items
    finally:
        setup.robot.close()


def _numbers(posture: Any) -> str:
    rows = np.atleast_2d(posture)
    median = ", ".join(f"{value:.3g}" for value in np.median(rows, axis=0))
    return f"{len(rows)} reading{'s' if len(rows) > 1 else ''} of [{median}]"
