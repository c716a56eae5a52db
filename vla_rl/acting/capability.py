"""What a policy in a folder can do beside planning chunks, and the best execution strategy that follows from it."""

from dataclasses import dataclass

from deploy_trt.runtime import is_deployment, load_manifest
from vla_rl.acting.policy_folder import PolicyFolder
from vla_rl.core.errors import ConfigError
from vla_rl.core.json_files import read_json, reading
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.registry import names
from vla_rl.execution.strategies import ActionCorrector, ExecutionConfig, find_strategy
from vla_rl.policies.corrector import FOLDER, ResidualCorrector

FLOW = "flow_vla"
"""Our kind of policy whose sampling can be guided."""
LEROBOT_FLOWS = ("smolvla", "pi0", "pi05")
"""Those of lerobot's, see `vla_rl.policies.lerobot_policy`."""


MISSING = {
    "corrector": "a residual head (train one: vla-rl corrector RUN)",
    "guidance": "a policy that can be guided",
    "gradient": "a policy that can be guided with its gradient",
    "prefix": "a policy trained with policy.prefix_max",
    "xiaomi_prefix": "a policy trained with prefix_law=xiaomi",
    "future_state": "a policy trained with policy.future_state_max",
}
"""What policies may provide and strategies require; what is missing, in words."""


@dataclass(frozen=True)
class Capabilities:
    """See the module.

    Attributes:
        provides: keys of `MISSING`.
        prefix_ticks: longest committed prefix seen in training.
    """

    provides: frozenset[str] = frozenset()
    prefix_ticks: int = 0


def capabilities(policy: PolicyFolder) -> Capabilities:
    """What the policy can do, read from its folder without torch; a scripted expert can only plan."""
    provides = {"corrector"} if (policy.path / FOLDER).is_dir() else set()
    if is_deployment(policy.path):
        manifest = load_manifest(policy.path)
        trained = manifest.source.get("config", {})
        provides |= {"guidance"} if manifest.sampler.kind == "flow" else set()
        takes_prefix = manifest.sampler.committed
    else:
        file = policy.path / "config.json"
        if not file.exists():
            return Capabilities()
        with reading(file, "copy the policy anew"):
            description = read_json(file)
            trained = description.get("config", {})
        if trained.get("kind") == FLOW or description.get("type") in LEROBOT_FLOWS:  # others have no flow to guide
            provides |= {"guidance", "gradient"}
        takes_prefix = True
    with reading(policy.path / "config.json", "copy the policy anew"):
        prefix_ticks = int(trained.get("prefix_max", 0)) if takes_prefix else 0
        future_ticks = int(trained.get("future_state_max", 0))
    if prefix_ticks:
        provides |= {"prefix", "xiaomi_prefix"} if trained.get("prefix_law") == "xiaomi" else {"prefix"}
    if future_ticks:
        provides.add("future_state")
    return Capabilities(frozenset(provides), prefix_ticks)


def best_strategy(policy: PolicyFolder) -> tuple[str, ...]:
    """The best asynchronous strategy that the policy supports, as overrides of a config."""
    can, found = capabilities(policy), {name: find_strategy(name) for name in names("strategies")}
    fits = [name for name, each in found.items() if each.requires <= can.provides and not each.lacking(policy.spec)]
    best = max(fits, key=lambda name: found[name].preference)
    prefix = (f"execution.max_prefix_ticks={can.prefix_ticks}",)
    return (f"execution.strategy={best}", *(prefix if hasattr(found[best].config_class, "max_prefix_ticks") else ()))


def check_strategy(execution: ExecutionConfig, policy: PolicyFolder, watched: bool = False) -> None:
    """Refuse a strategy that the policy does not support, before anything is started.

    Args:
        execution: names the strategy.
        policy: that will act.
        watched: newer versions replace it as they appear.

    Raises:
        ConfigError: saying what is missing and what to do.
    """
    name, strategy = execution.strategy, find_strategy(execution.strategy)
    lacking = sorted(strategy.requires - capabilities(policy).provides)
    missing = MISSING.get(lacking[0], lacking[0]) if lacking else strategy.lacking(policy.spec)
    if watched and strategy.takes_corrector:
        missing = "one policy, which its head was trained for, not newer ones from a watched folder"
    if missing:
        best = best_strategy(policy)[0].partition("=")[2]
        supported = " and ".join(map(repr, dict.fromkeys((best, "naive"))))
        raise ConfigError(f"execution strategy {name!r} needs {missing}; this policy supports {supported}")


def check_chunks(execution: ExecutionConfig, policy: PolicyFolder) -> None:
    """Refuse settings of the execution that the policy's chunks cannot meet, before anything is started.

    Raises:
        ConfigError: with the name of the setting, its value and that of the policy.
    """
    execution.check_fit(policy.horizon, capabilities(policy).prefix_ticks)


def load_corrector(execution: ExecutionConfig, policy: PolicyFolder) -> ActionCorrector | None:
    """The residual head, for a strategy that takes one.

    Raises:
        CheckpointError: if it is missing or damaged.
    """
    takes_corrector = find_strategy(execution.strategy).takes_corrector
    return ResidualCorrector.load(policy.path / FOLDER) if takes_corrector else None


def added_steps(policy: PolicySpec, robot_steps: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions in which the policy plans steps and the robot takes targets: they are added up on the way.

    Args:
        policy: says in which dimensions it plans steps.
        robot_steps: dimensions that the robot takes as steps, as its limits or its environment say.

    Raises:
        ConfigError: for a robot that takes steps where the policy plans targets.
    """
    if wrong := sorted(set(robot_steps) - set(policy.delta_dims)):
        raise ConfigError(
            f"the robot takes steps in dimensions {wrong} of its action, and the policy plans targets there; "
            "was it trained on this robot?"
        )
    return tuple(dim for dim in policy.delta_dims if dim not in robot_steps)
