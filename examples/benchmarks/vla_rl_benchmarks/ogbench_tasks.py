"""OGBench's cube-single and cube-double, drawn by our renderer, with OGBench's own oracle as expert.

Each suite has five tasks: where the cubes start and where they belong. An episode takes one of them, drawn by its seed,
or always the task with the number ``task``. The places where the cubes belong are in the state, and no picture shows
them. Actions are OGBench's: three steps of the hand, its turn about the vertical and a step of the gripper. There is no
``rest_action``: a step counts from where the hand is, so under zeros the arm sinks by 1 to 3 mm a step.
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from sim.experts.base import nearness
from sim.interface import CameraEnv, observation_space
from sim.rendering import Renderer
from vla_rl.core.errors import ConfigError
from vla_rl_benchmarks.scene import StepExpert, import_suite, numpy_seeded

STEP_M = 0.05
"""Distance that a motion action of 1 asks of the hand in a step."""
_JOINTS = ("shoulder_pan", "shoulder_lift", "elbow", "wrist_1", "wrist_2", "wrist_3")
_CENTER, _SCALE = np.array([0.425, 0.0, 0.0]), 10.0  # how OGBench's observation scales positions
_HAND_NAMES = (
    *(f"{joint}_angle" for joint in _JOINTS),
    *(f"{joint}_speed" for joint in _JOINTS),
    *("x", "y", "z", "yaw_cos", "yaw_sin", "gripper_closing", "gripper_contact"),
)
_HAND_UNITS = (*("rad",) * 6, *("rad/s",) * 6, *("",) * 7)  # OGBench scales positions: 10 is a meter
_CUBE_NAMES = ("x", "y", "z", "quat_w", "quat_x", "quat_y", "quat_z", "yaw_cos", "yaw_sin")
_N_HAND = len(_HAND_NAMES)
_NATIVE_CAMERA = "front_pixels"


class CubeTaskEnv(CameraEnv):
    """OGBench's cubes.

    Args:
        image_size: Height and width of the pictures, pixels.
        drawn_with: Name of the renderer, see `sim.rendering`.
        pictures: Whether the policy sees pictures. If not, its state holds the cubes.
        task: Number of the task, 1 to 5; 0: one of them, drawn by the seed of the episode.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}
    camera_names = ("front",)
    expert = "vla_rl_benchmarks.ogbench_tasks:CubeOracle"
    action_kind = ("delta",) * 5
    gripper_dims = (4,)
    action_names = ("step_x", "step_y", "step_z", "turn", "gripper_step")
    action_units = ("",) * 5  # shares of 5 cm, of .3 rad and of the gripper's way
    kind: ClassVar[str]
    cubes: ClassVar[int]
    task_description: ClassVar[str]
    expert_steps: ClassVar[int]

    def __init__(self, image_size: int = 64, drawn_with: str = "egl", pictures: bool = True, task: int = 0) -> None:
        if task not in range(6):
            raise ConfigError(f"task is {task}; expected the number of a task, 1 to 5, or 0 for all of them")
        self.task, self.with_pictures = task, pictures
        super().__init__(image_size=image_size, renderer=drawn_with, cameras=self.camera_names)

    def _build(self, renderer: str) -> None:
        suite = import_suite("ogbench.manipspace.envs.cube_env", "ogbench")
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)
        self.native = _with_seeded_actions(suite.CubeEnv)(env_type=self.kind, visualize_info=False)
        self.native.reset(seed=0, options={"task_id": 1})
        objects = tuple(f"cube_{cube}_{part}" for cube in range(self.cubes) for part in _CUBE_NAMES)
        goals = tuple(f"goal_{cube}_{axis}" for cube in range(self.cubes) for axis in "xyz")
        self.state_names = (*_HAND_NAMES, *(() if self.with_pictures else objects), *goals)
        self.state_units = (*_HAND_UNITS, *("",) * (len(self.state_names) - _N_HAND))
        self.observation_space = observation_space(self.cameras, self.image_size, len(self.state_names), np.inf)
        self.last_action: NDArray[np.float32] = np.zeros(5, np.float32)
        if self.with_pictures:
            model = self.native.model
            meshes = [model.mesh(mesh).name for mesh in range(model.nmesh)]
            robot = [name for name in meshes if name.startswith("ur5e")]
            self.renderer = Renderer(renderer, model, self.native.data, [_NATIVE_CAMERA], self.image_size, robot)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        task, inner = self.task or int(self.np_random.integers(1, 6)), int(self.np_random.integers(2**31))
        self.native.action_space.seed(inner)
        self.seen, self.info = self.native.reset(seed=inner, options={"task_id": task})
        self.last_action = np.zeros(5, np.float32)
        return self._observe(), {"is_success": False, "task": task}

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.last_action = np.clip(action, -1.0, 1.0).astype(np.float32)
        self.seen, _, _, _, self.info = self.native.step(self.last_action.astype(np.float64))
        success = bool(self.info["success"])
        return self._observe(), float(success), success, False, {"is_success": success}

    def goals(self) -> NDArray[np.float64]:
        """Where the cubes belong, [cubes, 3] meters."""
        positions: NDArray[np.float64] = self.native.data.mocap_pos[self.native._cube_target_mocap_ids]
        return positions

    def _observe(self) -> dict[str, Any]:
        shown = self.seen[:_N_HAND] if self.with_pictures else self.seen
        return self._observation(np.concatenate([shown, ((self.goals() - _CENTER) * _SCALE).ravel()]))

    def _draw(self, camera: str) -> NDArray[np.uint8]:
        assert self.renderer is not None, "made without pictures"
        return self.renderer.render(self.native.data, _NATIVE_CAMERA)


