"""Record demonstrations: a person or a script drives a task or a robot, and successes are kept."""

import itertools
import logging
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from robot_io.keyboard import HELP, Keyboard, KeyboardConfig
from robot_io.limits import RobotLimits
from robot_io.motion import MotionSteps
from robot_io.spacemouse import SpaceMouse, SpaceMouseDriver
from robot_io.terminal_keys import TerminalKeys
from vla_rl.acting.action_kinds import delta_dims
from vla_rl.acting.attempt import Attempts, free_names
from vla_rl.acting.robots import RobotRequest, set_up_robot
from vla_rl.acting.task import SimulatorSetup
from vla_rl.acting.task_config import TakeoverConfig, TaskConfig
from vla_rl.core.clock import MonotonicClock, VirtualClock
from vla_rl.core.errors import UserError
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.types import Episode, Origin
from vla_rl.data.store import EpisodeStore
from vla_rl.execution.plan import ActionSource
from vla_rl.execution.sources import SoleDriver
from vla_rl.report.live_view import LiveView

EXPERT, KEYBOARD, SPACEMOUSE, BROWSER = "expert", "keyboard", "spacemouse", "browser"
BY_HAND = (KEYBOARD, SPACEMOUSE)
_FAILURES_IN_A_ROW = 5
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecordConfig:
    """Everything that decides a recording, except the driver.

    Attributes:
        task: what is demonstrated.
        takeover: the driver, if it is a part of ``vla_rl.takeovers``, and its options.
        gate: limits; those that are empty are the environment's.
        keyboard: how keys, and a SpaceMouse, move things.
        robot: the own options of a robot, instead of a task.
    """

    task: TaskConfig = field(default_factory=TaskConfig)
    takeover: TakeoverConfig = field(default_factory=TakeoverConfig)
    gate: RobotLimits = field(default_factory=RobotLimits)
    keyboard: KeyboardConfig = field(default_factory=KeyboardConfig)
    robot: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordOrder:
    """What is asked for: the successes wanted, the store to add to, and the target of a view in rerun, if any.

    The first attempt has ``seed``, every further one the next. None: behind those in the store, so that no start is
    recorded twice.
    """

    store: EpisodeStore
    episodes: int
    seed: int | None = None
    live_view: str | None = None

    def __post_init__(self) -> None:
        if self.episodes < 1:
            raise UserError(f"--episodes is {self.episodes}; it must be at least 1")


def record_task(driver: str, order: RecordOrder, config: RecordConfig) -> list[str]:
    """Record demonstrations of a simulated task. Returns the ids of the episodes that were added.

    The driver is ``expert``, ``keyboard``, ``spacemouse``, or anything else for the takeover source of the config.

    Raises:
        UserError: if the driver cannot drive this task, or a script fails five times in a row.
    """
    by_hand = driver in BY_HAND
    simulator = SimulatorSetup.build(
        config.task.env, config.task, config.gate, MonotonicClock() if by_hand else VirtualClock()
    )
    try:
        if by_hand:
            return _record_by_hand(driver, simulator, order, config.keyboard)
        if driver == EXPERT:
            source: ActionSource = simulator.demonstrator()
        else:
            source = _alone(simulator.supervisor(config.takeover), simulator)
        patience = None if driver == BROWSER else _FAILURES_IN_A_ROW  # a person may fail as often as they like
        return _record(simulator.attempts, source, order, patience=patience)
    finally:
        simulator.robot.close()


