"""Robots and teleoperators of lerobot from the fields of their configs, plug-ins of others included; their serial ports
are this program's alone.
"""

import dataclasses
import fcntl
import importlib
import logging
import os
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import draccus

from robot_io.spacemouse import SpaceMouse
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.progress import announced

_log = logging.getLogger(__name__)

GRIPPER_STAYS = 1.0
"""Of lerobot's gripper actions of devices that give deltas: 0 closes, 1 stays, 2 opens."""
_UNITS = {"degrees": "deg", "range_m100_100": "normalized", "range_0_100": "percent"}
"""Of lerobot's ``MotorNormMode``."""
_TORQUE_OFF = "disable_torque_on_disconnect"


def make_device(what: str, options: Mapping[str, Any]) -> Any:
    """Return the "robot" or "teleoperator" of ``type``, with the other options as its config.

    lerobot registers a type when its module is imported: all are tried.

    Raises:
        UserError: if there is no such type, or the options do not fit the config.
    """
    package = f"lerobot.{what}s"
    with announced("loading lerobot"):
        from lerobot.utils.import_utils import register_third_party_plugins

        parent = importlib.import_module(package)
    register_third_party_plugins()
    for module in pkgutil.iter_modules(parent.__path__):
        try:
            importlib.import_module(f"{package}.{module.name}")
        except ImportError as error:  # the driver of another robot
            _log.debug("%s.%s is left out: %s", package, module.name, error)
    registry = getattr(importlib.import_module(f"{package}.config"), f"{what.capitalize()}Config")
    known, name = registry.get_known_choices(), str(options.get("type"))
    if name not in known:
        raise UserError(f"lerobot has no {what} of type {name!r}.{did_you_mean(name, known)}")
    make = getattr(importlib.import_module(f"{package}.utils"), f"make_{what}_from_config")
    try:
        config = draccus.decode(registry, dict(options))
        if what == "robot":
            _keep_torque(config, options)
        return make(config)
    except Exception as error:  # draccus and the drivers each raise their own
        raise UserError(f"{what} {name!r}: {' '.join(str(error).split())}") from error


def _keep_torque(config: Any, options: Mapping[str, Any]) -> None:
    """Do not let an arm fall at disconnect, unless the options ask for it; two arms have a config each."""
    if hasattr(config, _TORQUE_OFF) and _TORQUE_OFF not in options:
        setattr(config, _TORQUE_OFF, False)
    for field in dataclasses.fields(config):
        part = getattr(config, field.name)
        if dataclasses.is_dataclass(part):
            _keep_torque(part, options.get(field.name) or {})


def unit_of_each(device: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Return the unit of each number of a robot. Positions of motors have ``deg``, ``normalized`` (-100 to 100) or
    ``percent`` (0 to 100), by its buses or its option ``use_degrees``. Other numbers have "".
    """
    known = _motor_units(device)
    in_degrees = getattr(getattr(device, "config", None), "use_degrees", None)
    if not known and in_degrees is not None:
        body = "deg" if in_degrees else "normalized"
        known = {name: "percent" if "gripper" in name else body for name in names if name.endswith(".pos")}
    return tuple(known.get(name, "") for name in names)


def _motor_units(device: Any) -> dict[str, str]:
    motors = getattr(getattr(device, "bus", None), "motors", {})
    units = {f"{name}.pos": _UNITS.get(getattr(motor, "norm_mode", ""), "") for name, motor in motors.items()}
    for side in ("left", "right"):
        arm = getattr(device, f"{side}_arm", None)
        units |= {} if arm is None else {f"{side}_{name}": unit for name, unit in _motor_units(arm).items()}
    return units


def holds_near(config: Any) -> bool:
    """Return whether a driver, or one of its parts, lets no goal be further than so much from where the joint is."""
    if not dataclasses.is_dataclass(config):
        return False
    if getattr(config, "max_relative_target", None) is not None:
        return True
    return any(holds_near(getattr(config, field.name)) for field in dataclasses.fields(config))


def lock_ports(config: Any) -> list[int]:
    """Take the serial ports of a device for it alone. Two programs on one bus would each hold half of the motors, and a
    leader arm on the robot's port would let it fall.

    Returns the file descriptors that hold them. Drivers do not look at the lock, only programs of ours do.

    Raises:
        UserError: for a port that is in use, or cannot be opened.
    """
    held: list[int] = []
    for port in _ports(config):
        try:
            held.append(os.open(port, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK))
            fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            while held:
                os.close(held.pop())
            found = f"cannot be opened ({error.strerror}): is it plugged in, may you use it (group dialout)?"
            if isinstance(error, BlockingIOError):
                found = "is in use, by another program or another device of this one: end that, or name the right port"
            raise UserError(f"port {port} {found}") from error
    return held


def _ports(config: Any) -> list[str]:
    """Return the device files among the fields ``port`` of a config and its parts: two arms have one each."""
    if not dataclasses.is_dataclass(config):
        return []
    parts = [getattr(config, field.name) for field in dataclasses.fields(config)]
    port = getattr(config, "port", None)
    own = [port] if isinstance(port, str) and os.path.exists(port) else []
    return own + [found for part in parts for found in _ports(part)]


class SpaceMouseTeleoperator(SpaceMouse):
    """A SpaceMouse with the interface of lerobot's gamepad. Both buttons at once end the attempt without success."""

    name = "spacemouse"
    action_features: ClassVar[dict[str, Any]] = {"names": {"delta_x": 0, "delta_y": 1, "delta_z": 2, "gripper": 3}}

    def get_action(self) -> dict[str, float]:
        (x, y, z), gripper = self.read()
        return {"delta_x": float(x), "delta_y": float(y), "delta_z": float(z), "gripper": GRIPPER_STAYS + gripper}

    def get_teleop_events(self) -> dict[Any, bool]:
        """Return lerobot's events of the newest reports; call `get_action` before."""
        from lerobot.teleoperators.utils import TeleopEvents

        return {TeleopEvents.IS_INTERVENTION: self.moved, TeleopEvents.TERMINATE_EPISODE: self.both_buttons}
