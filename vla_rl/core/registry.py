"""Finds parts (tasks, algorithms, strategies, robots ...) by name, those of this package and of any other one.

A name is an entry point of an installed package, in the group ``vla_rl.KIND``, or ``module:Name`` for one that no
package declares. Our own parts are entry points of our own package. No call registers anything: each process asks for a
part by its name. So rollout workers, cluster nodes, the inference process, the ROS node and a resumed run find the same
part.
"""

import functools
import importlib
import re
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

from vla_rl.core.errors import ConfigError, did_you_mean

KINDS = {
    "tasks": "task",
    "algorithms": "algorithm",
    "strategies": "execution strategy",
    "robots": "robot",
    "policies": "kind of policy",
    "takeovers": "takeover source",
    "sinks": "metric sink",
    "sources": "source of episodes",
    "rollouts": "pool of rollout workers",
    "outcomes": "success detector",
}
"""Each kind of part, and what one of it is called in messages."""
_APART = {
    "examples/baselines": "awr threshold recap no_ve residual_ppo rtc_identity training_time_prefix vlash",
    "plugins/vla_rl_bags": "bag",
    "plugins/vla_rl_lerobot": "lerobot",
    "plugins/vla_rl_ray": "ray",
    "plugins/vla_rl_trackers": "wandb mlflow trackio",
}  # packages of our repository that are installed by themselves, and their parts
OUR_PACKAGES = ("vla_rl", "world_model", "robot_io", "sim", "deploy_trt")


def group(kind: str) -> str:
    """Return the entry-point group of a kind of part."""
    return f"vla_rl.{kind}"


def declared_packages() -> set[str]:
    """Return the packages, by their names on the import path, in which others declare a part."""
    found = {entry.module.partition(".")[0] for kind in KINDS for entry in entry_points(group=group(kind))}
    return found - {*OUR_PACKAGES}


def names(kind: str) -> tuple[str, ...]:
    """Return the names that installed packages declare, sorted."""
    return _names(kind, tuple(sys.path))


@functools.lru_cache(maxsize=32)
def _names(kind: str, path: tuple[str, ...]) -> tuple[str, ...]:
    del path
    return tuple(sorted({point.name for point in entry_points(group=group(kind))}))


def find(kind: str, name: str) -> Any:
    """Return the part of a kind, a key of `KINDS`, by its name: an entry point, or ``module:Name``. It is imported.

    Raises:
        ConfigError: For a name that no package declares, one that two packages declare differently, or one that cannot
            be imported. The error lists the known names and where they were looked up.
    """
    target, declared = _target(kind, name, tuple(sys.path))
    module, _, attribute = target.partition(":")
    try:
        part: Any = importlib.import_module(module)
        for step in attribute.split("."):
            part = getattr(part, step)
    except (ImportError, AttributeError) as error:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").split(".")[0] != module.split(".")[0]:
            raise  # the part is there, and lacks a package that it needs: the command line says how to get that
        looked = f"; looked among what is installed, and in {Path.cwd()}" if isinstance(error, ImportError) else ""
        raise ConfigError(f"the {KINDS[kind]} {target!r}{declared} cannot be imported: {error}{looked}") from error
    return part


def required_packages(kind: str, name: str) -> frozenset[str]:
    """Return the packages that the package of a part requires, with any of its extras. None for a part of our own, and
    for one that no package declares.
    """
    points = [point for point in entry_points(group=group(kind)) if name in (point.name, point.value)]
    others = (point for point in points if point.module.partition(".")[0] not in OUR_PACKAGES)
    required = (text for point in others if point.dist is not None for text in point.dist.requires or ())
    return frozenset(re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in required)


@functools.lru_cache(maxsize=256)
def _target(kind: str, name: str, path: tuple[str, ...]) -> tuple[str, str]:
    """Return ``module:Name`` of a part and, for messages, the package that declares it.

    Looking through all installed packages takes tens of milliseconds, and every episode asks.
    """
    del path
    points = {point.value: point for point in entry_points(group=group(kind)) if point.name == name}
    if len(points) > 1:
        packages = " and ".join(sorted(f"{_package(point)} ({point.value})" for point in points.values()))
        raise ConfigError(f"the {KINDS[kind]} {name!r} is declared by {packages}; name the one you mean as module:Name")
    target = next(iter(points), name)
    module, colon, attribute = target.partition(":")
    if not (colon and module and attribute):
        place = next((place for place, parts in _APART.items() if name in parts.split()), None)
        raise ConfigError(
            f"the {KINDS[kind]} {name!r} is not installed; in a checkout of vla-rl: pip install ./{place}"
            if place
            else f"there is no {KINDS[kind]} {name!r}.{did_you_mean(name, names(kind))} "
            f"Looked among the entry points {group(kind)!r} of the installed packages; any other is named module:Name"
        )
    return target, f", declared by {_package(points[target])}" if points else ""


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
