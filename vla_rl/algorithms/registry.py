"""Algorithms by name."""

from vla_rl.algorithms.awr import AdvantageWeightedRegression
from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.behaviour_cloning import BehaviourCloning
from vla_rl.algorithms.config import AlgorithmConfig
from vla_rl.algorithms.dagger import HgDagger
from vla_rl.algorithms.filtered_bc import FilteredBehaviourCloning
from vla_rl.algorithms.habc import Habc
from vla_rl.algorithms.no_ve import NoEfficiency
from vla_rl.algorithms.recap import Recap
from vla_rl.algorithms.sft import SupervisedFineTuning
from vla_rl.algorithms.threshold import ThresholdFilter
from vla_rl.core.errors import ConfigError, did_you_mean
from vla_rl.critics.backbones import Backbone
from vla_rl.data.cache import FrameCache
from vla_rl.policies.trainable import TrainablePolicy

_CLASSES: tuple[type[Algorithm], ...] = (
    SupervisedFineTuning,
    BehaviourCloning,
    HgDagger,
    FilteredBehaviourCloning,
    AdvantageWeightedRegression,
    ThresholdFilter,
    Recap,
    NoEfficiency,
    Habc,
)
ALGORITHMS: dict[str, type[Algorithm]] = {algorithm.name: algorithm for algorithm in _CLASSES}


def find_algorithm(name: str) -> type[Algorithm]:
    """The class of an algorithm.

    Raises:
        ConfigError: for an unknown name.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}.{did_you_mean(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def make_algorithm(
    name: str,
    config: AlgorithmConfig,
    model: TrainablePolicy,
    cache: FrameCache,
    seed: int,
    backbone: Backbone | None = None,
) -> Algorithm:
    """An algorithm by name; arguments as of `Algorithm`. Call `begin_round` before the first `update`.

    Raises:
        ConfigError: for an unknown name, or a policy that lacks what the algorithm needs.
    """
    algorithm = find_algorithm(name)
    algorithm.check(model.config)
    return algorithm(config, model, cache, seed, backbone)
