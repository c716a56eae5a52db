"""Meta-World tasks behind our interface, with cameras close enough for small pictures.

The native action stays: x, y, z steps of the hand in units of 1 cm, and the gripper's effort, each from -1 to 1. The
reward becomes 1 at success, which ends the episode; Meta-World's dense reward only measures progress.
"""

import warnings
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.adapters.metaworld_tasks import TASKS
from sim.adapters.optional import import_benchmark
from sim.interface import ABSOLUTE, CAMERAS, DELTA, CameraEnv, StepResult, observation_space
from sim.rendering import Renderer
from vla_rl.core.errors import UserError, did_you_mean

STEP_M = 0.01  # how far a motion action of 1 moves the hand
_NATIVE_CAMERAS = {"front": "corner2", "top": "topview"}
_EYES = {"front": (0.42, 0.18, 0.52), "top": (0.0, 0.64, 0.95)}
_LOOK_AT = {"front": (0.0, 0.68, 0.10), "top": (0.0, 0.66, 0.0)}
# The arm's meshes, which make up nine tenths of a scene's triangles.
LINKS = ("base", "pedestal", "head", "l0", "l1", "l2", "l3", "l4", "l5", "l6", "eGripperBase")
_GOAL_MARK = "goal_mark"
GOAL_MARK_RADIUS_M, GOAL_MARK_COLOR = 0.02, (1.0, 0.0, 1.0)  # a color that nothing else in these scenes has


class MetaWorldEnv(CameraEnv):
    """One Meta-World task.

    Observation: `{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [4]}`: hand position in meters and the
    gripper's opening, 0 to 1. Where nothing in the scene says where the goal is, a colored ball marks it
    (`MetaWorldTask.goal_mark`); it touches nothing.

    Arguments as of `CameraEnv`, and the first:
        native_name: Meta-World's own name of the task, such as "button-press-v3"; `metaworld_tasks.TASKS` has them.

    Unlike in Meta-World's own pictures, the links of the arm are coarse convex hulls, and the ray caster draws a
    texture as its mean color.

    Raises:
        UserError: an argument that does not fit, or metaworld is not installed.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 80}  # noqa: RUF012 - gymnasium declares it so
    expert: ClassVar[str] = "sim.experts.metaworld:MetaWorldExpert"
    gripper_dims: ClassVar[tuple[int, ...]] = (3,)
    action_kind: ClassVar[tuple[str, ...]] = (DELTA, DELTA, DELTA, ABSOLUTE)
    state_names: ClassVar[tuple[str, ...]] = ("x", "y", "z", "gripper")
    state_units: ClassVar[tuple[str, ...]] = ("m", "m", "m", "")
    action_names: ClassVar[tuple[str, ...]] = state_names  # in no unit: shares of `STEP_M` and of an effort

    def __init__(self, native_name: str, **arguments: Any) -> None:
        if native_name not in TASKS:
            raise UserError(f"Meta-World has no task {native_name!r}.{did_you_mean(native_name, TASKS)}")
        self.native_name, self._task = native_name, TASKS[native_name]
        self.task_description, self.expert_steps = self._task.sentence, self._task.expert_steps
        self.max_episode_steps = self._task.max_episode_steps
        super().__init__(**arguments)

    def _build(self, renderer: str) -> None:
        metaworld = import_benchmark("metaworld")
        benchmark = metaworld.MT1(self.native_name, seed=0)
        native_class = benchmark.train_classes[self.native_name]
        self.native = (_with_goal_mark(native_class) if self._task.goal_mark else native_class)()
        self.native.set_task(benchmark.train_tasks[0])
        # Only after set_task, which freezes the scene: without these two, every episode would be the same.
        self.native._freeze_rand_vec = False
        self.native.seeded_rand_vec = True
        for camera, field in zip(CAMERAS, self._task.fields_of_view, strict=True):
            eye, look_at = (np.add(point, self._task.shift) for point in (_EYES[camera], _LOOK_AT[camera]))
            _aim(self.native.model, _NATIVE_CAMERAS[camera], eye, look_at, field)
        self.action_space = self.native.action_space
        self.observation_space = observation_space(self.cameras, self.image_size, 4, 2.0)
        self.native_observation = self._reset_native(0)
        self.native_cameras = [_NATIVE_CAMERAS[camera] for camera in self.cameras]
        self.renderer = Renderer(
            renderer, self.native.model, self.native.data, self.native_cameras, self.image_size, hulls=LINKS
        )
        self.progress, self.elapsed_steps = 0.0, 0
        self.last_action: NDArray[np.float64] = np.zeros(4)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        self.native.max_path_length = self.max_episode_steps + 1
        self.native_observation = self._reset_native(int(self.np_random.integers(2**31)))
        self.progress, self.elapsed_steps = 0.0, 0
        self.last_action = np.zeros(4)
        return self._observe(), {"is_success": False}

    def step(self, action: NDArray[np.float32]) -> StepResult:
        self.last_action = np.clip(action, -1.0, 1.0).astype(np.float64)
        self.native_observation, reward, _, _, info = self.native.step(self.last_action)
        self.progress = max(self.progress, float(reward) / 10.0)  # the dense reward dips between stages
        self.elapsed_steps += 1
        return self._result(bool(info["success"]))

    def close(self) -> None:
        super().close()
        self.native.close()

    def rest_action(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the action that keeps the hand where it is, float32 [4]: no motion, and the gripper's last effort."""
        del state
        return np.array([0.0, 0.0, 0.0, self.last_action[3]], np.float32)

    def _reset_native(self, seed: int) -> NDArray[np.float64]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the benchmark's own spaces warn about their precision
            self.native.seed(seed)
            mujoco.mj_resetData(self.native.model, self.native.data)
            observation, _ = self.native.reset()
        if self._task.goal_mark:
            self.native.model.body(_GOAL_MARK).pos = self.native._target_pos
        # The benchmark moves static bodies without computing where that takes their geoms.
        mujoco.mj_kinematics(self.native.model, self.native.data)
        return observation

    def _observe(self) -> dict[str, Any]:
        return {"pixels": self.pictures(), "agent_pos": self.native_observation[:4].astype(np.float32)}

    def _draw(self, camera: str) -> NDArray[np.uint8]:
        return self.renderer.render(self.native.data, _NATIVE_CAMERAS[camera])