def record_robot(name: str, order: RecordOrder, config: RecordConfig) -> list[str]:
    """Record demonstrations on a robot, driven by its own teleoperator. Returns the ids of the added episodes.

    Raises:
        UserError: if the robot has no teleoperator, or it was stopped and a person has to look.
    """
    setup = set_up_robot(name, RobotRequest(None, MonotonicClock(), config.gate, options=config.robot))
    try:
        setup.robot.connect()
        if setup.make_takeover is None:
            raise UserError(f"the robot {name!r} has no teleoperator: name it, robot.teleop={{type: ...}}")
        source = SoleDriver(setup.make_takeover(), setup.gate.config.delta_dims)
        attempts = Attempts(setup.robot, setup.gate, Origin.DEMO, setup.env_id, rearms=setup.origin is Origin.SIM)

        def keeps(episode: Episode) -> bool:
            if setup.gate.latched:
                raise UserError("the gate's stop is latched: look at the robot and at the log, then start again")
            return episode.success is True

        return _record(attempts, source, order, setup.wait_for_person, keeps)
    finally:
        setup.robot.close()


def _record_by_hand(driver: str, simulator: SimulatorSetup, order: RecordOrder, config: KeyboardConfig) -> list[str]:
    """Return the takeover source of a person at this terminal, who drives, begins, ends and labels attempts."""
    robot = simulator.robot
    steps = MotionSteps(robot.actions, robot.control_hz, config.speed)
    driving: TakeoverSource
    if driver == KEYBOARD:
        driving = keyboard = Keyboard(steps, config)
        keys = TerminalKeys(robot.end, press=keyboard.press)
        print(HELP, file=sys.stderr)
    else:
        mouse = SpaceMouse()
        driving, keys = SpaceMouseDriver(mouse, steps, robot.end), TerminalKeys(robot.end)
        mouse.connect()
    keys.start()
    print("s: success; f, r: not to be kept; Enter begins", file=sys.stderr)

    def keeps(episode: Episode) -> bool:
        if robot.judged:
            return episode.success is True
        print("the task does not say how that went. s: a success; f, r: not to be kept", file=sys.stderr)
        return keys.wait_for_outcome() is True

    with LiveView(order.live_view, simulator.env_id) if order.live_view else nullcontext() as view:
        attempts = Attempts(robot, simulator.gate, Origin.DEMO, simulator.env_id, [view] if view is not None else [])
        return _record(attempts, _alone(driving, simulator), order, keys.wait_for_enter, keeps)


def _alone(driving: TakeoverSource, simulator: SimulatorSetup) -> ActionSource:
    return SoleDriver(driving, delta_dims(simulator.robot.action_kind))


def _record(
    attempts: Attempts,
    source: ActionSource,
    order: RecordOrder,
    begin: Callable[[], None] | None = None,
    keeps: Callable[[Episode], bool] = lambda episode: episode.success is True,
    patience: int | None = None,
) -> list[str]:
    """Attempts until there are enough that are to be kept. What is kept is a success.

    A script that has failed ``patience`` times in a row will not stop failing; None: the driver is a person.
    """
    names = free_names(order.store, "demo")
    added: list[str] = []
    episode_id, failures = next(names), 0
    for seed in itertools.count(_first_seed(order)):
        if len(added) == order.episodes:
            break
        if begin is not None:
            print(f"{len(added)}/{order.episodes} recorded; Enter begins {episode_id}", file=sys.stderr)
            begin()
        _, episode = attempts.run(source, episode_id, seed, policy_version=-1, origin=Origin.DEMO)
        failures = 0 if episode.success else failures + 1
        if failures == patience:
            raise UserError(
                f"{patience} attempts in a row were no success in {episode.env_id}. Check its judge by vla-rl task "
                "check (task.declare.success), and that the driver can solve it"
            )
        if not keeps(episode):
            logger.info("seed %d: not kept", seed)
            continue
        order.store.add(replace(episode, success=True))
        logger.info("%s: %d steps, seed %d", episode_id, len(episode), seed)
        added.append(episode_id)
        episode_id = next(names)
    return added


def _first_seed(order: RecordOrder) -> int:
    if order.seed is not None:
        return order.seed
    seeds = (order.store.read_header(name).seed for name in order.store.ids())
    return 1 + max((seed for seed in seeds if seed is not None), default=-1)
