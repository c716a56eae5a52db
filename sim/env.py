"""The environment that all our tasks share: physics, observation, action and episode bookkeeping.

A task adds its bodies, their starts, and what success is. A step does physics and ray casting and next to nothing
else. Not thread-safe; one process may hold many environments.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from sim.interface import ABSOLUTE, CameraEnv, StepResult, observation_space
from sim.pictures import draw_picture
from sim.rendering import Renderer
from sim.scene import FINGER_REACH, GRIPPER_OPENING_MAX, ArmSpec, scene_xml
from vla_rl.core.errors import UserError

CONTROL_HZ = 20
CHANNELS = ("x", "y", "z", "grip")  # of one arm: its grip point and the gripper's opening
CHANNELS_PER_ARM = len(CHANNELS)
_CLEAR_HEIGHT = 0.14  # m, of a hand above everything on the table
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class TabletopEnv(CameraEnv):
    """One or two Cartesian arms at a table.

    Observation: `{"pixels": {camera: uint8 [H, W, 3]}, "agent_pos": float32 [S]}`. Action: float32 [A], absolute
    targets. State and action list, for every arm, x, y, z of the grip point and the gripper's opening, all in meters.
    The reward is 1 at success, which ends the episode, and 0 before it.

    Arguments as of `CameraEnv`; difficulty 0 has narrow starts and generous clearances, 1 wide starts and tight ones.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": CONTROL_HZ}  # noqa: RUF012 - gymnasium declares it so
    expert: ClassVar[str]  # module:Name of the scripted expert
    task_description: ClassVar[str]
    max_episode_steps: int
    expert_steps: ClassVar[int]  # what the expert takes on average
    arms: ClassVar[tuple[ArmSpec, ...]]
    home: ClassVar[tuple[tuple[float, float, float], ...]]  # grip point of every arm at the start, meters
    objects: ClassVar[tuple[str, ...]]
    renderer: Renderer

    def _build(self, renderer: str) -> None:
        self.model = mujoco.MjModel.from_xml_string(scene_xml(self.arms, self._bodies_xml()))
        self.data = mujoco.MjData(self.model)
        self.n_substeps = round(1 / (CONTROL_HZ * self.model.opt.timestep))
        mujoco.mj_forward(self.model, self.data)
        self.renderer = Renderer(renderer, self.model, self.data, self.cameras, self.image_size)

        joint = self.model.joint
        self._axes = np.array(
            [[joint(f"{arm.side}_{axis}").qposadr[0] for axis in "xyz"] for arm in self.arms]
        )  # [arms, 3]
        self._fingers = np.array(
            [[joint(f"{arm.side}_finger_{end}").qposadr[0] for end in ("front", "back")] for arm in self.arms]
        )  # [arms, 2]
        self._object_start = {name: joint(f"{name}_x").qposadr[0] for name in self.objects}
        # Views of MuJoCo's own memory, made once: making them anew at every step would cost as much as a substep.
        self._qpos, self._ctrl = self.data.qpos, self.data.ctrl
        self._position = {name: self.data.xpos[self.model.body(name).id] for name in self.objects}
        self._rotation = {name: self.data.xmat[self.model.body(name).id].reshape(3, 3) for name in self.objects}
        self._home = np.array([(*home, GRIPPER_OPENING_MAX) for home in self.home])  # [arms, 4]

        low, high = self.model.actuator_ctrlrange.T
        self._low, self._high = low.copy(), high.copy()
        self.action_space = gymnasium.spaces.Box(low.astype(np.float32), high.astype(np.float32))
        self.observation_space = observation_space(self.cameras, self.image_size, len(low), 1.0)
        self._read = np.concatenate([self._axes, self._fingers[:, :1]], axis=1).reshape(-1)  # [S]
        self.elapsed_steps = 0

    @abstractmethod
    def _bodies_xml(self) -> str:
        """MJCF of the task's objects."""

    @abstractmethod
    def _place_objects(self, rng: np.random.Generator) -> None:
        """Put every object at its start with `place`, and draw whatever else differs between episodes."""

    @abstractmethod
    def is_success(self) -> bool:
        """Return whether the task is done in the present state."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode at a new start. With ``options={"world": state}`` the world goes on from a state that
        `get_state` gave: nothing is placed, and the arms go home by themselves.
        """
        super().reset(seed=seed, options=options)
        start = self._home.copy()
        start[:, :3] += self.np_random.uniform(-0.012, 0.012, (len(self.arms), 3))
        if options is not None and "world" in options:
            self.set_state(options["world"])
            self._go_home(start)
            self.elapsed_steps = 0
            return self._observe(), {"is_success": self.is_success()}
        mujoco.mj_resetData(self.model, self.data)
        self._qpos[self._axes] = start[:, :3]
        self._qpos[self._fingers] = FINGER_REACH
        self._ctrl[:] = start.reshape(-1)
        self._place_objects(self.np_random)
        mujoco.mj_forward(self.model, self.data)
        self.elapsed_steps = 0
        return self._observe(), {"is_success": False}

    def _go_home(self, home: NDArray[np.float64]) -> None:
        """Open the grippers, lift the arms and bring them home [arms, 4], as a robot does before an attempt."""
        here = self._ctrl.reshape(-1, CHANNELS_PER_ARM).copy()
        opened = here.copy()
        opened[:, -1] = GRIPPER_OPENING_MAX
        lifted = np.maximum(opened, (-1.0, -1.0, _CLEAR_HEIGHT, 0.0))
        for goal, ticks in ((opened, 10), (lifted, 20), (home, 30)):
            for share in np.arange(1, ticks + 1) / ticks:
                self._ctrl[:] = (here + share * (goal - here)).reshape(-1)
                mujoco.mj_step(self.model, self.data, self.n_substeps)
            here = goal
        self._locate()

    def step(self, action: NDArray[np.float32]) -> StepResult:
        np.minimum(np.maximum(action, self._low), self._high, out=self._ctrl)
        if math.isnan(self._ctrl @ self._ctrl):
            raise UserError(f"The action holds something that is not a number: {action}. Send targets in meters.")
        mujoco.mj_step(self.model, self.data, self.n_substeps)
        self._locate()  # mj_step leaves positions of bodies one substep behind
        self.elapsed_steps += 1
        return self._result(self.is_success())

    def render(self) -> NDArray[np.uint8]:
        """Picture of the whole scene for people, uint8 [480, 480, 3]."""
        return draw_picture(self.model, self.data)

    @property
    def action_kind(self) -> tuple[str, ...]:
        """Per action dimension, see `sim.interface`: all are targets."""
        return (ABSOLUTE,) * CHANNELS_PER_ARM * len(self.arms)

    @property
    def state_names(self) -> tuple[str, ...]:
        """Names of the numbers of state and action, see `sim.interface`: ``left_x`` and so on."""
        return tuple(f"{arm.side}_{channel}" for arm in self.arms for channel in CHANNELS)

    @property
    def state_units(self) -> tuple[str, ...]:
        """Units of state and action: meters."""
        return ("m",) * len(self.state_names)

    action_names, action_units = state_names, state_units

    @property
    def gripper_dims(self) -> tuple[int, ...]:
        """The action dimensions that open and close a gripper: the last channel of every arm."""
        return tuple(range(CHANNELS_PER_ARM - 1, CHANNELS_PER_ARM * len(self.arms), CHANNELS_PER_ARM))

    def rest_action(self, state: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the action that keeps the arms where they are, float32 [A]: the last targets. The measured state would
        do for the arms, but a gripper that is sent to where its fingers are lets go.
        """
        del state
        return self._ctrl.astype(np.float32)

    def get_state(self) -> NDArray[np.float64]:
        """Return the whole state, float64 [N]: MuJoCo's integration state and the number of steps taken."""
        state = np.empty(mujoco.mj_stateSize(self.model, _STATE) + 1)
        mujoco.mj_getState(self.model, self.data, state[:-1], _STATE)
        state[-1] = self.elapsed_steps
        return state

    def set_state(self, state: NDArray[np.float64]) -> dict[str, Any]:
        """Go to a state that `get_state` of the same task and difficulty gave, and return its observation.

        Replay from there is exact.

        Raises:
            UserError: the state is of another task.
        """
        expected = mujoco.mj_stateSize(self.model, _STATE) + 1
        if np.shape(state) != (expected,):
            raise UserError(
                f"This state has shape {np.shape(state)}; {type(self).__name__} needs ({expected},), of the same task."
            )
        mujoco.mj_setState(self.model, self.data, state[:-1], _STATE)
        self._locate()
        self.elapsed_steps = int(state[-1])
        return self._observe()

    def grip_points(self) -> NDArray[np.float64]:
        """Grip point of every arm, float64 [arms, 3], meters."""
        return self._qpos[self._axes]

    def openings(self) -> NDArray[np.float64]:
        """Opening of every gripper, float64 [arms], meters."""
        return self._qpos[self._fingers].sum(axis=1)

    def position(self, name: str) -> NDArray[np.float64]:
        """Middle of an object's base, float64 [3], meters; a view that moves with the object."""
        return self._position[name]

    def rotation(self, name: str) -> NDArray[np.float64]:
        """Rotation from an object's frame to the world's, float64 [3, 3]; a view that turns with the object."""
        return self._rotation[name]

    def in_frame_of(self, frame: str, point: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return a point of the world as seen from an object, float64 [3], meters."""
        return (point - self._position[frame]) @ self._rotation[frame]

    def place(self, name: str, x: float, y: float, yaw: float = 0.0) -> None:
        """Stand an object on the table, or lay a marker there."""
        start, n_joints = self._object_start[name], self.model.body(name).jntnum[0]
        self._qpos[start : start + n_joints] = (x, y, 0.0, yaw, 0.0, 0.0)[:n_joints]

    def _locate(self) -> None:
        mujoco.mj_kinematics(self.model, self.data)
        mujoco.mj_camlight(self.model, self.data)

    def _observe(self) -> dict[str, Any]:
        agent_pos = self._qpos[self._read]
        agent_pos[3::CHANNELS_PER_ARM] += self._qpos[self._fingers[:, 1]]
        return self._observation(agent_pos)

    def _draw(self, camera: str) -> NDArray[np.uint8]:
        return self.renderer.render(self.data, camera)


def large_pictures(env: Any, image_size: int) -> Callable[[], Mapping[str, NDArray[np.uint8]]]:
    """Return a function that draws an environment for people: camera -> uint8 [H, W, 3] of its present state.

    A task of ours is drawn with this many pixels, an adapted benchmark at its own size. Any other environment draws by
    its `render`, where it has one.
    """
    inner = env.unwrapped
    if isinstance(inner, TabletopEnv):
        renderer = Renderer("auto", inner.model, inner.data, inner.cameras, image_size)
        return lambda: {camera: renderer.render(inner.data, camera) for camera in inner.cameras}
    if isinstance(inner, CameraEnv):
        return inner.draw_now
    if inner.render_mode == "rgb_array":
        return lambda: {"render": np.asarray(inner.render())}
    return dict
