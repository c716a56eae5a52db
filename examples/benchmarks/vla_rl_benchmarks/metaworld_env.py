"""Meta-World tasks behind our interface, with cameras close enough for small pictures.

The native action stays: x, y, z steps of the hand in units of 1 cm, and the gripper's effort, each from -1 to 1. The
reward becomes 1 at success, which ends the episode; Meta-World's dense reward only measures progress.
"""

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.interface import ABSOLUTE, CAMERAS, DELTA, CameraEnv, StepResult, observation_space
from sim.rendering import Renderer
from vla_rl_benchmarks.scene import StepExpert, aim, import_suite

STEP_M = 0.01  # how far a motion action of 1 moves the hand
_NATIVE_CAMERAS = {"front": "corner2", "top": "topview"}
_EYES = {"front": (0.42, 0.18, 0.52), "top": (0.0, 0.64, 0.95)}
_LOOK_AT = {"front": (0.0, 0.68, 0.10), "top": (0.0, 0.66, 0.0)}
_HAND_NAMES, _HAND_UNITS = ("x", "y", "z", "gripper"), ("m", "m", "m", "")
_N_HAND, _N_PRESENT = 4, 18
_POSE = ("x", "y", "z", *(f"quaternion_{n}" for n in range(4)))  # from task to task, w is its first or last number
_OBJECT_NAMES = (*(f"object_{n}_{name}" for n in (1, 2) for name in _POSE), "goal_x", "goal_y", "goal_z")
_OBJECT_UNITS = (*(("m",) * 3 + ("",) * 4) * 2, "m", "m", "m")
# The arm's meshes, which make up nine tenths of a scene's triangles.
LINKS = ("base", "pedestal", "head", "l0", "l1", "l2", "l3", "l4", "l5", "l6", "eGripperBase")
_GOAL_MARK = "goal_mark"
GOAL_MARK_RADIUS_M, GOAL_MARK_COLOR = 0.02, (1.0, 0.0, 1.0)  # a color that nothing else in these scenes has


@dataclass(frozen=True)
class MetaWorldTask:
    """What we add to one of Meta-World's tasks: a sentence, a time limit, a view and, where it takes one, a goal mark.

    Attributes:
        sentence: Task sentence of the policy.
        expert_steps: how long Meta-World's scripted policy takes, the mean over its successes without noise.
        fields_of_view: vertical, of the front and the top camera, in degrees.
        shift: how far both cameras are moved from the middle of the table, x, y, z in meters.
        goal_mark: whether a colored ball stands where the goal is. Meta-World hides the goal of these tasks from its
            observation and draws it only as a site. It differs between episodes, and no object shows it, so pictures
            alone would not be enough.
        takes_noise: Whether the scripted policy still succeeds with the noise of demonstrations. Otherwise its
            demonstrations have none: those that succeed with noise would be few, and slower.
    """

    sentence: str
    expert_steps: int
    fields_of_view: tuple[float, float] = (52.0, 52.0)
    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    goal_mark: bool = False
    takes_noise: bool = True

    @property
    def max_episode_steps(self) -> int:
        """Three times what the expert takes, in whole fifties, and at least 250."""
        return max(250, self.expert_steps * 3 // 50 * 50)


class MetaWorldEnv(CameraEnv):
    """One Meta-World task; `metaworld_tasks` has a subclass for each.

    Args:
        pictures: Whether the policy sees pictures. If not, its state holds objects and goal too.
        arguments: As of `CameraEnv`.

    Observation: `{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [4]}`: hand position in meters and the
    gripper's opening, 0 to 1. Without pictures it is `{"agent_pos": float32 [21]}`, named in `state_names`. Where
    nothing in the scene says where the goal is, a colored ball marks it and touches nothing (`goal_mark`).

    Unlike in Meta-World's own pictures, the links of the arm are coarse convex hulls, and the ray caster draws a
    texture as its mean color.

    Attributes:
        native_name: Meta-World's own name of the task, such as "button-press-v3".
        task: What we add to it.

    Raises:
        UserError: An argument that does not fit, or metaworld is not installed.
    """

    renderer: Renderer
    native_name: ClassVar[str]
    task: ClassVar[MetaWorldTask]
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 80}
    expert: ClassVar[str] = "vla_rl_benchmarks.metaworld_env:MetaWorldExpert"
    gripper_dims: ClassVar[tuple[int, ...]] = (3,)
    action_kind: ClassVar[tuple[str, ...]] = (DELTA, DELTA, DELTA, ABSOLUTE)
    action_names: ClassVar[tuple[str, ...]] = _HAND_NAMES  # in no unit: shares of `STEP_M` and of an effort

    def __init__(self, pictures: bool = True, **arguments: Any) -> None:
        self.with_pictures = pictures
        self.state_names = _HAND_NAMES if pictures else (*_HAND_NAMES, *_OBJECT_NAMES)
        self.state_units = _HAND_UNITS if pictures else (*_HAND_UNITS, *_OBJECT_UNITS)
        self.task_description, self.expert_steps = self.task.sentence, self.task.expert_steps
        self.max_episode_steps = self.task.max_episode_steps
        super().__init__(**arguments)

    def _build(self, renderer: str) -> None:
        metaworld = import_suite("metaworld", "metaworld")
        benchmark = metaworld.MT1(self.native_name, seed=0)
        native_class = benchmark.train_classes[self.native_name]
        self.native = (_with_goal_mark(native_class) if self.task.goal_mark else native_class)()
        self.native.set_task(benchmark.train_tasks[0])
        # Only after set_task, which freezes the scene: without these two, every episode would be the same.
        self.native._freeze_rand_vec = False
        self.native.seeded_rand_vec = True
        for camera, field in zip(CAMERAS, self.task.fields_of_view, strict=True):
            eye, look_at = (np.add(point, self.task.shift) for point in (_EYES[camera], _LOOK_AT[camera]))
            aim(self.native.model, _NATIVE_CAMERAS[camera], eye, look_at, field)
        self.action_space = self.native.action_space
        self.observation_space = observation_space(self.cameras, self.image_size, len(self.state_names), 2.0)
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
        if self.task.goal_mark:
            self.native.model.body(_GOAL_MARK).pos = self.native._target_pos
        # The benchmark moves static bodies without computing where that takes their geoms.
        mujoco.mj_kinematics(self.native.model, self.native.data)
        return observation

    def _observe(self) -> dict[str, Any]:
        seen = self.native_observation
        if self.with_pictures:
            return self._observation(seen[:_N_HAND])
        # What Meta-World observes is the present and then the step before. Some tasks hide the goal in it.
        return self._observation(np.concatenate([seen[:_N_PRESENT], self.native._target_pos]))

    def _draw(self, camera: str) -> NDArray[np.uint8]:
        return self.renderer.render(self.native.data, _NATIVE_CAMERAS[camera])


class MetaWorldExpert(StepExpert):
    """Meta-World's own scripted policy of a task. Like our experts, it decides from the present state alone."""

    env: MetaWorldEnv
    meters_per_action = STEP_M

    def __init__(self, env: Any, action_noise: float = 0.0) -> None:
        super().__init__(env, action_noise if env.unwrapped.task.takes_noise else 0.0)
        self._policy = import_suite("metaworld.policies", "metaworld").ENV_POLICY_MAP[self.env.native_name]()

    def _plan(self) -> NDArray[np.float64]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns at every step that its own actions are cut to [-1, 1]
            return np.clip(self._policy.get_action(self.env.native_observation), -1.0, 1.0)

    def progress(self) -> float:
        """Return the best of Meta-World's dense reward so far, 0 to 1."""
        return self.env.progress


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
