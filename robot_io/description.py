"""The URDF of a robot: joint limits, the place of the tool at a command, and distances between parts of the robot. A
file of limits may tighten the joint limits and never loosen them.

Joint limits and soft limits (``safety_controller``) are read from the XML; the kinematics and the distances between
collision shapes are MuJoCo's, which reads URDF itself. Meshes count as their convex hulls, which contain them. A caller
that commands in other units than radians and meters gives the size of its unit.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from robot_io.gate import SafetyGate
from robot_io.kinematics import Kinematics
from robot_io.limits import RobotLimits
from vla_rl.core.errors import ConfigError, UserError, did_you_mean

_COMPILER = {"fusestatic": "false", "discardvisual": "true", "balanceinertia": "true", "strippath": "false"}
_LIGHTEST = {"boundmass": "0.001", "boundinertia": "1e-6"}  # MuJoCo wants masses; kinematics does not
_READABLE = (".stl", ".obj")
_ROUNDING = 1e-5  # of the number: a file of limits is typed with so many digits
_UNITS = {"revolute": "rad", "continuous": "rad", "prismatic": "m"}  # of the joints that move


@dataclass(frozen=True)
class JointLimits:
    """Limits of one joint in the units of the command, effort in N m or N; infinite where the description gives none.

    ``low`` and ``high`` are the narrower of the joint's limits and its soft limits.
    """

    low: float = -math.inf
    high: float = math.inf
    velocity: float = math.inf
    effort: float = math.inf


class Description:
    """The URDF of a robot, for the joints that are commanded.

    Args:
        source: the XML, or the path of a file.
        joints: of the action, in its order; "" for a dimension that the description does not know.
        units: the size of one unit of each dimension, in radians or meters, [A]; empty: all 1.

    Attributes:
        limits: of each dimension.
        kinematics: After `make_gate`, if the limits ask for it.

    Raises:
        UserError: for XML that cannot be read, or a joint that it does not have.
    """

    def __init__(self, source: str, joints: Sequence[str], units: Sequence[float] = ()) -> None:
        self._root, self._folder = _read(source)
        self._joints = {joint.get("name", ""): joint for joint in self._root.findall("joint")}
        self.joints = tuple(joints)
        self._units = np.asarray(units or [1.0] * len(joints), np.float64)
        moving = [name for name, joint in self._joints.items() if joint.get("type") in _UNITS]
        for joint in filter(None, joints):
            if joint not in moving:
                raise UserError(
                    f"the robot's description has no joint {joint!r} that moves.{did_you_mean(joint, moving)}"
                )
        self.kinematics: Kinematics | None = None
        self.limits = tuple(self._limits_of(*pair) for pair in zip(joints, self._units, strict=True))

    def tighten(self, limits: RobotLimits) -> RobotLimits:
        """Return the limits, with empty ones filled from the description. Steps (``delta_dims``) stay unchanged.

        Raises:
            ConfigError: for a limit that is wider than the description's, naming joint and numbers, or that neither of
                the two gives.
        """
        low = self._merge(limits.low, "low", [joint.low for joint in self.limits], limits, above=False)
        high = self._merge(limits.high, "high", [joint.high for joint in self.limits], limits)
        velocity = self._merge(limits.max_velocity, "max_velocity", [joint.velocity for joint in self.limits], limits)
        efforts, monitor = [joint.effort for joint in self.limits], limits.joint_monitor
        if monitor.max_effort or np.isfinite(efforts).all():
            monitor = replace(
                monitor, max_effort=self._merge(monitor.max_effort, "joint_monitor.max_effort", efforts, limits)
            )
        return replace(limits, low=low, high=high, max_velocity=velocity, joint_monitor=monitor)

    def make_kinematics(self, limits: RobotLimits) -> Kinematics:
        """Return what the limits need to know of workspace and self-collision."""
        return Kinematics(self._xml(with_shapes=limits.self_distance > 0), self.joints, self._units, limits)

    def words(self) -> str:
        """Describe the limits that hold the robot, for the list before it moves."""
        found = [f"{sum(map(bool, self.joints))} of {len(self.joints)} dimensions"]
        if self.kinematics is None:
            return found[0]
        if tool := self.kinematics.tool:
            found.append(f"the workspace of {tool}")
        if pairs := self.kinematics.pairs:
            found.append(f"{len(pairs)} pairs of links kept apart")
        if unwatched := self.kinematics.unwatched:
            found.append(f"NOT {', '.join(unwatched)}, which nobody commands")
        return ", ".join(found)

    def _limits_of(self, name: str, unit: float) -> JointLimits:
        joint = self._joints.get(name)
        if joint is None:
            return JointLimits()
        hard, soft = joint.find("limit"), joint.find("safety_controller")
        bounds = [(_number(soft, "soft_lower_limit"), _number(soft, "soft_upper_limit"))]
        if joint.get("type") != "continuous":
            bounds.append((_number(hard, "lower", 0.0), _number(hard, "upper", 0.0)))
        velocity, effort = _number(hard, "velocity"), _number(hard, "effort")
        return JointLimits(
            low=max((low / unit for low, _ in bounds if low is not None), default=-math.inf),
            high=min((high / unit for _, high in bounds if high is not None), default=math.inf),
            velocity=velocity / unit if velocity else math.inf,  # 0: unknown
            effort=effort or math.inf,
        )

    def _merge(
        self, given: tuple[float, ...], what: str, described: Sequence[float], limits: RobotLimits, above: bool = True
    ) -> tuple[float, ...]:
        """Of each dimension the number of the file, which must not be wider, or the description's."""
        if given and len(given) != len(described):
            return given  # refused by the gate, which says what does not fit
        for dim, bound in enumerate(described):
            name = self.joints[dim] or f"dimension {dim}"
            if not given and not math.isfinite(bound):
                raise ConfigError(
                    f"neither the limits nor the robot's description give {what} of {name}; write it down"
                )
            if not given or not math.isfinite(bound) or dim in limits.delta_dims:
                continue
            over = given[dim] - bound if above else bound - given[dim]
            if over > _ROUNDING * max(abs(bound), 1e-3):
                raise ConfigError(
                    f"the limits let {what} of {name} be {given[dim]:g}, the robot's description says {bound:.6g}: "
                    "limits may tighten it, never loosen it"
                )
        return given or tuple(map(float, described))

    def _xml(self, with_shapes: bool) -> str:
        """Return the URDF as MuJoCo takes it: meshes found, or no shapes at all."""
        robot = ElementTree.fromstring(ElementTree.tostring(self._root))
        for own in robot.findall("mujoco"):
            robot.remove(own)
        extension = ElementTree.SubElement(robot, "mujoco")
        ElementTree.SubElement(extension, "compiler", {**_COMPILER, **_LIGHTEST})
        for link in robot.findall("link"):
            for visual in link.findall("visual"):
                link.remove(visual)
            for shape in link.findall("collision"):
                mesh = shape.find("geometry/mesh")
                if not with_shapes:
                    link.remove(shape)
                elif mesh is not None:
                    mesh.set("filename", str(self._mesh(mesh.get("filename", ""), link.get("name", ""))))
        return ElementTree.tostring(robot, encoding="unicode")

    def _mesh(self, name: str, link: str) -> Path:
        path = self._folder / name.removeprefix("file://")
        if name.startswith("package://"):
            package, _, inside = name.removeprefix("package://").partition("/")
            with contextlib.suppress(Exception):  # no sourced ROS, or no such package: as if the file were not there
                from ament_index_python.packages import get_package_share_directory

                path = Path(get_package_share_directory(package)) / inside
        if not path.is_file() or path.suffix.lower() not in _READABLE:
            raise UserError(
                f"self_distance needs the collision shape of link {link!r}; {name!r} is missing or no "
                f"{' or '.join(_READABLE)} file. "
                "Source its package, or describe the link by cylinders, boxes and spheres"
            )
        return path


