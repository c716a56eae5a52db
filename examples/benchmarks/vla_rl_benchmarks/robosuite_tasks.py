"""robosuite's Lift, PickPlaceCan and NutAssemblySquare, drawn by our renderer.

Actions are those of robosuite's operational-space controller: three steps of the hand, three turns and the gripper,
-1 (opens) to 1 (closes). The state is robomimic's proprioception: pose of the hand and the two finger joints. With
``pictures=False`` the pose of the object follows and where it is from the hand, as in robomimic's low-dimensional data.
The latter is the way in the world's frame in Lift (``to_object``). In the others it is the place in the hand's frame
(``object_in_hand``).
"""

from typing import Any, ClassVar

import gymnasium
import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from sim.interface import CameraEnv, observation_space
from sim.rendering import Renderer
from vla_rl_benchmarks.scene import import_suite, numpy_seeded, quiet

STEP_M = 0.05
"""Distance that a motion action of 1 asks of the hand in a step."""
_HAND = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
_HAND_NAMES = ("x", "y", "z", "quat_x", "quat_y", "quat_z", "quat_w", "left_finger", "right_finger")
_HAND_UNITS = (*("m",) * 3, *("",) * 4, *("m",) * 2)
_OBJECT_NAMES = tuple(f"object_{part}" for part in _HAND_NAMES[:7])
_OBJECT_UNITS = (*_HAND_UNITS[:7], *("m",) * 3)
_ROBOT = ("robot0", "gripper0", "fixed_mount0")  # how the names of the robot's meshes begin; they are drawn as hulls


class RobosuiteEnv(CameraEnv):
    """One robosuite task with a Panda arm.

    Args:
        image_size: Height and width of the pictures, pixels.
        drawn_with: Name of the renderer, see `sim.rendering`. The camera on the hand lies inside a mesh, for which the
            ray caster takes 13 to 22 times as long as EGL. (Runs set an argument ``renderer`` to the ray caster.)
        pictures: Whether the policy sees pictures. If not, its state holds the object.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}
    camera_names = ("agentview", "robot0_eye_in_hand")
    expert: ClassVar[str]
    action_kind = ("delta",) * 6 + ("absolute",)
    gripper_dims = (6,)
    action_names = ("step_x", "step_y", "step_z", "turn_x", "turn_y", "turn_z", "gripper")
    action_units = ("",) * 7  # shares of 5 cm, of .5 rad and of the gripper's speed
    task_description: ClassVar[str]
    expert_steps: ClassVar[int]
    observed_object: ClassVar[tuple[str, str]]  # its position and its orientation, in robosuite's words
    from_hand: ClassVar[str] = "object_in_hand"  # what its place from the hand is called here

    def __init__(self, image_size: int = 64, drawn_with: str = "egl", pictures: bool = True) -> None:
        self.with_pictures = pictures
        super().__init__(image_size=image_size, renderer=drawn_with, cameras=self.camera_names)

    def _build(self, renderer: str) -> None:
        suite = import_suite("robosuite", "robosuite")
        controllers = import_suite("robosuite.controllers", "robosuite")
        with numpy_seeded(0), quiet():
            self.native = suite.make(
                type(self).__name__,
                robots="Panda",
                controller_configs=controllers.load_composite_controller_config(controller="BASIC", robot="Panda"),
                control_freq=self.metadata["render_fps"],
                has_renderer=False,
                has_offscreen_renderer=False,
                use_camera_obs=False,
                hard_reset=False,  # a hard one compiles the scene anew
                ignore_done=True,
            )
            self.seen = self.native.reset()
        self.model, self.data = self.native.sim.model._model, self.native.sim.data._data
        self._parts = _HAND if self.with_pictures else (*_HAND, *self.observed_object)
        from_hand = tuple(f"{self.from_hand}_{axis}" for axis in "xyz")
        self.state_names = _HAND_NAMES if self.with_pictures else (*_HAND_NAMES, *_OBJECT_NAMES, *from_hand)
        self.state_units = _HAND_UNITS if self.with_pictures else (*_HAND_UNITS, *_OBJECT_UNITS)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (7,), np.float32)
        self.observation_space = observation_space(self.cameras, self.image_size, len(self.state_names), np.inf)
        self.last_action: NDArray[np.float32] = np.zeros(7, np.float32)
        if self.with_pictures:
            meshes = [self.model.mesh(mesh).name for mesh in range(self.model.nmesh)]
            robot = [name for name in meshes if name.startswith(_ROBOT)]
            self.renderer = Renderer(renderer, self.model, self.data, self.cameras, self.image_size, robot)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        super().reset(seed=seed, options=options)
        with numpy_seeded(int(self.np_random.integers(2**31))), quiet():  # robosuite warns at every reset
            self.seen = self.native.reset()
        self.last_action = np.zeros(7, np.float32)
        return self._observe(), {"is_success": False}

    def step(self, action: NDArray[np.float32]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        self.last_action = np.clip(action, -1.0, 1.0).astype(np.float32)
        self.seen, *_ = self.native.step(self.last_action.astype(np.float64))
        success = bool(self.native._check_success())
        return self._observe(), float(success), success, False, {"is_success": success}

    def rest_action(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """The action that keeps the hand where it is, float32 [7]: no motion, and the gripper's last command."""
        return np.append(np.zeros(6, np.float32), self.last_action[6])

    def close(self) -> None:
        super().close()
        self.native.close()

    def _observe(self) -> dict[str, Any]:
        parts = [self.seen[part] for part in self._parts]
        if not self.with_pictures:
            parts.append(self._place(self.seen[self.observed_object[0]] - self.seen["robot0_eef_pos"]))
        return self._observation(np.concatenate(parts))

    def _place(self, way: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the way to the object in the hand's frame; robosuite's own is of the object one step before."""
        return Rotation.from_quat(self.seen["robot0_eef_quat"]).inv().apply(way)

    def _draw(self, camera: str) -> NDArray[np.uint8]:
        assert self.renderer is not None, "made without pictures"
        return self.renderer.render(self.data, camera)


class Lift(RobosuiteEnv):
    """Lift a cube 4 cm off the table."""

    expert = "vla_rl_benchmarks.robosuite_experts:LiftExpert"
    task_description = "lift the cube"
    max_episode_steps, expert_steps = 150, 33
    observed_object = ("cube_pos", "cube_quat")
    from_hand = "to_object"

    def _place(self, way: NDArray[np.float64]) -> NDArray[np.float64]:
        return way


class PickPlaceCan(RobosuiteEnv):
    """Carry a can into its compartment of the other bin and let go of it."""

    expert = "vla_rl_benchmarks.robosuite_experts:PickPlaceCanExpert"
    task_description = "put the can into its bin"
    max_episode_steps, expert_steps = 300, 123
    observed_object = ("Can_pos", "Can_quat")


class NutAssemblySquare(RobosuiteEnv):
    """Put a square nut on its peg and let go of it."""

    expert = "vla_rl_benchmarks.robosuite_experts:NutAssemblySquareExpert"
    task_description = "put the square nut on its peg"
    max_episode_steps, expert_steps = 400, 140
    observed_object = ("SquareNut_pos", "SquareNut_quat")