def _with_goal_mark(native_class: Any) -> Any:
    """Return the native class with one body more in its scene, after all others and without effect on them."""

    class Marked(native_class):
        def _initialize_simulation(self) -> tuple[mujoco.MjModel, mujoco.MjData]:
            spec = mujoco.MjSpec.from_file(self.fullpath)
            mark = spec.worldbody.add_body(name=_GOAL_MARK)
            size, color = [GOAL_MARK_RADIUS_M, 0.0, 0.0], [*GOAL_MARK_COLOR, 1.0]
            mark.add_geom(type=mujoco.mjtGeom.mjGEOM_SPHERE, size=size, rgba=color, group=1, contype=0, conaffinity=0)
            model = spec.compile()
            return model, mujoco.MjData(model)

    return Marked


def _aim(model: mujoco.MjModel, camera: str, eye: NDArray[np.float64], at: NDArray[np.float64], field: float) -> None:
    """Put a camera somewhere and point it at something; `field` is its vertical field of view in degrees."""
    forward = np.subtract(at, eye) / np.linalg.norm(np.subtract(at, eye))
    right = np.cross(forward, (0.0, 0.0, 1.0))
    right /= np.linalg.norm(right)
    axes = np.stack([right, np.cross(right, forward), -forward], axis=1)
    camera_id = model.camera(camera).id
    model.cam_pos[camera_id], model.cam_fovy[camera_id] = eye, field
    mujoco.mju_mat2Quat(model.cam_quat[camera_id], axes.reshape(-1))
