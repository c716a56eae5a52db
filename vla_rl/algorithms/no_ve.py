"""HABC without the efficiency value in its gate: the paper's ablation."""

from dataclasses import replace

from vla_rl.advantage import AdvantageConfig
from vla_rl.algorithms.habc import Habc


class NoEfficiency(Habc):
    """The gate sees viability only: A_v, or (1 - p_v) A_v if ``advantage.gate`` is ``viability_weighted``."""

    name = "no_ve"

    @property
    def advantage_config(self) -> AdvantageConfig:
        config = self.config.advantage
        return config if config.gate != "hierarchical" else replace(config, gate="viability")
