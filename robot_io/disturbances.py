"""Disturbances of the readings of a robot, below everything that uses them. `robot_io.faults` describes each."""

import random
from dataclasses import replace
from typing import Any, override

import numpy as np

from robot_io.joint_monitor import FOLLOWING_SHARE
from robot_io.limits import RobotLimits
from vla_rl.core.types import Float32Array, Observation, Uint8Array

STATE = "state"
_FAR = 1e6
_TOO_FAR = 1.5  # of the tolerance
_FUTURE_NS = 10_000_000_000
_JUMP_NS = 3_000_000_000


class Disturbance:
    """All readings go through here; this one changes nothing.

    Args:
        randomly: Draws the joint, and what else a disturbance leaves open.
        limits: Limits of the robot. Joints that need not follow their command are not disturbed.
    """

    def __init__(self, randomly: random.Random, limits: RobotLimits) -> None:
        self._random, self._limits = randomly, limits
        free = {*limits.discrete_dims, *limits.delta_dims, *limits.joint_monitor.yielding_dims}
        self._dim = randomly.choice([dim for dim in range(len(limits.low)) if dim not in free] or [0])
        self._width = limits.high[self._dim] - limits.low[self._dim]
        self._kept: dict[Any, Any] = {}

    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        """Picture of a camera, uint8 [H, W, 3]; None for none."""
        del camera
        return image

    def joint(self, dim: int, position: float) -> float | None:
        """Position of a joint; None for none."""
        del dim
        return position

    def effort(self, dim: int, effort: float) -> float:
        """Return the effort of a joint."""
        del dim
        return effort

    def stamp_ns(self, stamp_ns: int) -> int:
        """Return the capture time of a reading."""
        return stamp_ns

    def clock_ns(self, now_ns: int) -> int | None:
        """Return the robot's time; None for none."""
        return now_ns

    def loses_message(self) -> bool:
        """Return whether the next message is lost on its way."""
        return False

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


class CameraSilent(Disturbance):
    """One camera, the first that speaks, gives no pictures."""

    @override
    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        return None if self._kept.setdefault("silent", camera) == camera else image


class CameraFrozen(Disturbance):
    @override
    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        frozen: Uint8Array = self._kept.setdefault(camera, image.copy())
        return frozen


class PicturesEmpty(Disturbance):
    @override
    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        return image[:0, :0]


class PicturesTiny(Disturbance):
    @override
    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        return image[:1, :1]


class PicturesCut(Disturbance):
    @override
    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        return image[: len(image) // 3]


class JointsSilent(Disturbance):
    @override
    def joint(self, dim: int, position: float) -> float | None:
        return None


class DriverSilent(Disturbance):
    @override
    def joint(self, dim: int, position: float) -> float | None:
        return None if dim == self._dim else position


class JointsFrozen(Disturbance):
    @override
    def joint(self, dim: int, position: float) -> float | None:
        frozen: float = self._kept.setdefault(dim, position)
        return frozen


class JointFrozen(JointsFrozen):
    @override
    def joint(self, dim: int, position: float) -> float | None:
        return super().joint(dim, position) if dim == self._dim else position


class Off(Disturbance):
    """One joint reads a place that is off towards the middle of its range, further than the tolerance."""

    @override
    def joint(self, dim: int, position: float) -> float | None:
        if dim != self._dim:
            return position
        tolerance = self._limits.joint_monitor.following_tolerance
        off = _TOO_FAR * (tolerance[dim] if tolerance else FOLLOWING_SHARE * self._width)
        return position + (off if position < self._limits.low[dim] + self._width / 2 else -off)


class Beyond(Disturbance):
    @override
    def joint(self, dim: int, position: float) -> float | None:
        return self._limits.high[dim] + self._width if dim == self._dim else position


class NotFinite(Disturbance):
    @override
    def joint(self, dim: int, position: float) -> float | None:
        return float("nan") if dim == self._dim else position


class Effort(Disturbance):
    @override
    def effort(self, dim: int, effort: float) -> float:
        return _FAR if dim == self._dim else effort


class FarStart(Disturbance):
    """One reading of a joint is off, once."""

    amount = _FAR

    @override
    def joint(self, dim: int, position: float) -> float | None:
        if dim != self._dim or self._kept:
            return position
        self._kept["told"] = True
        return position + self.amount


class OffStart(FarStart):
    amount = 0.6


class FutureStamps(Disturbance):
    @override
    def stamp_ns(self, stamp_ns: int) -> int:
        return stamp_ns + _FUTURE_NS


class ClockJump(Disturbance):
    @override
    def clock_ns(self, now_ns: int) -> int | None:
        return now_ns + int(self._kept.setdefault("jump", self._random.choice((-_JUMP_NS, _JUMP_NS))))

    @override
    def stamp_ns(self, stamp_ns: int) -> int:
        return self.clock_ns(stamp_ns) or stamp_ns


class ClockSilent(Disturbance):
    @override
    def clock_ns(self, now_ns: int) -> int | None:
        return None


class AllSilent(JointsSilent):
    @override
    def image(self, camera: str, image: Uint8Array) -> Uint8Array | None:
        return None


class Loss30(Disturbance):
    part = 0.3

    @override
    def loses_message(self) -> bool:
        return self._random.random() < self.part


class Loss70(Loss30):
    part = 0.7
