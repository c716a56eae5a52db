"""Scripted experts of the robosuite tasks: a few motions one after the other, each steered by the true state.

They begin anew where the state no longer fits the motion: the object is lost, or the policy or a person has driven. So
they do when all motions are done and the task is not.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sim.experts.base import nearness
from vla_rl_benchmarks.robosuite_tasks import STEP_M, RobosuiteEnv
from vla_rl_benchmarks.scene import StepExpert

Vector = NDArray[np.float64]
_OPEN, _CLOSED = -1.0, 1.0
_TURN_RAD = 0.5  # turn that an action of 1 asks of the hand in a step
_ABOVE = np.array([0.0, 0.0, 0.08])
_HIGHEST_M = 1.15  # height of the hand; the tables are at 0.8
_CLOSING_STEPS = 8
_WAITING_STEPS = 20  # at the end, before all begins anew
_NEAR_M, _SLACK_M = 0.03, 0.008  # of a held object: how far the hand and how far the fingers may be off
_REACH_M = 0.5  # a hand this far from the object has made no progress
_GAIN = 2.0  # of the way that a nut is off its peg: with 1 the arm settles beside it by more than the peg leaves free
_FIRST_YAW = -np.pi / 2  # of the fingers


class RobosuiteExpert(StepExpert):
    """Scripted solution of one task."""

    env: RobosuiteEnv
    meters_per_action = STEP_M
    fold = 2 * np.pi  # turns of the object by this angle look the same to the fingers
    width_m: ClassVar[float]  # of the object between the fingers

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self._begin()

    def _begin(self) -> None:
        self._gripper, self._carries = _OPEN, False
        self._actions, self._step = self._script(), self.env.native.timestep

    def _plan(self) -> Vector:
        step = self.env.native.timestep
        if step not in (self._step, self._step + 1) or (self._carries and self._has_lost()):
            self._begin()
        self._step = step
        return next(self._actions)

    def progress(self) -> float:
        """How much of the task the present state has, 0 to 1: up to 0.4 near the object, and from 0.5 on holding it."""
        if self.is_placed():
            return 0.95
        if self.holds():
            return 0.5 + 0.45 * self.carried()
        near = nearness(float(np.linalg.norm(self.grip_point() - self.hand)), _REACH_M)
        return 0.3 * near + 0.1 * nearness(abs(self.yaw_error()), self.fold / 2)

    def holds(self) -> bool:
        """Whether the object is between fingers that shut."""
        return self._shuts() and self._is_near() and abs(self._gap() - self.width_m) < _SLACK_M

    def _has_lost(self) -> bool:
        """Whether an object that was held is elsewhere, or the fingers were opened or are shut on nothing."""
        return not self._shuts() or not self._is_near() or self._gap() < self.width_m - _SLACK_M

    def _shuts(self) -> bool:
        return bool(self.env.last_action[6] > 0)

    def _is_near(self) -> bool:
        return bool(np.linalg.norm(self.grip_point() - self.hand) < _NEAR_M)

    def _gap(self) -> float:
        """Width between the fingers, meters."""
        left, right = self.env.seen["robot0_gripper_qpos"]
        return float(left - right)

    @property
    def hand(self) -> Vector:
        """Position of the grip point, [3] meters."""
        position: Vector = self.env.seen["robot0_eef_pos"]
        return position

    @abstractmethod
    def grip_point(self) -> Vector:
        """Where the hand must be to hold the object, [3] meters."""

    @abstractmethod
    def carried(self) -> float:
        """How far the held object is on its way, 0 to 1."""

    def is_placed(self) -> bool:
        """Whether the object was let go where it belongs, or falls there."""
        return False

    @abstractmethod
    def place(self, top: Vector) -> Iterator[Vector]:
        """Actions from the lifted object to the end, given where the hand lifted it to."""

    def yaw_error(self) -> float:
        """Turn that lines the fingers up with the object, radians."""
        return 0.0

    def _script(self) -> Iterator[Vector]:
        while True:
            self._gripper = _OPEN
            yield from self._attempt()
            for _ in range(_WAITING_STEPS):
                yield self._action(np.zeros(3))

    def _attempt(self) -> Iterator[Vector]:
        """All motions of the task, from a hand that is open or, if it holds the object, from there."""
        if not self.holds():
            yield from self._reach(lambda: self.grip_point() + _ABOVE, within=0.02, turned=0.08)
            yield from self._reach(self.grip_point, within=0.01)
        yield from self._close()
        self._carries = True
        top = self.hand + np.array([0.0, 0.0, 0.2])
        top[2] = min(top[2], _HIGHEST_M)
        yield from self._reach(lambda: top, within=0.03, turned=None)
        yield from self.place(top)

    def _close(self) -> Iterator[Vector]:
        """Shut the fingers. Steps in which a person keeps them open do not count."""
        self._gripper, steps = _CLOSED, 0
        while steps < _CLOSING_STEPS:
            yield self._action(0.2 * (self.grip_point() - self.hand))
            steps = steps + 1 if self._shuts() else 0

    def _open(self) -> None:
        self._gripper, self._carries = _OPEN, False

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
        return _shortest(yaw - self._finger_yaw(), self.fold)

    def _finger_yaw(self) -> float:
        fingers = self._axes()[:, 1]
        return float(np.arctan2(fingers[1], fingers[0]))


def _up_across_down(way: Vector, height: float, within: float) -> float:
    """Length of a way [3] that leads up to a height above its end, across and, where it is near the end, down."""
    across = float(np.linalg.norm(way[:2]))
    if across < within:
        return across + abs(way[2])
    return across + max(height + way[2], 0.0) + height


class LiftExpert(RobosuiteExpert):
    """Takes the cube by two of its sides and lifts it."""

    fold = np.pi / 2
    width_m = 0.042
    _LIFTED_M = 0.04

    def grip_point(self) -> Vector:
        position: Vector = self.env.seen["cube_pos"]
        return position

    def yaw_error(self) -> float:
        x, y, z, w = self.env.seen["cube_quat"]
        return self._turn_to(np.arctan2(2 * (w * z + x * y), 1 - 2 * (y * y + z * z)))

    def carried(self) -> float:
        left = self.env.native.model.mujoco_arena.table_offset[2] + 0.02 + self._LIFTED_M - self.grip_point()[2]
        return nearness(max(left, 0.0), self._LIFTED_M)

    def place(self, top: Vector) -> Iterator[Vector]:
        yield self._action(top - self.hand)


class PickPlaceCanExpert(RobosuiteExpert):
    """Takes the can at its upper end, carries it over its compartment and drops it there."""

    width_m = 0.050

    def grip_point(self) -> Vector:
        return self.env.seen["Can_pos"] + [0.0, 0.0, 0.02]

    def goal(self) -> Vector:
        """Middle of the can's compartment, [3] meters."""
        return np.asarray(self.env.native.target_bin_placements[self.env.native.object_id])

    def carried(self) -> float:
        way = self.goal() - self.env.seen["Can_pos"]
        return nearness(_up_across_down(way, 0.2, within=0.06), 1.0)

    def is_placed(self) -> bool:
        way = np.abs(self.goal() - self.env.seen["Can_pos"])[:2]
        return bool((way < self.env.native.bin_size[:2] / 4).all()) and not self._is_near()

    def place(self, top: Vector) -> Iterator[Vector]:
        goal = self.goal()
        while np.linalg.norm(way := (goal - self.env.seen["Can_pos"])[:2]) > 0.04:
            yield self._action(np.append(way, top[2] - self.hand[2]))
        while (way_down := self.hand[2] - (goal[2] + 0.12)) > 0.02:
            yield self._action(np.array([0.0, 0.0, -way_down]))
        self._open()
        for _ in range(_CLOSING_STEPS):
            yield self._action(np.array([0.0, 0.0, 0.05]))


