"""A task by its name: any `gymnasium.Env`, with the arguments that it takes, as a robot with a gate."""

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import gymnasium

import sim
from robot_io.env_robot import EnvRobot, renderer_remedy
from robot_io.gate import GateConfig, SafetyGate
from sim.operators import Operator, operator_config
from sim.rendering import RENDERERS
from vla_rl.acting.action_kinds import delta_dims
from vla_rl.acting.attempt import Attempts
from vla_rl.acting.task_config import TakeoverConfig, TaskConfig
from vla_rl.acting.task_names import find_task
from vla_rl.core.clock import Clock
from vla_rl.core.errors import ConfigError, UserError, did_you_mean, raised
from vla_rl.core.logging_setup import library_output_once
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.protocols import TakeoverSource
from vla_rl.core.registry import find
from vla_rl.core.robot_matching import declared
from vla_rl.core.types import Origin
from vla_rl.data.episode_header import check_camera_names
from vla_rl.execution.sources import Demonstrator

logger = logging.getLogger(__name__)
ASSUMED_EPISODE_STEPS = 1000
"""Where neither the environment nor its registration limits an episode."""
_OFFERED = ("difficulty", "image_size", "renderer")
_DEMONSTRATION_NOISE = 0.003  # on an expert's sent actions, in their unit; the policy learns the clean action


@library_output_once()
def make_env(task: TaskConfig, env_id: str | None = None) -> Any:
    """Make the environment of a task, or another one with the same settings.

    An environment gets ``difficulty``, ``image_size`` and ``renderer`` if it takes arguments of these names, with
    defaults of their kind (a number; one of our renderers). One that was registered with its own keeps them. It gets
    ``task.kwargs`` unchanged. Its attribute ``declared`` is ``task.declare``, for supervisors, which are given nothing
    but the environment; ``assumes_limit`` says that nothing limits its episodes but an assumption.

    Raises:
        UserError: for an unknown name, arguments that the environment does not take, or something that is no
            environment.
    """
    name = env_id or task.env
    spec = copy.copy(find_task(name))
    creator = _creator(spec)
    # In the spec, not as arguments of gymnasium.make: an environment may call one of its own id or max_episode_steps.
    spec.kwargs = spec.kwargs | _arguments(name, spec, creator, task)
    spec.entry_point = functools.partial(_make_one, name, creator)
    limit = task.declare.max_episode_steps
    env: Any = gymnasium.make(spec, max_episode_steps=limit, disable_env_checker=True)
    if limit is not None and env.has_wrapper_attr("max_episode_steps"):  # its own limit, which may be a shorter one
        env.set_wrapper_attr("max_episode_steps", limit)
    known = episode_limit(env)
    if _limit(env, "_max_episode_steps") is None:  # there is no TimeLimit around it
        env = gymnasium.wrappers.TimeLimit(env, known or ASSUMED_EPISODE_STEPS)
    env.declared, env.assumes_limit = task.declare, known is None
    return env


def episode_limit(env: gymnasium.Env[Any, Any]) -> int | None:
    """Return the longest episode, steps: of the time limit around the environment, or of its own."""
    return _limit(env, "_max_episode_steps") or _limit(env, "max_episode_steps")


def _limit(env: gymnasium.Env[Any, Any], attribute: str) -> int | None:
    limit = env.get_wrapper_attr(attribute) if env.has_wrapper_attr(attribute) else None
    return None if limit is None else int(limit)


