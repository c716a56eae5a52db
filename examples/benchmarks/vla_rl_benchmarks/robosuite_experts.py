"""Scripted experts of the robosuite tasks: a few motions one after the other, each steered by the true state."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vla_rl_benchmarks.robosuite_tasks import STEP_M, RobosuiteEnv
from vla_rl_benchmarks.scene import StepExpert

Vector = NDArray[np.float64]
_OPEN, _CLOSED = -1.0, 1.0
_TURN_RAD = 0.5  # turn that an action of 1 asks of the hand in a step
_ABOVE = np.array([0.0, 0.0, 0.08])
_CLOSING_STEPS = 8
_INTEGRAL = 0.15  # share of the nut's offset from its peg that is added to the correction at every step


class RobosuiteExpert(StepExpert):
    """Scripted solution of one task."""

    env: RobosuiteEnv
    meters_per_action = STEP_M
    fold = 2 * np.pi  # turns of the object by this angle look the same to the fingers

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._gripper, self._progress = _OPEN, 0.0
        self._actions = self._script()

    def _plan(self) -> Vector:
        return next(self._actions)

    def progress(self) -> float:
        """Share of the motions that are finished, 0 to 1."""
        return self._progress

    @property
    def hand(self) -> Vector:
        """Position of the grip point, [3] meters."""
        position: Vector = self.env.seen["robot0_eef_pos"]
        return position

    @abstractmethod
    def grip_point(self) -> Vector:
        """Where the hand must be to hold the object, [3] meters."""

    @abstractmethod
    def place(self, top: Vector) -> Iterator[Vector]:
        """Actions from the lifted object to the end, given where the hand lifted it to."""

    def yaw_error(self) -> float:
        """Turn that lines the fingers up with the object, radians."""
        return 0.0

    def _script(self) -> Iterator[Vector]:
        yield from self._reach(lambda: self.grip_point() + _ABOVE, within=0.02, turned=0.08)
        yield from self._reach(self.grip_point, within=0.01)
        self._gripper, self._progress = _CLOSED, 0.25
        for _ in range(_CLOSING_STEPS):
            yield self._action(0.2 * (self.grip_point() - self.hand))
        self._progress = 0.5
        top = self.hand + np.array([0.0, 0.0, 0.2])
        yield from self._reach(lambda: top, within=0.03, turned=None)
        self._progress = 0.75
        yield from self.place(top)
        self._progress = 1.0
        while True:
            yield self._action(np.zeros(3))

    def _reach(self, point: Callable[[], Vector], within: float, turned: float | None = np.inf) -> Iterator[Vector]:
        """Move until the hand is near a point, and turned to the object within an angle; None: without turning."""
        while True:
            way, turn = point() - self.hand, 0.0 if turned is None else self.yaw_error()
            if np.linalg.norm(way) < within and (turned is None or abs(turn) < turned):
                return
            yield self._action(way, turn)

    def _action(self, way: Vector, turn: float = 0.0) -> Vector:
        """The action [7] that moves the hand by `way`, turns it about the vertical and keeps it looking down."""
        tilt = np.cross(self._axes()[:, 2], [0.0, 0.0, -1.0])
        turns = np.clip((tilt + np.array([0.0, 0.0, turn])) / _TURN_RAD, -0.5, 0.5)
        return np.concatenate([np.clip(way / STEP_M, -1.0, 1.0), turns, [self._gripper]])

    def _axes(self) -> Vector:
        """Rotation [3, 3] of the hand; its fingers close along the second axis."""
        site = self.env.native.robots[0].eef_site_id["right"]
        rotation: Vector = self.env.data.site_xmat[site].reshape(3, 3)
        return rotation

    def _turn_to(self, yaw: float) -> float:
        """The shortest turn of the fingers to a yaw, radians, given what looks the same."""
        fingers = self._axes()[:, 1]
        return float((yaw - np.arctan2(fingers[1], fingers[0]) + self.fold / 2) % self.fold - self.fold / 2)


class LiftExpert(RobosuiteExpert):
    """Takes the cube by two of its sides and lifts it."""

    fold = np.pi / 2

    def grip_point(self) -> Vector:
        position: Vector = self.env.seen["cube_pos"]
        return position

    def yaw_error(self) -> float:
        x, y, z, w = self.env.seen["cube_quat"]
        return self._turn_to(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))

    def place(self, top: Vector) -> Iterator[Vector]:
        yield self._action(top - self.hand)


class PickPlaceCanExpert(RobosuiteExpert):
    """Takes the can at its upper end, carries it over its compartment and drops it there."""

    def grip_point(self) -> Vector:
        return self.env.seen["Can_pos"] + [0.0, 0.0, 0.02]

    def place(self, top: Vector) -> Iterator[Vector]:
        goal = np.asarray(self.env.native.target_bin_placements[self.env.native.object_id])
        while np.linalg.norm(way := (goal - self.env.seen["Can_pos"])[:2]) > 0.04:
            yield self._action(np.append(way, top[2] - self.hand[2]))
        while (way_down := self.hand[2] - (goal[2] + 0.12)) > 0.02:
            yield self._action(np.array([0.0, 0.0, -way_down]))
        self._gripper = _OPEN
        for _ in range(_CLOSING_STEPS):
            yield self._action(np.array([0.0, 0.0, 0.05]))


class NutAssemblySquareExpert(RobosuiteExpert):
    """Takes the nut by its handle, lines it up with the peg and lets it down.

    The arm settles a few millimeters beside its target, more than the peg leaves free: an integral corrects it.
    """

    fold = np.pi

    def __init__(self, env: Any, action_noise: float = 0.0) -> None:
        super().__init__(env, action_noise)
        native = self.env.native
        (self._nut,) = (nut for nut in native.nuts if "square" in nut.name.lower())
        self._body, self._peg = native.obj_body_id[self._nut.name], native.peg1_body_id
        self._handle = native.sim.model.site_name2id(self._nut.important_sites["handle"])

    def grip_point(self) -> Vector:
        position: Vector = self.env.data.site_xpos[self._handle].copy()
        return position

    def yaw_error(self) -> float:
        return self._turn_to(self._nut_yaw())

    def place(self, top: Vector) -> Iterator[Vector]:
        correction, steady = np.zeros(2), 0
        while steady < 3:
            off, turn = self._off_peg(), self._off_square()
            correction += _INTEGRAL * off * (np.linalg.norm(off) < 0.03)
            yield self._action(np.append(off + correction, top[2] - self.hand[2]), turn)
            steady = steady + 1 if np.linalg.norm(off) < 0.004 and abs(turn) < 0.04 else 0
        while self.env.data.xpos[self._body][2] > self.env.native.table_offset[2] + 0.045:
            off = self._off_peg()
            correction += _INTEGRAL * off
            yield self._action(np.append(off + correction, -0.03), self._off_square())
        self._gripper = _OPEN

    def _nut_yaw(self) -> float:
        rotation = self.env.data.xmat[self._body].reshape(3, 3)
        return float(np.arctan2(rotation[1, 0], rotation[0, 0]))

    def _off_peg(self) -> Vector:
        """Way [2] from the middle of the nut to the peg, meters."""
        way: Vector = (self.env.data.xpos[self._peg] - self.env.data.xpos[self._body])[:2]
        return way

    def _off_square(self) -> float:
        """The shortest turn of the nut to the sides of the peg, radians."""
        return float((np.pi / 4 - self._nut_yaw()) % (np.pi / 2) - np.pi / 4)