class NutAssemblySquareExpert(RobosuiteExpert):
    """Takes the nut by its handle, lines it up with the peg and lets it down.

    What it does follows from the present state alone, and it always ends in the same posture, so that a policy can
    imitate it.
    """

    stall_s = 3.0  # some handles take long to reach
    fold = np.pi
    width_m = 0.031

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

    def carried(self) -> float:
        off, turn = self._off_peg(), abs(self._off_square())
        way = np.append(off, self.env.native.table_offset[2] + 0.04 - self.env.data.xpos[self._body][2])
        fine = nearness(float(np.linalg.norm(off)), 0.03) + nearness(turn, np.pi / 2)
        return 0.7 * nearness(_up_across_down(way, 0.2, within=0.03), 0.8) + 0.15 * fine

    def is_placed(self) -> bool:
        height = self.env.data.xpos[self._body][2] - self.env.native.table_offset[2]
        return bool(np.linalg.norm(self._off_peg()) < 0.03 and height < 0.05)

    def place(self, top: Vector) -> Iterator[Vector]:
        while np.linalg.norm(off := self._off_peg()) > 0.004 or abs(self._off_square()) > 0.04:
            yield self._action(np.append(_GAIN * off, top[2] - self.hand[2]), self._off_square())
        while self.env.data.xpos[self._body][2] > self.env.native.table_offset[2] + 0.045:
            yield self._action(np.append(_GAIN * self._off_peg(), -0.03), self._off_square())
        self._open()

    def _nut_yaw(self) -> float:
        rotation = self.env.data.xmat[self._body].reshape(3, 3)
        return float(np.arctan2(rotation[1, 0], rotation[0, 0]))

    def _off_peg(self) -> Vector:
        """Way [2] from the middle of the nut to the peg, meters."""
        way: Vector = (self.env.data.xpos[self._peg] - self.env.data.xpos[self._body])[:2]
        return way

    def _off_square(self) -> float:
        """The turn that lines the nut up with the peg and ends nearest to the fingers' first yaw, radians."""
        back = _shortest(_FIRST_YAW - self._finger_yaw(), 2 * np.pi)
        return back + _shortest(-self._nut_yaw() - back, np.pi / 2)


def _shortest(turn: float, fold: float) -> float:
    """The smallest turn, either way, that looks the same as this one, radians."""
    return (turn + fold / 2) % fold - fold / 2