def open_robot(task: TaskConfig, env_id: str | None = None, clock: Clock | None = None) -> EnvRobot:
    """Return the environment of a task as a robot; errors as of `make_env` and `EnvRobot`."""
    name = env_id or task.env
    try:
        with library_output_once():
            robot = EnvRobot(make_env(task, env_id), clock, task.declare, task.image_size)
    except gymnasium.error.DependencyNotInstalled as error:
        raise UserError(f"{name} lacks a package: {error}") from error
    except UserError:
        raise
    except Exception as error:
        if remedy := renderer_remedy(error):
            raise UserError(f"{name} cannot be made: {raised(error)}.{remedy}") from error
        raise
    if robot.env.assumes_limit:
        cut = f"an episode is cut after {ASSUMED_EPISODE_STEPS} steps: declare max_episode_steps"
        robot.assumed.append(f"the task has no time limit; {cut}")
    check_camera_names(robot.reader.camera_names, "task.declare.cameras={front: PATH.IN.THE.OBSERVATION}")
    return robot


def warn_of_assumptions(robot: EnvRobot, name: str) -> None:
    """Log what an environment does not declare, and which of its observations no policy sees."""
    for note in (*robot.assumed, *robot.reader.left_out):
        logger.warning("%s: %s", name, note)


def make_gate(robot: EnvRobot, config: GateConfig) -> SafetyGate:
    """Return the safety gate of a simulated robot."""
    actions = robot.actions
    filled = config.filled(actions.low.tolist(), actions.high.tolist(), actions.gripper_dims, delta_dims(actions.kind))
    return SafetyGate(filled, robot.control_hz)


@dataclass(frozen=True)
class SimulatorSetup:
    """One environment with its robot and gate, and the attempts on it."""

    env_id: str
    robot: EnvRobot
    gate: SafetyGate
    attempts: Attempts

    @classmethod
    def build(
        cls, env_id: str, task: TaskConfig, gate_config: GateConfig, clock: Clock | None = None
    ) -> "SimulatorSetup":
        """Build and connect."""
        robot = open_robot(task, env_id, clock)
        robot.connect()
        gate = make_gate(robot, gate_config)
        return cls(env_id, robot, gate, Attempts(robot, gate, Origin.SIM, env_id))

    def spec(self) -> PolicySpec:
        """Return the interface of a policy for this simulator alone."""
        return spec_of_robot(self.env_id, self.robot)

    def demonstrator(self, operator: str | None = None) -> Demonstrator:
        """Return the environment's scripted expert, or a named operator that drives it; UserError if it has none."""
        try:
            expert = sim.make_expert(self.robot.env, 0.0 if operator else _DEMONSTRATION_NOISE)
        except UserError as error:
            raise UserError(
                f"{self.env_id} cannot be demonstrated: {error} Or bring demonstrations of your own, "
                "task.demonstrations=PATH. PATH is an episode store (vla-rl record), a run folder or a LeRobotDataset"
            ) from error
        if operator is not None:
            expert = Operator(expert, operator_config(operator))
        return Demonstrator(expert.act, expert.reset)

    def supervisor(self, config: TakeoverConfig) -> TakeoverSource:
        """Return the configured takeover source, see `make_supervisor`."""
        return make_supervisor(self.env_id, self.robot.env, config)


def make_supervisor(env_id: str, env: gymnasium.Env[Any, Any], config: TakeoverConfig) -> TakeoverSource:
    """Return the configured supervisor of an environment; UserError if that one cannot supervise it."""
    make: Callable[[Any, Any], TakeoverSource] = find("takeovers", config.supervisor)
    try:
        return make(env, config.options)
    except UserError as error:
        raise UserError(
            f"the supervisor {config.supervisor!r} cannot take over in {env_id}: {error} Name one of your own, "
            "takeover.supervisor=module:Name. Or let the policy practice alone: takeover.enabled=false"
        ) from error


def spec_of_robot(env_id: str, robot: EnvRobot) -> PolicySpec:
    """Return the interface of a policy for one environment."""
    return PolicySpec(
        env_id=env_id,
        cameras=robot.reader.camera_names,
        image_size=robot.reader.size,
        state_dim=robot.reader.state_dim,
        action_dim=robot.actions.size,
        control_hz=robot.control_hz,
        delta_dims=delta_dims(robot.action_kind),
        dimensions=(declared(robot),),
    )


