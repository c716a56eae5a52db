"""Disturbances of the readings of a robot, below everything that uses them. `robot_io.faults` has the table."""

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from robot_io.joint_monitor import FOLLOWING_SHARE
from robot_io.limits import RobotLimits
from vla_rl.core.types import Float32Array, Observation, Uint8Array

STATE = "state"
_FAR = 1e6
_TOO_FAR = 1.5  # of the tolerance
_FUTURE_NS = 10_000_000_000
_JUMP_NS = 3_000_000_000


@dataclass(frozen=True)
class Changes:
    """What a disturbance makes of each reading; a missing function leaves its readings unchanged.

    Attributes:
        image: Of the picture of a camera; None for none.
        joint: Of the position of a joint; None for none.
        effort: Of the effort of a joint.
        stamp_ns: Of the capture time of a reading.
        clock_ns: Of the robot's time; None for none.
        lost: Share of the messages that are lost on their way.
    """

    image: "Callable[[Disturbance, str, Uint8Array], Uint8Array | None] | None" = None
    joint: "Callable[[Disturbance, int, float], float | None] | None" = None
    effort: "Callable[[Disturbance, int, float], float] | None" = None
    stamp_ns: "Callable[[Disturbance, int], int] | None" = None
    clock_ns: "Callable[[Disturbance, int], int | None] | None" = None
    lost: float = 0.0


UNCHANGED = Changes()


class Disturbance:
    """All readings go through here, with changes of one joint or of all.

    Joints that need not follow their command, by the limits, are not disturbed.

    Attributes:
        dim: Joint that is disturbed, where it is one.
        width: Of its range.
    """

    _changes = UNCHANGED

    def __init__(self, randomly: random.Random, limits: RobotLimits, changes: Changes = UNCHANGED) -> None:
        self._random, self.limits, self._changes = randomly, limits, changes
        free = {*limits.discrete_dims, *limits.delta_dims, *limits.joint_monitor.yielding_dims}
        self.dim = randomly.choice([dim for dim in range(len(limits.low)) if dim not in free] or [0])
        self.width = limits.high[self.dim] - limits.low[self.dim]
        self._kept: dict[Any, Any] = {}

    def first[ValueT](self, key: Any, value: ValueT) -> ValueT:
        """Return the value with which this was first called for the key."""
        found: ValueT = self._kept.setdefault(key, value)
        return found

    def jumped_ns(self, now_ns: int) -> int:
        """Return a time of the clock that has jumped, forwards or back."""
        return now_ns + self.first("jump", self._random.choice((-_JUMP_NS, _JUMP_NS)))

    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        """Picture of a camera, uint8 [H, W, 3]; None for none."""
        return image if self._changes.image is None else self._changes.image(self, camera, image)

    def joint(self, dim: int, position: float) -> float | None:
        """Position of a joint; None for none."""
        return position if self._changes.joint is None else self._changes.joint(self, dim, position)

    def effort(self, dim: int, effort: float) -> float:
        """Return the effort of a joint."""
        return effort if self._changes.effort is None else self._changes.effort(self, dim, effort)

    def stamp_ns(self, stamp_ns: int) -> int:
        """Return the capture time of a reading."""
        return stamp_ns if self._changes.stamp_ns is None else self._changes.stamp_ns(self, stamp_ns)

    def clock_ns(self, now_ns: int) -> int | None:
        """Return the robot's time; None for none."""
        return now_ns if self._changes.clock_ns is None else self._changes.clock_ns(self, now_ns)

    def loses_message(self) -> bool:
        """Return whether the next message is lost on its way."""
        return self._changes.lost > 0 and self._random.random() < self._changes.lost

    def state(self, state: Float32Array) -> Float32Array | None:
        """Return positions of all joints, float32 [S]; None if any is missing."""
        read = [self.joint(dim, float(position)) for dim, position in enumerate(state)]
        return None if None in read else np.array(read, np.float32)

    def observation(self, observation: Observation, last: Observation | None) -> Observation:
        """Return a whole observation; a missing stream repeats its last reading with its capture time."""
        last = last or observation
        images, captured_ns = dict(observation.images), dict(observation.captured_ns)
        for camera, image in observation.images.items():
            if (disturbed := self.image(camera, image)) is None:
                images[camera], captured_ns[camera] = last.images[camera], last.captured_ns[camera]
            else:
                images[camera] = disturbed
        state = self.state(observation.state)
        if state is None:
            state, captured_ns[STATE] = last.state, last.captured_ns[STATE]
        return replace(observation, images=images, state=state, captured_ns=captured_ns)


def of_one_joint(change: Callable[[Disturbance, float], float | None]) -> Changes:
    """Return the change of the position of the drawn joint alone."""
    return Changes(joint=lambda by, dim, position: change(by, position) if dim == by.dim else position)


def towards_middle(by: Disturbance, position: float) -> float:
    """Return a place that is off towards the middle of the joint's range, further than the tolerance."""
    tolerance = by.limits.joint_monitor.following_tolerance
    off = _TOO_FAR * (tolerance[by.dim] if tolerance else FOLLOWING_SHARE * by.width)
    return position + (off if position < by.limits.low[by.dim] + by.width / 2 else -off)


def off_once(amount: float) -> Changes:
    """Return the change of one reading of the drawn joint, once."""

    def change(by: Disturbance, position: float) -> float:
        return position + amount if by.first("off", reading := object()) is reading else position

    return of_one_joint(change)


CAMERA_SILENT = Changes(image=lambda by, camera, image: None if by.first("silent", camera) == camera else image)
CAMERA_FROZEN = Changes(image=lambda by, camera, image: by.first(camera, image.copy()))
PICTURES_EMPTY = Changes(image=lambda _, __, image: image[:0, :0])
PICTURES_TINY = Changes(image=lambda _, __, image: image[:1, :1])
PICTURES_CUT = Changes(image=lambda _, __, image: image[: len(image) // 3])
JOINTS_SILENT = Changes(joint=lambda _, __, ___: None)
ALL_SILENT = Changes(joint=lambda _, __, ___: None, image=lambda _, __, ___: None)
DRIVER_SILENT = of_one_joint(lambda _, __: None)
NOT_FINITE = of_one_joint(lambda _, __: float("nan"))
JOINTS_FROZEN = Changes(joint=lambda by, dim, position: by.first(dim, position))
JOINT_FROZEN = of_one_joint(lambda by, position: by.first(by.dim, position))
OFF = of_one_joint(towards_middle)
BEYOND = of_one_joint(lambda by, _: by.limits.high[by.dim] + by.width)
EFFORT = Changes(effort=lambda by, dim, effort: _FAR if dim == by.dim else effort)
FAR, NEAR = off_once(_FAR), off_once(0.6)
FUTURE_STAMPS = Changes(stamp_ns=lambda _, stamp_ns: stamp_ns + _FUTURE_NS)
CLOCK_JUMP = Changes(stamp_ns=Disturbance.jumped_ns, clock_ns=Disturbance.jumped_ns)
CLOCK_SILENT = Changes(clock_ns=lambda _, __: None)
LOSS_30, LOSS_70 = Changes(lost=0.3), Changes(lost=0.7)
