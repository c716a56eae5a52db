"""Where the parts of a robot are at a command, and whether two of them come too close: MuJoCo, reading a URDF."""

import itertools
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from robot_io.limits import RobotLimits
from vla_rl.core.errors import UserError, did_you_mean
from vla_rl.core.types import Float32Array

_SAMPLES = 200


class Kinematics:
    """Where the parts of a robot are at a command. Called from the control thread only.

    A joint that is neither commanded nor mimics a commanded one rests at 0, or at the limit next to it. The tool must
    not hang on one; links that do are not looked at for self-collision, see `unwatched`.

    Args:
        xml: a URDF with MuJoCo's extension.
        joints, units: as of `Description`.
        limits: with ``tool_link``, ``self_distance`` and ``touching``.

    Attributes:
        tool: the link whose place is limited; empty if none is.
        pairs: the names of the links that are kept apart.
        unwatched: Links that are not kept apart from others, since their place is unknown.

    Raises:
        UserError: Without MuJoCo, or for a URDF that it does not read. For a missing link, or one on a joint without
            commands. For links that are always closer than ``self_distance``.
    """

    def __init__(self, xml: str, joints: Sequence[str], units: NDArray[np.float64], limits: RobotLimits) -> None:
        try:
            import mujoco
        except ImportError as error:
            raise UserError("kinematics of a robot's description need MuJoCo: pip install 'vla-rl[ros]'") from error
        self._mujoco = mujoco
        try:
            self._model = model = mujoco.MjModel.from_xml_string(xml)
        except ValueError as error:
            raise UserError(f"MuJoCo does not read the robot's description: {' '.join(str(error).split())}") from error
        self._data = mujoco.MjData(model)
        self._links = [model.body(body).name for body in range(model.nbody)]
        self._command_to_joints(ElementTree.fromstring(xml), joints, units)
        self._distance = limits.self_distance
        self.tool = limits.tool_link if limits.workspace_low else ""
        if limits.workspace_low:
            self._tool = self._find(limits.tool_link, "tool_link")
            if self._free[self._tool]:
                raise UserError(f"tool_link {limits.tool_link!r} hangs on a joint without commands")
        self.unwatched = sorted({self._links[body] for body in model.geom_bodyid if self._free[body]})
        touching = [tuple(self._find(link, "touching") for link in pair) for pair in limits.touching]
        self._geoms = self._pairs_of_geoms(touching)
        first, second = self._geoms.T
        self._reach = model.geom_rbound[first] + model.geom_rbound[second] + self._distance
        self.pairs = sorted({self._names_of(pair) for pair in self._geoms})
        if self._distance:
            self._refuse_always_close(limits)

    def tool_position(self, command: Float32Array) -> NDArray[np.float64]:
        """x, y, z of the tool's link in the frame of the root link, meters, float64 [3], at a command [A]."""
        self._place(command)
        position: NDArray[np.float64] = self._data.xpos[self._tool].copy()
        return position

    def too_close(self, command: Float32Array) -> bool:
        """Return whether two parts of the robot are closer than ``self_distance`` at a command [A]."""
        self._place(command)
        places = self._data.geom_xpos[self._geoms]
        apart = np.linalg.norm(places[:, 0] - places[:, 1], axis=1)
        return any(self._closer(pair) for pair in self._geoms[apart < self._reach])  # their bounding spheres are close

    def _place(self, command: Float32Array) -> None:
        self._data.qpos[:] = self._offset + self._gain @ command
        self._mujoco.mj_kinematics(self._model, self._data)

    def _closer(self, pair: NDArray[np.intp]) -> bool:
        distance = self._mujoco.mj_geomDistance(
            self._model, self._data, int(pair[0]), int(pair[1]), self._distance, None
        )
        return bool(distance < self._distance)

    def _command_to_joints(self, robot: Any, joints: Sequence[str], units: NDArray[np.float64]) -> None:
        """Every joint of the model is ``offset + gain @ command``; links behind a joint that is not are free."""
        model = self._model
        mimics = {joint.get("name"): joint.find("mimic") for joint in robot.findall("joint")}
        self._gain = np.zeros((model.nq, len(joints)))
        self._offset = np.zeros(model.nq)
        self._free = np.zeros(model.nbody, bool)
        for index in range(model.njnt):
            joint, factor, shift = model.joint(index).name, 1.0, 0.0
            if (mimic := mimics.get(joint)) is not None:
                joint = mimic.get("joint", "")
                factor, shift = float(mimic.get("multiplier", 1.0)), float(mimic.get("offset", 0.0))
            if joint in joints:
                dim = joints.index(joint)
                self._gain[index, dim], self._offset[index] = factor * units[dim], shift
            else:
                self._offset[index] = np.clip(0.0, *model.jnt_range[index]) if model.jnt_limited[index] else 0.0
                self._free[model.jnt_bodyid[index]] = True
        for body in range(1, model.nbody):  # parents come first
            self._free[body] |= self._free[model.body_parentid[body]]

    def _pairs_of_geoms(self, touching: Sequence[tuple[int, ...]]) -> NDArray[np.intp]:
        """Return the shapes in known places, [N, 2], of links that may not touch and that no joint connects."""
        model, welded = self._model, self._model.body_weldid
        parts = [int(part) for part in range(model.ngeom) if not self._free[model.geom_bodyid[part]]]
        allowed = {frozenset(pair) for pair in touching}
        pairs = []
        for one, other in itertools.combinations(parts, 2):
            bodies = int(model.geom_bodyid[one]), int(model.geom_bodyid[other])
            a, b = bodies
            joined = welded[a] == welded[b] or a == model.body_parentid[b] or b == model.body_parentid[a]
            if not joined and frozenset(bodies) not in allowed:
                pairs.append((one, other))
        return np.asarray(pairs, np.intp).reshape(-1, 2)

    def _refuse_always_close(self, limits: RobotLimits) -> None:
        """Shapes that overlap in every posture would let nothing through."""
        random = np.random.default_rng(0)
        left = list(self._geoms)
        for _ in range(_SAMPLES):
            self._place(random.uniform(limits.low, limits.high).astype(np.float32))
            left = [pair for pair in left if self._closer(pair)]
            if not left:
                return
        names = ", ".join(f"[{first}, {second}]" for first, second in sorted(map(self._names_of, left)))
        raise UserError(
            f"these links are closer than {self._distance:g} m in all of {_SAMPLES} postures: {names}. "
            "If they may touch, name them in the limits' touching"
        )

    def _names_of(self, pair: NDArray[np.intp]) -> tuple[str, str]:
        first, second = sorted(self._links[self._model.geom_bodyid[part]] for part in pair)
        return first, second

    def _find(self, link: str, what: str) -> int:
        if link not in self._links[1:]:
            raise UserError(
                f"{what} of the limits is {link!r}, which the robot's description does not have."
                f"{did_you_mean(link, self._links[1:])}"
            )
        return self._links.index(link)
