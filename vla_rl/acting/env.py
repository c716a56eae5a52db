"""A task as an object in which policies act."""

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from vla_rl.acting.task_config import TaskConfig
from vla_rl.core.config import config_from_dict
from vla_rl.core.errors import UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.types import Observation

if TYPE_CHECKING:
    from vla_rl.acting.task import SimulatorSetup


class Env:
    """Hold a task in which policies act; `make_env` makes it.

    Attributes:
        task: Complete description of the task. Other processes make the same environment from it.
    """

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self._observed = False

    @functools.cached_property
    def simulator(self) -> "SimulatorSetup":
        """Environment as a robot, with its safety gate."""
        from robot_io.gate import GateConfig
        from vla_rl.acting.task import SimulatorSetup

        return SimulatorSetup.build(self.task.env, self.task, GateConfig())

    @property
    def gym(self) -> Any:
        """The wrapped `gymnasium.Env`."""
        return self.simulator.robot.env

    @property
    def spec(self) -> PolicySpec:
        """Interface of a policy for this task: cameras, sizes, control rate."""
        return self.simulator.spec()

    def reset(self, seed: int = 0) -> Observation:
        """Begin an episode.

        Args:
            seed: Reset seed of the environment.

        Returns:
            First observation: images uint8 [H, W, 3] by camera, state float32 [S], task sentence.
        """
        self.simulator.robot.reset(seed)
        self._observed = True
        return self.observe()

    def observe(self) -> Observation:
        """Return the newest observation. The first call begins an episode with seed 0."""
        return self.simulator.robot.read() if self._observed else self.reset()

    def close(self) -> None:
        """Close the environment. The next use opens it again."""
        if "simulator" in self.__dict__:
            self.simulator.robot.close()
            del self.__dict__["simulator"]
            self._observed = False

    def __repr__(self) -> str:
        return f"Env({self.task.env!r})"


AnyEnv = Env | str | Callable[..., Any]
"""What functions take for a task: an environment of `make_env`, or what `make_env` takes."""


def make_env(
    task: str | Callable[..., Any],
    *,
    difficulty: float = 0.5,
    image_size: int = 64,
    renderer: str = "raycast",
    declare: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Env:
    """Make an environment in which policies can act.

    Args:
        task: Name of a task, id of a Gymnasium environment, ``module:Name``, or a class or function that makes an
            environment.
        difficulty: Difficulty from 0 (easy) to 1 (hard), for environments that take one.
        image_size: Height and width of the camera images, pixels. Larger images of other environments are resized.
        renderer: ``raycast``, ``egl`` or ``auto``, for environments that take a renderer.
        declare: Properties that the environment does not report itself, such as ``{"action_kind": "delta"}`` if actions
            are steps and not targets; see `robot_io.env_interface.EnvDeclaration`.
        arguments: Further arguments of the environment.

    Returns:
        Environment, already checked once.

    Raises:
        UserError: If the task is unknown or does not take these arguments, or the class or function is not at the top
            of a module.

    Example:
        >>> env = make_env("vla_rl/PegInsert-v0", difficulty=0.4)
        >>> env.spec.cameras, env.observe().state.shape
        (('front', 'top'), (8,))
    """
    from vla_rl.acting.task import warn_of_assumptions

    if not isinstance(task, str):
        if not callable(task):
            raise UserError(
                f"make_env was given a {type(task).__name__}, expected a class or function that makes the environment. "
                "Workers and evaluations make it anew"
            )
        if "<" in task.__qualname__:
            raise UserError(f"{task.__qualname__} cannot be found by name; define it at the top of a module")
        task = f"{task.__module__}:{task.__qualname__}"
    settings = {"env": task, "difficulty": difficulty, "image_size": image_size, "renderer": renderer}
    declared = dict(declare or {})
    if isinstance(declared.get("action_kind"), str):
        declared["action_kind"] = [declared["action_kind"]]
    env = Env(config_from_dict(TaskConfig, {**settings, "kwargs": arguments, "declare": declared}))
    env.spec  # noqa: B018  # what is wrong with it shows here
    warn_of_assumptions(env.simulator.robot, task)
    return env


def as_env(env: AnyEnv) -> Env:
    """Return the environment; make it if only its name, class or function is given."""
    return env if isinstance(env, Env) else make_env(env)
