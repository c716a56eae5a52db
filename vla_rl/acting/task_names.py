"""What the name of a task stands for, and which names there are."""

import contextlib
import difflib
import fnmatch
import functools
import importlib
import re
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec

import sim
from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.core.registry import find, names

_OURS = "uv pip install -e 'examples/benchmarks[{extra}]'"


@dataclass(frozen=True)
class Suite:
    """A known benchmark: tasks that vla-rl has an adapter for.

    Attributes:
        module: Module of the suite's own package.
        tasks: Names of its tasks. One that ends with ``*`` stands for all that begin so.
        install: Command that installs the suite and its adapter.
    """

    module: str
    tasks: tuple[str, ...]
    install: str


SUITES = (
    Suite(
        "robosuite",
        ("robosuite/Lift-v0", "robosuite/PickPlaceCan-v0", "robosuite/NutAssemblySquare-v0"),
        _OURS.format(extra="robosuite"),
    ),
    Suite("ogbench", ("ogbench/CubeSingle-v0", "ogbench/CubeDouble-v0"), _OURS.format(extra="ogbench")),
    Suite("gym_aloha", ("aloha/TransferCube-v0", "aloha/Insertion-v0"), _OURS.format(extra="aloha")),
    Suite("metaworld", ("vla_rl/MetaWorld*",), _OURS.format(extra="metaworld")),
)
"""The known benchmarks, installed or not; ``docs/known_benchmarks.md`` describes them."""
_CONVENTION = re.compile(r"gym(nasium)?_\w+")  # how packages of environments are named


def find_task(name: str) -> EnvSpec:
    """Find a task: an entry point, a Gymnasium id, ``module:Id-v0`` or ``module:Name``, in this order.

    The namespace of an id that is not registered is imported first, since ``gym_pusht/PushT-v0`` is registered by
    the package ``gym_pusht``.

    Raises:
        ConfigError: There is none. The message names near ones.
    """
    if name in names("tasks"):
        return _spec(name, find("tasks", name))
    sim.register_environments()
    if name in gymnasium.registry:
        return gymnasium.spec(name)
    module, colon, local = name.partition(":")
    if not colon:
        return _by_namespace(name)
    found = _import(module, name)
    if local in gymnasium.registry:
        return gymnasium.spec(local)
    if hasattr(found, local):
        return _spec(name, getattr(found, local))
    package = module.partition(".")[0]
    offered = [each for each, spec in gymnasium.registry.items() if str(spec.entry_point).startswith(package)]
    offered += [key for key, part in vars(found).items() if _is_env_class(part)]
    raise ConfigError(f"{module} registers no {local!r} with Gymnasium and holds none.{did_you_mean(local, offered)}")


@functools.cache
def task_names() -> tuple[str, ...]:
    """Names of all tasks that installed packages declare or register, as `find_task` takes them.

    Gymnasium's own ids are left out. A package is imported if its name follows the convention ``gym_NAME``.
    """
    sim.register_environments()
    for module in sorted(filter(_CONVENTION.fullmatch, packages_distributions())):
        with contextlib.suppress(Exception):  # a package may raise anything; its ids are then missing
            importlib.import_module(module)
    ids = {_name_of(spec) for spec in gymnasium.registry.values() if not _is_gymnasiums_own(spec)}
    return tuple(sorted({*names("tasks"), *ids}))


def all_tasks() -> dict[str, str]:
    """Names of `task_names` and of the known benchmarks -> command that installs what is missing; "" if nothing is."""
    missing = {pattern for suite in SUITES for pattern in suite.tasks if not fnmatch.filter(task_names(), pattern)}
    return {name: how_to_install(name) for name in sorted({*task_names(), *missing})}


def how_to_install(name: str) -> str:
    """Command that installs a known benchmark's task; "" if it is installed or no task of `SUITES`."""
    for suite in SUITES:
        for pattern in suite.tasks:
            if fnmatch.fnmatchcase(name, pattern):
                declared = fnmatch.filter(names("tasks"), pattern)
                return "" if declared and find_spec(suite.module) else suite.install
    return ""


def _by_namespace(name: str) -> EnvSpec:
    """Import the package that an id's namespace names, and return what it registers under the id."""
    if command := how_to_install(name):
        raise ConfigError(f"the task {name!r} is not installed: {command}")
    namespace, slash, _ = name.partition("/")
    module, missing = namespace.replace("-", "_"), ""
    if slash and module.isidentifier():
        try:
            _import(module, name)
        except ConfigError as error:
            missing = f" {error}."
        if name in gymnasium.registry:
            return gymnasium.spec(name)
    near = difflib.get_close_matches(name, {*names("tasks"), *gymnasium.registry})
    raise ConfigError(
        f"there is no task {name!r}.{missing}{did_you_mean(name, near) if near else ''} "
        "`vla-rl task list` shows all. Others are named package:Id-v0 (the package registers the id) or module:Name "
        "(a class or a function that makes an environment)"
    )


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] != module.split(".")[0]:
            raise  # the task is there, and lacks a package that it needs
        raise ConfigError(f"the task {name!r} cannot be imported: {error}; install the package {module!r}") from error


def _name_of(spec: EnvSpec) -> str:
    """Return an id as `find_task` takes it: behind the package that registers it, unless its namespace names that."""
    package = re.split(r"[.:]", str(spec.entry_point))[0]
    known = spec.id.startswith("vla_rl/") or (spec.namespace or "").replace("-", "_") == package
    return spec.id if known or callable(spec.entry_point) else f"{package}:{spec.id}"


def _is_gymnasiums_own(spec: EnvSpec) -> bool:
    point = spec.entry_point
    return (point if isinstance(point, str) else getattr(point, "__module__", "")).startswith("gymnasium.")


def _is_env_class(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, gymnasium.Env) and part is not gymnasium.Env


def _spec(name: str, factory: Any) -> EnvSpec:
    if not callable(factory):
        raise ConfigError(f"the task {name!r} is a {type(factory).__name__}; expected a class or a function")
    return EnvSpec(id=name, entry_point=factory)
