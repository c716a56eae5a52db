"""The configuration of a task and of its supervisor. Imports no torch, so that a bad setting is refused at once."""

from dataclasses import dataclass, field
from typing import Any

from robot_io.env_interface import EnvDeclaration
from sim.operators import operator_config
from sim.rendering import RENDERERS
from vla_rl.core.config import fill_parts, part
from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.core.validation import check_ranges


@dataclass(frozen=True)
class TaskConfig:
    """The environment: any `gymnasium.Env`.

    Attributes:
        env: Name of the task: an entry point of ``vla_rl.tasks``, a Gymnasium id, ``package:Id-v0``, or
            ``module:Name``, a class or a function that makes an environment.
        also: Further environments that the same policy learns; the task sentence distinguishes them. Demonstrations,
            practice and evaluation episodes take turns among all of them, and they share their seeds. If they have one
            scene, set ``policy.text.film``.
        difficulty: 0 (easy) to 1 (hard), for environments that take a difficulty.
        image_size: Height and width of the cameras, pixels, for environments that take it. Larger pictures of other
            environments are resized to it.
        renderer: ``raycast``, ``egl`` or ``auto``, for environments that take a renderer.
        kwargs: Further arguments of the environment.
        declare: What the environment does not report itself.
        demonstrations: Path of an episode store, a run folder or a LeRobotDataset. Its demonstrations replace those of
            an expert, ``budget.demonstrations`` at most; 0: all.
        demonstration_speed: Largest factor by which ``demonstrations`` are made faster. The timing around changes of a
            gripper is kept, and of steps that would add up to more than can be sent (`vla_rl.acting.retiming`). 1: the
            recorded timing.
        operators: Names of `sim.operators.OPERATORS` that demonstrate in turns, in place of the expert; empty: the
            expert. ``takeover.options.operators`` names those that take over.
    """

    env: str = "vla_rl/PegInsert-v0"
    also: tuple[str, ...] = ()
    difficulty: float = 0.5
    image_size: int = 64
    renderer: str = "raycast"
    kwargs: dict[str, Any] = field(default_factory=dict)
    declare: EnvDeclaration = field(default_factory=EnvDeclaration)
    demonstrations: str | None = None
    demonstration_speed: float = 1.0
    operators: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.envs)) < len(self.envs):
            raise ConfigError(f"task: an environment is named twice in {', '.join(self.envs)}")
        check_ranges(
            self,
            "task",
            difficulty="[0, 1]",
            image_size=">= 8",
            demonstration_speed=">= 1",
        )
        if self.renderer not in RENDERERS:
            raise ConfigError(f"there is no task.renderer={self.renderer}.{did_you_mean(self.renderer, RENDERERS)}")
        if self.demonstration_speed > 1 and self.demonstrations is None:
            raise ConfigError(
                "task.demonstration_speed re-times demonstrations that exist: name them, task.demonstrations=RUN_DIR"
            )
        for name in self.operators:
            operator_config(name)

    @property
    def envs(self) -> tuple[str, ...]:
        """All environments."""
        return (self.env, *self.also)


@dataclass(frozen=True)
class TakeoverConfig:
    """The supervisor of practice episodes.

    Attributes:
        enabled: Whether a supervisor may take over; if not, the policy practices alone.
        supervisor: Name of an entry point of ``vla_rl.takeovers`` or ``module:Name``, called with the environment and
            the options.
        options: Options of the supervisor.
    """

    enabled: bool = True
    supervisor: str = "scripted"
    options: Any = part("takeovers", beside="supervisor", may_have_none=True)

    def __post_init__(self) -> None:
        fill_parts(self)


@dataclass(frozen=True)
class OneTask:
    """The config of what needs a task and nothing else.

    Attributes:
        task: The task.
    """

    task: TaskConfig = field(default_factory=TaskConfig)
