"""Any teleoperator of lerobot as the person who takes over. What its driver raises never ends the control loop, see
`vla_rl_lerobot.robot`.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, override

import numpy as np

from robot_io.takeover import Clutch
from vla_rl.core.dimensions import Dimensions, Match, match
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.robot_matching import declared
from vla_rl.core.types import Float32Array
from vla_rl_lerobot.devices import GRIPPER_STAYS, unit_of_each

_log = logging.getLogger(__name__)

_DELTAS = ("delta_x", "delta_y", "delta_z")


class Driven(Protocol):
    """What a teleoperator must know of the robot that it drives."""

    @property
    def action_names(self) -> Sequence[str]:
        """Of the A numbers of a command."""
        ...

    def last_command(self) -> Float32Array:
        """Return the command that was sent last, float32 [A]."""
        ...

    def end(self, success: bool | None) -> None:
        """End the attempt, with or without an outcome, for the person."""
        ...


class LerobotTakeover(TakeoverSource):
    """A lerobot teleoperator as the person who takes over, with lerobot's events.

    A device with events (keyboard, gamepad, phone) reports interventions and the end of an attempt itself. A leader arm
    has no events, so ``engaged`` reports them (a pedal, a key, a service). A device that gives deltas (SpaceMouse,
    gamepad, keyboard) moves the tool: ``step`` turns its motion into a command of this robot. A leader arm gives
    positions, which move the robot relatively, so nothing jumps when its posture is another one.

    Args:
        device: a `lerobot.teleoperators.Teleoperator`, connected.
        robot: is posture the outcomes. A device that gives deltas also moves a robot without names for its joints, such
            as an environment.
        engaged: whether the person wants the commands, for devices without events.
        step: (last command [A], motion [3] in the device's units, gripper -1 closes, 0 stays, +1 opens) -> command
            [A]; needed for devices that give deltas.
        absolute_dims: dimensions that follow a leader arm itself (grippers).
        step_dims, quaternions: see `robot_io.takeover.Clutch`.

    Raises:
        UserError: If the device gives deltas without a ``step``, lacks a joint of the robot, or has a unit that cannot
            be converted.
    """

    def __init__(
        self,
        device: Any,
        robot: Driven,
        engaged: Callable[[], bool] | None = None,
        step: Callable[[Float32Array, Float32Array, float], Float32Array] | None = None,
        absolute_dims: Sequence[int] = (),
        step_dims: Sequence[int] = (),
        quaternions: Sequence[int] = (),
    ) -> None:
        self._device, self._robot = device, robot
        self._has_events = hasattr(device, "get_teleop_events")
        if not self._has_events and engaged is None:
            raise UserError(f"{device.name} has no events; say with `engaged` when the person takes over")
        self._engaged, self._step = engaged, step
        self._clutch = Clutch(absolute_dims, step_dims, quaternions)
        self._human = False
        features = device.action_features
        names = features.get("names", features)
        self._gives_deltas = all(name in names for name in _DELTAS)
        if self._gives_deltas and step is None:
            raise UserError(
                f"{device.name} gives motions of the tool in meters; the action of the robot is "
                f"{', '.join(robot.action_names)}. Take over with a leader arm, or pass a `step` that turns motions "
                "into commands"
            )
        self._to_robot: Match | None = None
        if not self._gives_deltas:
            self._to_robot = self._match(names)

    def _match(self, names: Iterable[str]) -> Match:
        """Return how the device's positions become the robot's commands: by name, and in the robot's units."""
        device, commanded = self._device, tuple(self._robot.action_names)
        for name in commanded:
            if name not in names:
                raise UserError(f"{device.name} gives no {name!r}.{did_you_mean(name, names)}")
        given = Dimensions(commanded, unit_of_each(device, commanded))
        wanted = declared(self._robot)[1]
        try:
            return match(wanted, given, len(commanded), "the robot", f"the teleoperator {device.name}", "action")
        except UserError as error:
            raise UserError(f"{error}. Set use_degrees alike: robot.use_degrees, robot.teleop.use_degrees") from error

    @override
    def reset(self, seed: int) -> None:
        self._clutch.release()
        self._human = False

    @override
    def command(self, tick: int, proposed: Float32Array) -> Float32Array | None:
        """Return the person's command of this tick, or None. A device that fails holds the robot still."""
        last = self._robot.last_command()
        try:
            action: Mapping[str, float] = self._device.get_action()  # first: keyboards learn of keys here
            self._human = self._intervenes()
            posture = self._posture(action) if self._human else None
        except Exception as error:  # see vla_rl_lerobot.robot
            wanted = self._human or self._is_engaged()
            doing = "the robot holds" if wanted else "nobody can take over"
            _log.warning("the teleoperator failed (%s: %s); %s", type(error).__name__, error, doing)
            return self._clutch.hold(last) if wanted else None
        if posture is None:
            self._clutch.release()
            return None
        if self._gives_deltas:
            assert self._step is not None
            return self._step(self._clutch.hold(last), posture[:-1], float(posture[-1]))
        return self._clutch.command(posture, last)

    def _posture(self, action: Mapping[str, float]) -> Float32Array:
        """Return the device's posture, or its motion and what the gripper does, float32. Some drivers leave numbers out
        when they have lost a packet, and then this raises.
        """
        if self._gives_deltas:
            gripper = float(action.get("gripper", GRIPPER_STAYS)) - GRIPPER_STAYS
            return np.array([*(action[name] for name in _DELTAS), gripper], np.float32)
        assert self._to_robot is not None
        return self._to_robot.apply(np.array([float(action[name]) for name in self._robot.action_names], np.float32))

    def _is_engaged(self) -> bool:
        """Return whether the person holds the switch; not if that fails, too."""
        try:
            return self._engaged is not None and self._engaged()
        except Exception as error:
            _log.warning("the switch failed (%s)", error)
            return False

    def _intervenes(self) -> bool:
        """Return whether the person acts; what they say about the attempt goes to the robot."""
        if self._has_events:
            from lerobot.teleoperators.utils import TeleopEvents

            events = self._device.get_teleop_events()
            if events.get(TeleopEvents.RERECORD_EPISODE):
                self._robot.end(None)
            elif events.get(TeleopEvents.SUCCESS):
                self._robot.end(True)
            elif events.get(TeleopEvents.TERMINATE_EPISODE) or events.get(TeleopEvents.FAILURE):
                self._robot.end(False)
            if self._engaged is None:
                return bool(events.get(TeleopEvents.IS_INTERVENTION))
        return self._engaged is not None and self._engaged()


def cartesian_step(
    meters_per_unit: float, gripper_dim: int | None = None, gripper_per_tick: float = 0.0
) -> Callable[[Float32Array, Float32Array, float], Float32Array]:
    """Return a ``step`` for robots whose first three commands are the tool's x, y, z in meters."""

    def step(last: Float32Array, motion: Float32Array, gripper: float) -> Float32Array:
        command = last.copy()
        command[:3] += meters_per_unit * motion
        if gripper_dim is not None:
            command[gripper_dim] += gripper * gripper_per_tick
        return command

    return step