def joint_units(source: str) -> dict[str, str]:
    """Return the unit of each joint that moves, ``rad`` or ``m``. Argument and errors as of `Description`."""
    joints = _read(source)[0].findall("joint")
    return {joint.get("name", ""): _UNITS[kind] for joint in joints if (kind := joint.get("type", "")) in _UNITS}


def _read(source: str) -> tuple[Any, Path]:
    """Return the root of a URDF, given as XML or as a file, and the folder of the file."""
    text, folder = source.lstrip(), Path()
    if not text.startswith("<"):
        path = Path(source).expanduser()
        if not path.is_file():
            raise UserError(f"the robot's description {source!r} is neither XML nor a file")
        text, folder = path.read_text(), path.resolve().parent
    try:
        root = ElementTree.fromstring(text.encode())
    except ElementTree.ParseError as error:
        raise UserError(f"the robot's description is no XML ({error}); a xacro file has to be expanded") from error
    if root.tag != "robot":
        raise UserError(f"the robot's description is <{root.tag}>, expected a URDF, which begins with <robot>")
    return root, folder


def make_gate(
    limits: RobotLimits,
    rate_hz: float,
    commands_per_tick: int,
    names: Sequence[str],
    description: Description | None,
) -> SafetyGate:
    """Return the gate of a robot. Its description, where it has one, tightens the limits and knows its shape.

    Raises:
        UserError: See `Description.tighten`, `Kinematics` and `SafetyGate`.
    """
    if description is not None:
        limits = description.tighten(limits)
        if limits.workspace_low or limits.self_distance:
            shape = description.kinematics = description.make_kinematics(limits)
            return SafetyGate(limits, rate_hz, commands_per_tick, shape.tool_position, names, shape.too_close)
    return SafetyGate(limits, rate_hz, commands_per_tick, names=names)


def _number(element: Any, attribute: str, default: float | None = None) -> float | None:
    """Return a finite attribute, or the default of an element that is there; None where there is none."""
    if element is None:
        return None
    text = element.get(attribute)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError as error:
        raise UserError(f"the robot's description has {attribute}={text!r}, which is no number") from error
    return value if math.isfinite(value) else None
