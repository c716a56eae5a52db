"""What a policy in a folder can do beside planning chunks, and the best execution strategy that follows from it."""

from dataclasses import dataclass

from deploy_trt.runtime import is_deployment, load_manifest
from vla_rl.core.errors import ConfigError
from vla_rl.core.outside import read_json, reading
from vla_rl.core.types import PolicySpec
from vla_rl.execution.strategies import ActionCorrector, ExecutionConfig, find_strategy
from vla_rl.policies.corrector import FOLDER, ResidualCorrector
from vla_rl.runs.policy_folder import PolicyFolder

FLOW = "flow_vla"
"""Our kind of policy whose sampling can be guided."""
LEROBOT_FLOWS = ("smolvla", "pi0", "pi05")
"""Those of lerobot's, see `vla_rl.policies.lerobot_policy`."""


@dataclass(frozen=True)
class Capabilities:
    """See the module.

    Attributes:
        corrector: a residual head lies in the policy's folder.
        guided: sampling can be guided towards an earlier plan.
        gradient: and with the true gradient.
        prefix_ticks: longest committed prefix seen in training.
        prefix_law: how prefixes were drawn in training.
        future_ticks: how far ahead of the picture the state was in training.
    """

    corrector: bool = False
    guided: bool = False
    gradient: bool = False
    prefix_ticks: int = 0
    prefix_law: str = ""
    future_ticks: int = 0


def capabilities(policy: PolicyFolder) -> Capabilities:
    """What the policy can do, read from its folder without torch; a scripted expert can only plan."""
    if is_deployment(policy.path):
        manifest = load_manifest(policy.path)
        trained = manifest.source.get("config", {})
        return Capabilities(
            corrector=(policy.path / FOLDER).is_dir(),
            guided=manifest.sampler.kind == "flow",
            prefix_ticks=int(trained.get("prefix_max", 0)) if manifest.sampler.committed else 0,
            prefix_law=str(trained.get("prefix_law", "")),
            future_ticks=int(trained.get("future_state_max", 0)),
        )
    file = policy.path / "config.json"
    if not file.exists():
        return Capabilities()
    with reading(file, "copy the policy anew"):
        description = read_json(file)
        trained = description.get("config", {})
        ticks = [int(trained.get(name, 0)) for name in ("prefix_max", "future_state_max")]
    flows = (
        trained.get("kind") == FLOW or description.get("type") in LEROBOT_FLOWS
    )  # others have no flow that could be guided
    return Capabilities(
        corrector=(policy.path / FOLDER).is_dir(),
        guided=flows,
        gradient=flows,
        prefix_ticks=ticks[0],
        prefix_law=str(trained.get("prefix_law", "")),
        future_ticks=ticks[1],
    )


def best_strategy(policy: PolicyFolder) -> tuple[str, ...]:
    """The best asynchronous strategy that the policy supports, as overrides of a config."""
    can = capabilities(policy)
    if can.corrector:
        return ("execution.strategy=a2c2",)
    if can.prefix_ticks:
        name = "xiaomi" if can.prefix_law == "xiaomi" else "training_time_prefix"
        return (f"execution.strategy={name}", f"execution.max_prefix_ticks={can.prefix_ticks}")
    if can.guided:
        return (f"execution.strategy={'rtc' if can.gradient else 'rtc_identity'}",)
    return ("execution.strategy=naive",)


def check_strategy(execution: ExecutionConfig, policy: PolicyFolder, watched: bool = False) -> None:
    """Refuse a strategy that the policy does not support, before anything is started.

    Args:
        execution: names the strategy.
        policy: that will act.
        watched: newer versions replace it as they appear.

    Raises:
        ConfigError: saying what is missing and what to do.
    """
    name, can, steps = execution.strategy, capabilities(policy), policy.spec.delta_dims
    missing = {
        "a2c2": "" if can.corrector else "a residual head (train one: vla-rl corrector RUN)",
        "rtc": "" if can.gradient else "a policy that can be guided with its gradient",
        "rtc_identity": "" if can.guided else "a policy that can be guided",
        "training_time_prefix": "" if can.prefix_ticks else "a policy trained with policy.prefix_max",
        "xiaomi": "" if can.prefix_law == "xiaomi" and can.prefix_ticks else "a policy trained with prefix_law=xiaomi",
        "vlash": "" if can.future_ticks else "a policy trained with policy.future_state_max",
    }.get(name, "")
    if watched and name == "a2c2":
        missing = "one policy, which its head was trained for, not newer ones from a watched folder"
    if steps and name == "vlash":
        missing = f"a policy whose actions are targets, not steps as here in dimensions {list(steps)}"
    state, action = policy.spec.dimensions_of(policy.spec.state_dim)
    if name == "vlash" and not state.take(range(min(len(action), len(state)))).agrees(action):
        missing = f"a state that begins with the commanded {action.words()}, not with {state.words()}"
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
