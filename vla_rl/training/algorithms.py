"""Algorithms by name, and the folders of what they have learned. An algorithm itself knows neither."""

from pathlib import Path
from typing import Any

from vla_rl.algorithms.base import Algorithm, Learning
from vla_rl.core.capabilities import OF_RUNS, alternatives, require
from vla_rl.core.errors import ConfigError
from vla_rl.core.metadata import critic_of
from vla_rl.core.registry import find
from vla_rl.data.cache import FrameCache
from vla_rl.policies.checkpoint import load_selector, save_policy
from vla_rl.policies.folders import load_model
from vla_rl.policies.trainable import TrainablePolicy


def find_algorithm(name: str) -> type[Algorithm]:
    """Return the class of an algorithm; ConfigError for an unknown one, or a class that does not say its name."""
    found: type[Algorithm] = find("algorithms", name)
    if not getattr(found, "name", ""):
        raise ConfigError(
            f"the algorithm {name!r} has no class attribute 'name'; give it one, for reports and policies"
        )
    return found


def require_of_policy(name: str, learning: Any, provides: frozenset[str]) -> None:
    """Refuse a policy without what the algorithm requires of it, wherever its data come from, by a ConfigError."""
    check_base(name, provides)
    requires = find_algorithm(name).required(learning) - OF_RUNS
    require(f"algorithm={name}", requires, provides | OF_RUNS, alternatives("algorithms", "algorithm"))


def check_base(name: str, provides: frozenset[str]) -> None:
    """Refuse an algorithm that would train the proxy of a frozen base policy as the policy, by a ConfigError."""
    if "base" in provides and not find_algorithm(name).keeps_base:
        raise ConfigError(
            f"algorithm={name} trains the policy itself, and policy.kind=proxy keeps its base policy frozen. Use "
            "algorithm=imagined_edit, residual_td or chunk_critic"
        )


def make_algorithm(name: str, config: Learning, model: TrainablePolicy, cache: FrameCache, seed: int) -> Algorithm:
    """Return an algorithm by name; arguments as of `Algorithm`. Call `begin_round` before the first `update`.

    Raises:
        ConfigError: for an unknown name, another algorithm's config, or a policy that lacks what the algorithm needs.
    """
    algorithm = find_algorithm(name)
    if not isinstance(config, algorithm.config_class):
        raise ConfigError(
            f"the algorithm {name!r} takes a {algorithm.config_class.__name__}, found a {type(config).__name__}"
        )
    require_of_policy(name, config, model.capabilities)
    algorithm.check_fit(config, lambda: model)
    return algorithm(config, model, cache, seed)


def save_learned(algorithm: Algorithm, folder: Path, version: int) -> None:
    """Write the policy that should act, with what chooses for it; UserError if the algorithm has learned none."""
    policy = algorithm.policy()
    assert isinstance(policy, TrainablePolicy)
    save_policy(folder, policy, algorithm.selector(), {"policy_version": version, "algorithm": algorithm.name})


def adopt_saved(algorithm: Algorithm, folder: Path) -> None:
    """Let an algorithm go on from the policy of a folder, and from what chooses for it.

    Raises:
        CheckpointError: for a folder that is damaged, or a policy for another robot.
    """
    policy, _ = load_model(folder, expected=algorithm.model.spec)
    critic, device = critic_of(folder), str(next(algorithm.model.parameters()).device)
    algorithm.adopt(policy, None if critic is None else load_selector(critic, policy, device))
