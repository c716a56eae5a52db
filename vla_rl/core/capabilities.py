"""What parts require of each other, and the one function that compares and explains it.

A capability is a word. Algorithms, execution strategies and exporters declare the words that they require, policies,
runs and deployments the words that they provide. A part of another package may add words of its own.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any

from vla_rl.core.errors import ConfigError, UserError
from vla_rl.core.policy_spec import PolicySpec
from vla_rl.core.registry import find, names

BROUGHT_BY = {
    "features": "policy.kind=flow_vla gives others its features; with learning.critic.backbone=own none are needed",
    "acts_from_features": "policy.kind=flow_vla acts from imagined features alone",
    "base": "policy.kind=proxy practices with a frozen base policy",
    "several_draws": "policy.kind=flow_vla draws several chunks for one observation",
    "offsets": "a policy whose draws an offset may move, such as policy.kind=flow_vla with rollout_precision=torch; "
    "else set exploration=0",
    "indicator": "set policy.indicator=true, with policy.kind=flow_vla, before supervised training",
    "guidance": "a flow policy, such as policy.kind=flow_vla",
    "gradient": "a flow policy in torch, such as policy.kind=flow_vla",
    "prefix": "train the policy with policy.prefix_max=6",
    "xiaomi_prefix": "train the policy with policy.prefix_max=6 and policy.prefix_law=xiaomi",
    "future_state": "train the policy with policy.future_state_max=8",
    "corrector": "a residual head, trained for this very version: vla-rl corrector RUN; practice and watched folders "
    "bring new versions",
    "target_actions": "a policy whose actions are targets, none of them steps (delta_dims)",
    "state_of_targets": "a state that begins with the commanded dimensions, in the order of the actions",
    "exploration": "set exploration=0.15 or so, and budget.episodes_per_round above budget.check_episodes",
    "newest_policy": "set budget.staleness=0",
    "torch_draws": "set rollout_precision=torch",
    "unchanged_chunks": "set execution.strategy=naive or sync",
    "branches": "algorithm=imagined_edit imagines them",
    "flow_graphs": "policy.kind=flow_vla and policies of lerobot have an exporter",
    "half_precision": "policy.kind=flow_vla; else leave --precision out",
    "unrolled": "policy.kind=flow_vla; else leave --unrolled out",
    "selection": "policy.kind=flow_vla; else --without-critic executes the first draw",
}
"""Our words, and what brings each."""
OF_RUNS = frozenset({"exploration", "newest_policy", "torch_draws", "unchanged_chunks"})
"""Words that settings of a practice run provide; all others are a policy's."""
ON_POLICY = frozenset({"newest_policy", "torch_draws", "unchanged_chunks"})
"""Required of a run by an algorithm that learns only from what the newest policy drew."""


def require(
    part: str,
    requires: frozenset[str],
    provides: frozenset[str],
    alternatives: Iterable[tuple[str, frozenset[str]]] = (),
) -> None:
    """Refuse a part whose requirements are not met.

    Args:
        part: Its setting, such as ``execution.strategy=rtc``.
        requires: Capabilities that it declares.
        provides: Capabilities that there are.
        alternatives: Settings of other parts and what these require; read only if the part is refused.

    Raises:
        ConfigError: With what is missing, what brings it, and the alternatives that fit.

    Example:
        >>> require("execution.strategy=rtc", frozenset({"gradient"}), frozenset({"features", "gradient"}))
    """
    missing = sorted(requires - provides)
    if not missing:
        return
    reasons = "; ".join(f"{word} ({BROUGHT_BY[word]})" if word in BROUGHT_BY else word for word in missing)
    fitting = ", ".join(setting for setting, needed in alternatives if needed <= provides)
    raise ConfigError(f"{part} requires {reasons}" + (f". What fits: {fitting}" if fitting else ""))


def alternatives(kind: str, option: str) -> Iterator[tuple[str, frozenset[str]]]:
    """Yield the setting of every installed part of a kind, and what it requires; broken parts are left out."""
    for name in names(kind):
        with suppress(UserError, ImportError):
            yield f"{option}={name}", find(kind, name).requires


def of_training(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the capabilities that options of a policy bring, by the policy's config as plain data."""
    found = set()
    if config.get("indicator"):
        found.add("indicator")
    if config.get("prefix_max"):
        found |= {"prefix", "xiaomi_prefix"} if config.get("prefix_law") == "xiaomi" else {"prefix"}
    if config.get("future_state_max"):
        found.add("future_state")
    return frozenset(found)


def of_interface(spec: PolicySpec) -> frozenset[str]:
    """Return the capabilities that follow from a policy's interface with the robot."""
    found = set() if spec.delta_dims else {"target_actions"}
    state, action = spec.dimensions_of(spec.state_dim)
    if state.take(range(min(len(action), len(state)))).agrees(action):
        found.add("state_of_targets")
    return frozenset(found)
