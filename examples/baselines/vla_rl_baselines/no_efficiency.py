"""HABC without the efficiency value in its gate: the paper's ablation."""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from vla_rl.advantage import AdvantageConfig
from vla_rl.algorithms.habc import Habc
from vla_rl.algorithms.hierarchical import WeightedLearning


@dataclass(frozen=True)
class NoEfficiencyLearning(WeightedLearning):
    """Options of the ablation."""

    advantage: AdvantageConfig = field(default_factory=AdvantageConfig)


class NoEfficiency(Habc):
    """HABC with A_e = 0, so that (1 - p_v) A_v remains of the gate.

    The paper does not say whether A_v alone is meant. Where p_v is near 1, differences of logits are noise.
    """

    name = "no_ve"
    config_class: ClassVar[type] = NoEfficiencyLearning
    learns: ClassVar[frozenset[str]] = frozenset({"viability"})

    @property
    def advantage_config(self) -> AdvantageConfig:
        return replace(self.config.advantage, efficiency_scale=0.0)
