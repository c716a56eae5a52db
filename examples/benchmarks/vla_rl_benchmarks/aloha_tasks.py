"""gym-aloha's two tasks with ACT's limit of 400 steps and experts; `aloha_env` has the environments.

ACT's experts (arXiv 2304.13705) move the hands of another scene by springs. Their recorded joint angles fail as
targets: a servo needs a target ahead of where the joint should be. These experts solve for the joints of the same
waypoints. They ask for more than is still missing, and look at the objects at every step.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.experts.base import CorrelatedNoise, expert_rng
from vla_rl_benchmarks.aloha_env import AlohaEnv

Vector = NDArray[np.float64]
_GRIP_M = 0.135  # from the origin of the gripper to the point between its fingertips
_ARM_JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
_SIDES = ("left", "right")
_LEAD = 0.5  # share of what a joint still misses that is added to its target
_UNROLLED = 0.1  # weight of a forearm without roll beside meters and 0.3 rad of the hand
_FOREARM_ROLL = 3  # of the six joints
_DOWN, _FLAT, _LEVEL = np.deg2rad(54), np.deg2rad(40), 0.0  # pitches of a hand; a flat one holds more of the peg
_ROLLED = np.pi / 2  # roll of a hand that takes over
_OPEN, _CLOSED = 1.0, 0.0


class Arm:
    """The hand of one arm as its joints' inverse: where it is asked to be, and the joint angles for that.

    Args:
        model: Compiled model of the scene.
        side: ``left`` or ``right``.
    """

    def __init__(self, model: mujoco.MjModel, side: str) -> None:
        self._model, self._scratch = model, mujoco.MjData(model)
        self._body = model.body(f"vx300s_{side}/gripper_link").id
        joints = [model.joint(f"vx300s_{side}/{joint}") for joint in _ARM_JOINTS]
        self.address = np.array([joint.qposadr[0] for joint in joints])
        self._dofs = np.array([joint.dofadr[0] for joint in joints])
        self._limits = model.jnt_range[[joint.id for joint in joints]].T
        self._heading = np.pi if side == "right" else 0.0

    def reset(self, data: mujoco.MjData) -> None:
        """Begin where the arm is."""
        self.joints, self.pitch, self.roll, self.gripper = data.qpos[self.address].copy(), -0.1, 0.0, 0.1
        self._scratch.qpos[:] = data.qpos
        self.position = self._grip_point()[0]

    def solve(self) -> Vector:
        """Joint angles [6] for the asked pose, by damped least squares from the last ones.

        With a straight wrist, forearm and hand can roll against each other. A small cost keeps the forearm unrolled.
        Without it, one motion ended in joints that differ by half a turn, by chance, and no policy can imitate that.
        """
        rotation = _turn("z", self._heading) @ _turn("y", self.pitch) @ _turn("x", self.roll)
        jacobian = np.empty((6, self._model.nv))
        for _ in range(8):
            position, axes = self._grip_point()
            turn = sum(np.cross(axes[:, axis], rotation[:, axis]) for axis in range(3)) / 2
            rolled = self.joints[_FOREARM_ROLL]
            error = np.concatenate([self.position - position, 0.3 * turn, [-_UNROLLED * rolled]])
            mujoco.mj_jac(self._model, self._scratch, jacobian[:3], jacobian[3:], position, self._body)
            mine = jacobian[:, self._dofs] * np.array([[1.0]] * 3 + [[0.3]] * 3)
            mine = np.vstack([mine, _UNROLLED * np.eye(6)[_FOREARM_ROLL]])
            step = mine.T @ np.linalg.solve(mine @ mine.T + 1e-4 * np.eye(7), error)
            self.joints = np.clip(self.joints + np.clip(step, -0.1, 0.1), *self._limits)
        return self.joints

    def _grip_point(self) -> tuple[Vector, Vector]:
        """Position [3] and rotation [3, 3] of the hand at the joint angles of the moment."""
        self._scratch.qpos[self.address] = self.joints
        mujoco.mj_kinematics(self._model, self._scratch)
        mujoco.mj_comPos(self._model, self._scratch)
        axes = self._scratch.xmat[self._body].reshape(3, 3)
        return self._scratch.xpos[self._body] + _GRIP_M * axes[:, 0], axes


class AlohaExpert(ABC):
    """Scripted solution of one task. Arguments and methods as in `sim.experts.base.Expert`."""

    follows_script = True
    meters_per_action = 0.5  # what a radian moves a hand by, about
    script_steps: ClassVar[int]

    def __init__(self, env: Any, action_noise: float = 0.0) -> None:
        self.env: AlohaEnv = env.unwrapped
        self.action_noise = action_noise
        self.pace = 1.0
        self.arms = [Arm(self.env.model, side) for side in _SIDES]
        self.reset(0)

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines the noise."""
        self._noise = CorrelatedNoise(expert_rng(seed), self.action_noise / self.meters_per_action, (2, 6))
        for arm in self.arms:
            arm.reset(self.env.data)
        self._scripts, self._tick = [self.left(), self.right()], 0

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The clean action (the label) and the one to send, both float32 [14] and within bounds."""
        clean, noise, self._tick = [], self._noise.draw(), self._tick + 1
        for script, arm in zip(self._scripts, self.arms, strict=True):
            next(script, None)
            joints = arm.solve()
            lead = _LEAD * (joints - self.env.data.qpos[arm.address])
            clean.append(np.append(joints + lead, arm.gripper))
        sent = [action + np.append(offset, 0.0) for action, offset in zip(clean, noise, strict=True)]
        space: Any = self.env.action_space
        clean, sent = (np.clip(np.concatenate(action), space.low, space.high) for action in (clean, sent))
        return clean.astype(np.float32), sent.astype(np.float32)

    def progress(self) -> float:
        """Share of the time that the script takes, 0 to 1."""
        return min(1.0, self._tick / self.script_steps)

    def last_sent(self) -> NDArray[np.float64]:
        """The action of the last step, float64 [14]."""
        return self.env.rest_action(np.empty(0, np.float32)).astype(np.float64)

    @abstractmethod
    def left(self) -> Iterator[None]:
        """The motions of the left arm."""

    @abstractmethod
    def right(self) -> Iterator[None]:
        """The motions of the right arm."""

    def place(self, body: str) -> Vector:
        """Position of an object, [3] meters."""
        position: Vector = self.env.data.body(body).xpos.copy()
        return position

    @staticmethod
    def move(
        arm: Arm, steps: int, point: Callable[[], Vector], pitch: float, roll: float = 0.0, gripper: float | None = None
    ) -> Iterator[None]:
        """Take a hand to a point, which may move, in a number of steps."""
        for left in range(steps, 0, -1):
            arm.position = arm.position + (point() - arm.position) / left
            arm.pitch += (pitch - arm.pitch) / left
            arm.roll += (roll - arm.roll) / left
            if gripper is not None:
                arm.gripper += (gripper - arm.gripper) / left
            yield

    def pick(self, arm: Arm, body: str, depth: float, steps: tuple[int, int, int], pitch: float) -> Iterator[None]:
        """Take an object from above: to a point above it, down to it, close."""
        yield from self.move(arm, steps[0], lambda: self.place(body) + np.array([0.0, 0.0, 0.08]), pitch, gripper=_OPEN)
        yield from self.move(arm, steps[1], lambda: self.place(body) + np.array([0.0, 0.0, depth]), pitch)
        here = arm.position.copy()
        yield from self.move(arm, steps[2], lambda: here, pitch, gripper=_CLOSED)


class TransferCubeExpert(AlohaExpert):
    """The right hand takes the cube and carries it to the middle, where the left one takes it from the side."""

    script_steps = 240
    _MEET = np.array([0.0, 0.5, 0.25])

    def right(self) -> Iterator[None]:
        arm = self.arms[1]
        yield from self.pick(arm, "box", 0.01, (60, 30, 20), _DOWN)
        yield from self.move(arm, 40, lambda: self._MEET + np.array([0.05, 0.0, 0.0]), _DOWN)
        yield from self.move(arm, 15, lambda: self._MEET, _DOWN)

    def left(self) -> Iterator[None]:
        arm = self.arms[0]
        yield from self.move(arm, 80, lambda: self._MEET + np.array([-0.1, 0.0, -0.02]), _LEVEL, _ROLLED, _OPEN)
        yield from self.move(arm, 90, lambda: self._MEET + np.array([-0.1, 0.0, -0.02]), _LEVEL, _ROLLED)
        yield from self.move(arm, 40, lambda: self.place("box") + np.array([0.005, 0.0, 0.0]), _LEVEL, _ROLLED)
        here = arm.position.copy()
        yield from self.move(arm, 30, lambda: here, _LEVEL, _ROLLED, _CLOSED)


class InsertionExpert(AlohaExpert):
    """Each hand lifts its part; the right one lines the tip of the peg up with the socket and pushes it in."""

    script_steps = 300
    _MEET = np.array([0.0, 0.5, 0.15])
    _HALF_PEG_M = 0.06
    _BEFORE_M, _INSIDE_M = 0.08, 0.03  # tip to the middle of the socket, which is open from .06 to the pin at .04
    _ALIGNED_M, _ADVANCE_M = 0.004, 0.001  # the tip comes nearer, by a step, while it is as near to the axis as this
    _GAIN = 0.06  # share of an error that a step corrects: the arm follows some steps later

    def left(self) -> Iterator[None]:
        arm = self.arms[0]
        yield from self.pick(arm, "socket", 0.0, (70, 30, 25), _DOWN)
        yield from self.move(arm, 50, lambda: self._MEET + np.array([-0.08, 0.0, 0.0]), _DOWN)

    def right(self) -> Iterator[None]:
        arm = self.arms[1]
        yield from self.pick(arm, "peg", 0.0, (70, 30, 25), _FLAT)
        yield from self.move(arm, 50, lambda: self._MEET + np.array([0.1, 0.0, 0.0]), _FLAT)
        distance = self._BEFORE_M
        while True:
            off, tilt = self._tip()
            if np.linalg.norm(off[1:]) < self._ALIGNED_M:
                distance = max(distance - self._ADVANCE_M, self._INSIDE_M)
            way = self.env.data.body("socket").xmat.reshape(3, 3) @ ([distance, 0.0, 0.0] - off)
            arm.position = arm.position + np.clip(self._GAIN * way, -0.005, 0.005)
            arm.pitch += np.clip(self._GAIN * tilt, -0.01, 0.01)
            yield

    def _tip(self) -> tuple[Vector, float]:
        """The tip of the peg in the socket's frame, [3] meters, and by how much the tip is tilted up, radians."""
        socket, peg = self.env.data.body("socket"), self.env.data.body("peg")
        axes, along = socket.xmat.reshape(3, 3), peg.xmat.reshape(3, 3)[:, 0]
        tip: Vector = axes.T @ (peg.xpos - self._HALF_PEG_M * along - socket.xpos)
        return tip, float(-(axes.T @ along)[2])


class TransferCube(AlohaEnv):
    """The right arm picks up a cube and passes it to the left one."""

    native_task, native_class = "transfer_cube", "TransferCubeTask"
    objects = ("box",)
    task_description = "pass the cube from the right hand to the left"
    expert: ClassVar[type] = TransferCubeExpert
    max_episode_steps, expert_steps = 400, 225


class Insertion(AlohaEnv):
    """Each arm picks up its part, and the peg is put into the socket."""

    native_task, native_class = "insertion", "InsertionTask"
    objects = ("socket", "peg")
    task_description = "insert the peg into the socket"
    expert: ClassVar[type] = InsertionExpert
    max_episode_steps, expert_steps = 400, 290


def _turn(axis: str, angle: float) -> Vector:
    """Rotation [3, 3] about an axis."""
    c, s = np.cos(angle), np.sin(angle)
    rotations = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }
    return np.array(rotations[axis], float)
