"""Names: which environments there are, and which expert solves which."""

import importlib
from typing import Any, Protocol

import gymnasium
import numpy as np
from numpy.typing import NDArray

from vla_rl.core.errors import UserError

_OURS = {
    "PegInsert": "peg_insert",
    "LidOnBox": "lid_on_box",
    "Handover": "handover",
    "PickPlace": "pick_place",
}
_META_WORLD = ("ButtonPress", "DoorOpen", "DrawerOpen", "PegInsertSide")
_ALOHA = ("AlohaTransferCube", "AlohaInsertion")
_ENTRY_POINTS = {
    **{f"vla_rl/{name}-v0": f"sim.tasks.{module}:{name}Env" for name, module in _OURS.items()},
    **{f"vla_rl/MetaWorld{name}-v0": f"sim.adapters.metaworld:{name}Env" for name in _META_WORLD},
    **{f"vla_rl/{name}-v0": f"sim.adapters.aloha:{name}Env" for name in _ALOHA},
}
_EXPERTS = {
    **{f"{name}Env": f"sim.experts.{module}:{name}Expert" for name, module in _OURS.items()},
    **{f"{name}Env": "sim.experts.metaworld:MetaWorldExpert" for name in _META_WORLD},
}

TASKS = tuple(f"vla_rl/{name}-v0" for name in _OURS)
"""Ids of our own tasks. The adapted benchmarks are registered too: `vla_rl/MetaWorld...-v0`, `vla_rl/Aloha...-v0`."""


def register_environments() -> None:
    """Register every task with gymnasium. Repeating it changes nothing."""
    for name, entry_point in _ENTRY_POINTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point)


class ScriptedExpert(Protocol):
    """What every expert offers. `sim.experts.base.Expert` says more about each."""

    env: Any
    pace: float
    metres_per_action: float

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines its style and its noise."""

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The clean action (the label) and the one to send, both float32 [A]."""

    def progress(self) -> float:
        """How much of the task is done, 0 to 1."""

    def last_sent(self) -> NDArray[np.float64]:
        """The action of the last step, float64 [A]."""


def make_expert(env: gymnasium.Env[Any, Any], action_noise: float = 0.0) -> ScriptedExpert:
    """The scripted expert that solves an environment.

    Args:
        env: an environment of this package, wrapped or not.
        action_noise: standard deviation in metres of the noise on what is sent; 0.003 suits demonstrations.

    Raises:
        UserError: there is no expert for this environment.
    """
    name = type(env.unwrapped).__name__
    if name not in _EXPERTS:
        raise UserError(f"There is no expert for {name}. Those that have one: {', '.join(sorted(_EXPERTS))}.")
    module, _, attribute = _EXPERTS[name].partition(":")
    expert: ScriptedExpert = getattr(importlib.import_module(module), attribute)(env, action_noise)
    return expert
