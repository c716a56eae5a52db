"""gym-aloha behind our interface, with cameras close enough for small pictures.

Actions and `agent_pos` are those of gym-aloha: absolute positions of 2 x 6 joints in radians, and of 2 grippers from
0 to 1. Its servos can make the simulation diverge, if targets jump by radians at every step. Such an episode ends there
as a failure.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from sim.interface import ABSOLUTE, CameraEnv, StepResult, observation_space
from sim.rendering import Renderer
from vla_rl_benchmarks.scene import aim, import_suite

_STATE_BOUND = 10.0  # a joint beyond it has left what the model describes
_JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate", "gripper")
_NAMES = tuple(f"{side}_{joint}" for side in ("left", "right") for joint in _JOINTS)
_UNITS = (*("rad",) * 6, "") * 2
_N_JOINTS = len(_NAMES)
_POSE = ("x", "y", "z", "quat_w", "quat_x", "quat_y", "quat_z")
_SOLVED = 4  # gym-aloha counts the stages of a task; this is the last
_ARM = "vx300s"  # how the names of an arm's meshes begin; they are drawn as coarse convex hulls
_NATIVE_CAMERAS = {"front": "angle", "top": "top"}
_VIEWS = {  # by camera of gym-aloha: where it is and where it looks, meters, and its field of view, degrees
    "angle": ((0.0, 0.05, 0.35), (0.0, 0.5, 0.12), 52.0),
    "top": ((0.0, 0.499, 0.75), (0.0, 0.5, 0.0), 44.0),
}


class AlohaEnv(CameraEnv):
    """One gym-aloha task, which must be installed.

    Args:
        pictures: Whether the policy sees pictures. If not, its state holds the poses of the objects too.
        **arguments: Of `CameraEnv`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}
    gripper_dims: ClassVar[tuple[int, ...]] = (6, 13)
    action_kind: ClassVar[tuple[str, ...]] = (ABSOLUTE,) * _N_JOINTS
    action_names: ClassVar[tuple[str, ...]] = _NAMES
    action_units: ClassVar[tuple[str, ...]] = _UNITS
    native_task: ClassVar[str]
    native_class: ClassVar[str]
    objects: ClassVar[tuple[str, ...]]  # bodies of the model
    renderer: Renderer
    task_description: ClassVar[str]

    def __init__(self, pictures: bool = True, **arguments: Any) -> None:
        self.with_pictures = pictures
        self._in_state = () if pictures else self.objects
        self.state_names = (*_NAMES, *(f"{body}_{part}" for body in self._in_state for part in _POSE))
        self.state_units = (*_UNITS, *(*("m",) * 3, *("",) * 4) * len(self._in_state))
        super().__init__(**arguments)

    def _build(self, renderer: str) -> None:
        constants = import_suite("gym_aloha.constants", "aloha")
        self._tasks, self._utils = (
            import_suite("gym_aloha.tasks.sim", "aloha"),
            import_suite("gym_aloha.utils", "aloha"),
        )
        control = import_suite("dm_control.rl.control", "aloha")
        self._divergence = control.PhysicsError
        physics_class = import_suite("dm_control.mujoco", "aloha").Physics
        self._physics = physics_class.from_xml_path(
            str(constants.ASSETS_DIR / f"bimanual_viperx_{self.native_task}.xml")
        )
        task = getattr(self._tasks, self.native_class)()
        task.get_observation = task.get_qpos  # the original draws its pictures here
        self._env = control.Environment(self._physics, task, float("inf"), control_timestep=constants.DT)
        self.model, self.data = self._physics.model.ptr, self._physics.data.ptr
        self._place_objects(0)
        self._env.reset()
        native_cameras = [_NATIVE_CAMERAS[camera] for camera in self.cameras]
        for camera in native_cameras:
            aim(self.model, camera, *_VIEWS[camera])
        meshes = [self.model.mesh(mesh).name for mesh in range(self.model.nmesh)]
        links = [name for name in meshes if name.startswith(_ARM)]
        self.renderer = Renderer(renderer, self.model, self.data, native_cameras, self.image_size, hulls=links)
        low, high = np.full(_N_JOINTS, -np.pi, np.float32), np.full(_N_JOINTS, np.pi, np.float32)
        low[list(self.gripper_dims)], high[list(self.gripper_dims)] = 0.0, 1.0
        self._low, self._high = low, high
        self.action_space = gymnasium.spaces.Box(low, high)
        self.observation_space = observation_space(self.cameras, self.image_size, len(self.state_names), _STATE_BOUND)
        self.elapsed_steps = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self._place_objects(int(self.np_random.integers(2**31)))
        self._state = self._env.reset().observation
        self._last_action = np.asarray(self._state, np.float32)
        self.elapsed_steps = 0
        self._observed = self._observe()
        return self._observed, {"is_success": False}

    def step(self, action: NDArray[np.float32]) -> StepResult:
        self._last_action = np.clip(action, self._low, self._high).astype(np.float32)
        self.elapsed_steps += 1
        try:
            native = self._env.step(self._last_action)
        except self._divergence:
            native = None
        if native is None or np.abs(native.observation).max() > _STATE_BOUND:
            return self._observed, 0.0, True, False, {"is_success": False, "diverged": True}
        self._state = native.observation
        result = self._result(bool(native.reward == _SOLVED))
        self._observed = result[0]
        return result

    def close(self) -> None:
        super().close()
        self._env.close()

    def rest_action(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the action that keeps the arms where they are, float32 [14]: the last targets, at the start the
        posture.
        """
        del state
        return self._last_action

    def _place_objects(self, seed: int) -> None:
        """gym-aloha takes the start of its objects from a global list; set it just before a reset."""
        if self.native_task == "transfer_cube":
            self._tasks.BOX_POSE[0] = self._utils.sample_box_pose(seed)
        else:
            self._tasks.BOX_POSE[0] = np.concatenate(self._utils.sample_insertion_pose(seed))

    def _observe(self) -> dict[str, Any]:
        bodies = [self.data.body(body) for body in self._in_state]
        poses = [part for body in bodies for part in (body.xpos, body.xquat)]
        return self._observation(np.concatenate([self._state, *poses]))

    def _draw(self, camera: str) -> NDArray[np.uint8]:
        return self.renderer.render(self.data, _NATIVE_CAMERAS[camera])
