"""Which execution strategies a policy in a folder supports."""

from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.core.capabilities import alternatives, of_interface, require
from vla_rl.core.errors import ConfigError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.registry import names
from vla_rl.execution.strategies import ActionCorrector, ExecutionConfig, find_strategy
from vla_rl.policies.corrector import FOLDER, ResidualCorrector


def best_strategy(policy: PolicyFolder) -> tuple[str, ...]:
    """Return the supported strategy with the highest preference, as overrides of a config."""
    provides = policy.provides | of_interface(policy.spec)
    found = {name: find_strategy(name) for name in names("strategies")}
    best = max((name for name in found if found[name].requires <= provides), key=lambda name: found[name].preference)
    prefix = (f"execution.max_prefix_ticks={policy.prefix_ticks}",)
    return (f"execution.strategy={best}", *(prefix if hasattr(found[best].config_class, "max_prefix_ticks") else ()))


def check_strategy(execution: ExecutionConfig, policy: PolicyFolder, watched: bool = False) -> None:
    """Refuse a strategy that the policy does not support, before anything is started.

    With ``watched``, newer versions replace the policy as they appear; a residual head is for one version only.

    Raises:
        ConfigError: saying what is missing and what to do.
    """
    provides = policy.provides | of_interface(policy.spec)
    require(
        f"execution.strategy={execution.strategy}",
        find_strategy(execution.strategy).requires,
        provides - {"corrector"} if watched else provides,
        alternatives("strategies", "execution.strategy"),
    )


def load_corrector(execution: ExecutionConfig, policy: PolicyFolder) -> ActionCorrector | None:
    """Return the residual head, for a strategy that takes one; CheckpointError if it is missing or damaged."""
    takes_head = "corrector" in find_strategy(execution.strategy).requires
    return ResidualCorrector.load(policy.path / FOLDER) if takes_head else None


def added_steps(policy: PolicySpec, robot_steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return the dimensions in which the policy plans steps and the robot takes targets: they are added up on the way.

    ``robot_steps`` are the dimensions that the robot takes as steps, as its limits or its environment say.

    Raises:
        ConfigError: for a robot that takes steps where the policy plans targets.
    """
    if wrong := sorted(set(robot_steps) - set(policy.delta_dims)):
        raise ConfigError(
            f"the robot takes steps in dimensions {wrong} of its action; the policy plans targets there. "
            "Use a policy that was trained on this robot"
        )
    return tuple(dim for dim in policy.delta_dims if dim not in robot_steps)
