"""Names: which environments there are, and which expert solves which."""

import importlib
from typing import TYPE_CHECKING, Any

import gymnasium

from vla_rl.core.errors import UserError

if TYPE_CHECKING:
    from sim.experts.base import Expert

_MODULES = {
    "PegInsert": "peg_insert",
    "LidOnBox": "lid_on_box",
    "Handover": "handover",
    "PickPlace": "pick_place",
}
TASKS = tuple(f"vla_rl/{name}-v0" for name in _MODULES)


def register_environments() -> None:
    """Register every task with gymnasium, as `vla_rl/NAME-v0`. Repeating it changes nothing."""
    for name, module in _MODULES.items():
        if f"vla_rl/{name}-v0" not in gymnasium.registry:
            gymnasium.register(f"vla_rl/{name}-v0", entry_point=f"sim.tasks.{module}:{name}Env")


def make_expert(env: gymnasium.Env[Any, Any], action_noise: float = 0.0) -> "Expert":
    """The scripted expert that solves an environment.

    Args:
        env: an environment of this package, wrapped or not.
        action_noise: standard deviation in metres of the noise on what is sent; 0.003 suits demonstrations.

    Raises:
        UserError: there is no expert for this environment.
    """
    task = type(env.unwrapped).__name__.removesuffix("Env")
    if task not in _MODULES:
        raise UserError(f"There is no expert for {type(env.unwrapped).__name__}. Known: {', '.join(sorted(_MODULES))}.")
    expert = getattr(importlib.import_module(f"sim.experts.{_MODULES[task]}"), f"{task}Expert")
    return expert(env, action_noise)