class CubeSingle(CubeTaskEnv):
    """Carry one cube to its place."""

    kind, cubes = "single", 1
    task_description = "carry the cube to its place"
    max_episode_steps, expert_steps = 200, 45


class CubeDouble(CubeTaskEnv):
    """Carry two cubes to their places: next to each other, exchanged or stacked."""

    kind, cubes = "double", 2
    task_description = "carry the cubes to their places"
    max_episode_steps, expert_steps = 500, 110


def _with_seeded_actions(native_class: Any) -> Any:
    """OGBench's class with one action space. Its own property makes a new, unseeded one at every look.

    A reset plays two random actions in the goal's scene, which leave traces in the solver's state and in the controls.
    """

    class Seeded(native_class):
        action_space = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)

        def __init__(self, **arguments: Any) -> None:
            super().__init__(**arguments)
            self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (5,), np.float32)

    return Seeded


class CubeOracle(StepExpert):
    """OGBench's Markov oracle, with the cube to move and its goal.

    It takes the cube whose place is free and lowest. If each stands in the place of the other, one is put aside first.
    """

    env: CubeTaskEnv
    meters_per_action = STEP_M
    _ASIDE = np.array([0.35, 0.0, 0.02])
    _CARRY_M, _ABOVE_M = 0.18, 0.04  # how high it carries, and how near it is sideways where it goes down
    _LONGEST_M = 1.0  # way of the hand or of a cube: up, sideways and down
    _HELD_M = 0.03  # from the middle of a cube to the grip point

    def __init__(self, env: Any, action_noise: float = 0.0) -> None:
        self._make = import_suite("ogbench.manipspace.oracles.markov.cube_markov", "ogbench").CubeMarkovOracle
        super().__init__(env, action_noise)

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines the noise and where the hand goes at the end."""
        super().reset(seed)
        self._oracle = self._make(env=self.env.native, min_norm=0.4)
        with numpy_seeded(seed % 2**32):
            self._oracle.reset(None, None)
        self._errand: tuple[int, NDArray[np.float64]] | None = None

    def _plan(self) -> NDArray[np.float64]:
        cubes, goals = self._cubes(), self.env.goals()
        if self._errand is None or self._is_done(*self._errand, cubes):
            self._errand = self._next_errand(cubes, goals)
        cube, place = self._errand
        told = {"target_block": cube, "target_block_pos": place, "target_block_yaw": np.zeros(1)}
        info = self.env.info | {f"privileged/{name}": value for name, value in told.items()}
        return np.clip(self._oracle.select_action(None, info), -1.0, 1.0)

    def progress(self) -> float:
        """Share of the errands that are done, 0 to 1. Of the present one count the ways of the hand and of the cube."""
        cubes, goals, info = self._cubes(), self.env.goals(), self.env.info
        hand, is_open = info["proprio/effector_pos"], ~self._in_place(cubes, goals)
        if not is_open.any():
            return 1.0
        shut = info["proprio/gripper_contact"] > 0.5
        held = np.flatnonzero(is_open & shut & (np.linalg.norm(cubes - hand, axis=1) < self._HELD_M))
        if len(held):
            cube, place = int(held[0]), self._place(int(held[0]), cubes, goals)
            share = 0.5 + 0.5 * nearness(self._way(cubes[cube], place), self._LONGEST_M)
        else:
            cube, place = self._next_errand(cubes, goals)
            share = 0.4 * nearness(self._way(hand, cubes[cube]), self._LONGEST_M)
        left = is_open.sum() + (place is self._ASIDE)
        most = 1 if len(cubes) == 1 else len(cubes) + 1
        return float(1.0 - (left - share) / most)

    def _way(self, here: NDArray[np.float64], there: NDArray[np.float64]) -> float:
        """How far it is to a place, up, sideways and down, meters."""
        sideways = float(np.linalg.norm(there[:2] - here[:2]))
        if sideways <= self._ABOVE_M:
            return sideways + abs(here[2] - there[2])
        return sideways + max(self._CARRY_M - here[2], 0.0) + self._CARRY_M - there[2]

    def _cubes(self) -> NDArray[np.float64]:
        """Positions of the cubes, [cubes, 3] meters."""
        return np.stack([self.env.info[f"privileged/block_{cube}_pos"] for cube in range(self.env.cubes)])

    def _is_done(self, cube: int, place: NDArray[np.float64], cubes: NDArray[np.float64]) -> bool:
        """Whether a cube was put down and the hand has left it upwards."""
        info = self.env.info
        high = info["proprio/effector_pos"][2] > cubes[cube, 2] + 0.08
        return bool(np.linalg.norm(cubes[cube] - place) <= 0.02 and info["proprio/gripper_contact"] < 0.1 and high)

    def _next_errand(self, cubes: NDArray[np.float64], goals: NDArray[np.float64]) -> tuple[int, NDArray[np.float64]]:
        """The cube to move next, and where to."""
        open_errands = np.flatnonzero(~self._in_place(cubes, goals))
        if not len(open_errands):
            return 0, goals[0]
        for cube in sorted(open_errands, key=lambda cube: goals[cube, 2]):
            place = self._place(int(cube), cubes, goals)
            if place is not self._ASIDE:
                return int(cube), place
        return int(open_errands[0]), self._ASIDE

    def _place(self, cube: int, cubes: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.float64]:
        """Where a cube goes next, [3] meters: to its goal, or aside while another one stands there."""
        goal, is_other = goals[cube], np.arange(len(cubes)) != cube
        others = cubes[is_other & ~self._in_place(cubes, goals)]
        beside = np.linalg.norm(others[:, :2] - goal[:2], axis=1) < 0.05
        return self._ASIDE if (beside & (np.abs(others[:, 2] - goal[2]) < 0.03)).any() else goal

    @staticmethod
    def _in_place(cubes: NDArray[np.float64], goals: NDArray[np.float64]) -> NDArray[np.bool_]:
        return np.linalg.norm(cubes - goals, axis=1) <= 0.02
