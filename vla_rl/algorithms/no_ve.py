"""HABC without the efficiency value in its gate: the paper's ablation."""

from dataclasses import replace
from typing import ClassVar

from vla_rl.advantage import AdvantageConfig
from vla_rl.algorithms.habc import GatedLearning, Habc


class NoEfficiency(Habc):
    """HABC with A_e = 0, so that (1 - p_v) A_v remains; A_v alone if ``advantage.gate`` is ``viability``.

    The paper does not say which. The first is the stronger: where p_v is near 1, differences of logits are noise.
    """

    name = "no_ve"
    config_class: ClassVar[type] = GatedLearning
    learns_efficiency: ClassVar[bool] = False

    @property
    def advantage_config(self) -> AdvantageConfig:
        config = self.config.advantage
        return config if config.gate != "hierarchical" else replace(config, gate="viability_weighted")
