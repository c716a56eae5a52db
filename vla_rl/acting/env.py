"""A task as an object that policies act on."""

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
    """A task that policies act on; `make_env` makes it.

    Attributes:
        task: Everything that decides it, so that other processes can make it too.
    """

    def __init__(self, task: TaskConfig) -> None:
        self.task = task
        self._observed = False

    @functools.cached_property
    def simulator(self) -> "SimulatorSetup":
        """The environment as a robot with its safety gate."""
        from robot_io.gate import GateConfig
        from vla_rl.acting.task import SimulatorSetup

        return SimulatorSetup.build(self.task.env, self.task, GateConfig())

    @property
    def gym(self) -> Any:
        """The `gymnasium.Env` itself."""
        return self.simulator.robot.env

    @property
    def spec(self) -> PolicySpec:
        """The interface of a policy for this task."""
        return self.simulator.spec()

    def reset(self, seed: int = 0) -> Observation:
        """Begin an episode and return its first observation."""
        self.simulator.robot.reset(seed)
        self._observed = True
        return self.observe()

    def observe(self) -> Observation:
        """Return the newest observation; the first call begins an episode."""
        return self.simulator.robot.read() if self._observed else self.reset()

    def close(self) -> None:
        """Close the environment."""
        if "simulator" in self.__dict__:
            self.simulator.robot.close()
            del self.__dict__["simulator"]
            self._observed = False

    def __repr__(self) -> str:
        return f"Env({self.task.env!r})"


def make_env(
    task: str | Callable[..., Any],
    *,
    difficulty: float = 0.5,
    image_size: int = 64,
    renderer: str = "raycast",
    declare: Mapping[str, Any] | None = None,
    **arguments: Any,
) -> Env:
    """Make an environment that policies can act on.

    Args:
        task: Name of a task, id of a Gymnasium environment, ``module:Name``, or a class or function that makes one.
        difficulty: 0 (easy) to 1 (hard), for environments that take a difficulty.
        image_size: Height and width of the cameras, pixels.
        renderer: ``raycast``, ``egl`` or ``auto``, for environments that take a renderer.
        declare: What the environment does not report itself, see `robot_io.env_interface.EnvDeclaration`.
        arguments: Further arguments of the environment.

    Raises:
        UserError: For an unknown task, or arguments that it does not take.

    Example:
        >>> env = make_env("vla_rl/PegInsert-v0", difficulty=0.4)
        >>> env.spec.cameras, env.observe().state.shape
        (('front', 'top'), (8,))
    """
    if not isinstance(task, str):
        if not callable(task):
            raise UserError(
                f"make_env was given a {type(task).__name__}; give the class or function that makes the environment, "
                "since workers and evaluations make it anew"
            )
        if "<" in task.__qualname__:
            raise UserError(f"{task.__qualname__} cannot be found by name; define it at the top of a module")
        task = f"{task.__module__}:{task.__qualname__}"
    settings = {"env": task, "difficulty": difficulty, "image_size": image_size, "renderer": renderer}
    env = Env(config_from_dict(TaskConfig, {**settings, "kwargs": arguments, "declare": dict(declare or {})}))
    env.spec  # noqa: B018  # what is wrong with it shows here
    return env


def as_env(env: Env | str) -> Env:
    """Return the environment, made if it is only named."""
    return make_env(env) if isinstance(env, str) else env
