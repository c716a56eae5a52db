"""Names: which environments there are, and how the expert of one is found."""

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
TASKS = tuple(f"vla_rl/{name}-v0" for name in _OURS)
"""Ids of our own tasks."""

COLOR_TASKS = {f"vla_rl/Pick{color.capitalize()}-v0": color for color in ("red", "yellow", "violet")}
"""Ids of one scene's three tasks, which differ only in the sentence, and the color that each asks for."""

_ENTRY_POINTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"vla_rl/{name}-v0": (f"sim.tasks.{module}:{name}Env", {}) for name, module in _OURS.items()},
    **{name: ("sim.tasks.pick_color:PickColorEnv", {"color": color}) for name, color in COLOR_TASKS.items()},
}  # id -> where its class is, and its arguments


def register_environments() -> None:
    """Register every task with gymnasium. Repeating it changes nothing.

    Example:
        >>> register_environments()
        >>> "vla_rl/PegInsert-v0" in gymnasium.registry
        True
    """
    for name, (entry_point, arguments) in _ENTRY_POINTS.items():
        if name not in gymnasium.registry:
            gymnasium.register(name, entry_point=entry_point, kwargs=arguments)


class ScriptedExpert(Protocol):
    """What every expert offers. `sim.experts.base.Expert` says more about each.

    Two attributes are optional. ``follows_script = True``: its motions are timed, so it can neither supervise nor be
    driven with errors. ``stall_s``: longest time in seconds that it takes without progress.
    """

    env: Any
    pace: float
    meters_per_action: float

    def reset(self, seed: int) -> None:
        """Begin an episode: the seed determines its style and its noise."""

    def act(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the clean action (the label) and the one to send, both float32 [A]."""

    def progress(self) -> float:
        """Return how much of the task is done, 0 to 1."""

    def last_sent(self) -> NDArray[np.float64]:
        """Return the action of the last step, float64 [A]."""


def make_expert(env: gymnasium.Env[Any, Any], action_noise: float = 0.0) -> ScriptedExpert:
    """Return the scripted expert that solves an environment: the one that its class declares.

    Anyone's environment can bring one, as a class attribute: ``expert = "package.module:Name"``, which is imported
    only here, or the class or function itself. It is called with the environment, wrapped or not, and the noise.

    Args:
        env: an environment that declares an expert, wrapped or not.
        action_noise: standard deviation in meters of the noise on what is sent; 0.003 suits demonstrations.

    Raises:
        UserError: the environment declares no expert, or one that cannot be imported.

    Example:
        >>> env = gymnasium.make("vla_rl/PegInsert-v0")
        >>> _ = env.reset(seed=0)
        >>> expert = make_expert(env)
        >>> expert.reset(0)
        >>> [action.shape for action in expert.act()]
        [(8,), (8,)]
    """
    env_class = type(env.unwrapped)
    declared = getattr(env_class, "expert", None)  # of the class, where a function is not bound to the environment
    if declared is None:
        raise UserError(
            f"There is no expert for {env_class.__name__}. Its class declares one with "
            "expert = 'module:Name', which is called as Name(env, action_noise)."
        )
    make = declared
    if isinstance(declared, str):
        module, _, name = declared.partition(":")
        try:
            make = getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise UserError(f"The expert {declared!r} does not load ({error}); it must be 'module:Name'.") from error
    expert: ScriptedExpert = make(env, action_noise)
    return expert