def _creator(spec: gymnasium.envs.registration.EnvSpec) -> Callable[..., Any]:
    point: Any = spec.entry_point
    creator: Callable[..., Any] = (
        gymnasium.envs.registration.load_env_creator(point) if isinstance(point, str) else point
    )
    return creator


def env_creator(name: str) -> Callable[..., Any]:
    """Return the class or function that makes a task's environments; ConfigError for an unknown name."""
    return _creator(find_task(name))


def _make_one(name: str, creator: Callable[..., Any], /, **arguments: Any) -> gymnasium.Env[Any, Any]:
    """Return one environment, out of a vector of one if need be."""
    env = creator(**arguments)
    if isinstance(env, gymnasium.vector.VectorEnv):
        if env.num_envs != 1 or not hasattr(env, "envs"):
            raise UserError(
                f"{name} makes {env.num_envs} environments at once ({type(env).__name__}); a task is a single one. "
                "The workers of a run act in parallel (workers=N)"
            )
        env = env.envs[0]
    if not isinstance(env, gymnasium.Env):
        raise UserError(f"{name} makes a {type(env).__name__}; a task is a gymnasium.Env")
    return env


def _arguments(
    name: str, spec: gymnasium.envs.registration.EnvSpec, creator: Callable[..., Any], task: TaskConfig
) -> dict[str, Any]:
    """What the environment is made with, beside what it was registered with."""
    taken, takes_any = _parameters(creator)
    unknown = [key for key in task.kwargs if key not in taken and not takes_any]
    if unknown:
        raise ConfigError(f"{name} takes no argument {unknown[0]!r} (task.kwargs).{did_you_mean(unknown[0], taken)}")
    settings = {key: getattr(task, key) for key in _OFFERED if key in taken and key not in spec.kwargs}
    offered = {key: value for key, value in settings.items() if _means_the_same(taken[key], value)}
    modes = getattr(creator, "metadata", {}).get("render_modes", ())
    if "rgb_array" in modes and ("render_mode" in taken or takes_any) and "render_mode" not in spec.kwargs:
        offered["render_mode"] = "rgb_array"
    arguments = {**offered, **task.kwargs}
    given = {**spec.kwargs, **arguments}
    missing = [key for key, default in taken.items() if default is inspect.Parameter.empty and key not in given]
    if missing:
        raise ConfigError(f"{name} needs the argument {missing[0]!r}: give it as task.kwargs.{missing[0]}=...")
    return arguments


def _means_the_same(default: Any, ours: float | str) -> bool:
    """Return whether an argument named like one of our settings is of its kind, by the argument's default."""
    if default is None or default is inspect.Parameter.empty:
        return True
    if isinstance(ours, str):
        return isinstance(default, str) and default in RENDERERS
    return isinstance(default, int | float) and not isinstance(default, bool)


def _parameters(creator: Callable[..., Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the names that a class or a function takes, with their defaults, and whether it takes any other.

    A class that hands ``**kwargs`` on takes what its base classes do. The default of a required one is
    ``inspect.Parameter.empty``.
    """
    makers: list[Any] = [creator]
    if inspect.isclass(creator):
        makers = [base.__init__ for base in inspect.getmro(creator)]  # type: ignore[misc]
    taken: dict[str, Any] = {}
    for maker in makers:
        if maker is object.__init__:
            break
        takes_any = False
        parameters = list(inspect.signature(maker).parameters.values())
        for parameter in parameters[1:] if inspect.isclass(creator) else parameters:
            if parameter.kind is parameter.VAR_KEYWORD:
                takes_any = True
            elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                default = parameter.default
                if default is parameter.empty and maker is not makers[0]:  # the class itself may give it to its base
                    default = None
                taken.setdefault(parameter.name, default)
        if not takes_any:
            return taken, False
    return taken, not inspect.isclass(creator)
