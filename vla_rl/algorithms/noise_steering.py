"""Steering of a frozen flow policy by the noise that its chunks are drawn from (DSRL, arXiv 2506.15799).

A small network moves the mean of that noise by one bounded offset of a chunk, as far as the state asks for it. The
policy does nothing that it could not have drawn, and its draws are what is tried, so that there is no `exploration`.
Trained as `residual_ppo` trains its edit, on policy; DSRL learns a value of the noise off policy.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from vla_rl.algorithms.residual_ppo import ResidualPPO, ResidualPPOLearning
from vla_rl.policies.editing import EditConfig


@dataclass(frozen=True)
class NoiseSteeringLearning(ResidualPPOLearning):
    """What the algorithm may be told; ``edit.bound`` is in standard deviations of the noise."""

    edit: EditConfig = field(default_factory=lambda: EditConfig(bound=1.0))


class NoiseSteering(ResidualPPO):
    """See the module."""

    name = "noise_steering"
    config_class: ClassVar[type] = NoiseSteeringLearning
    learns_from_exploration: ClassVar[bool] = False
    of_noise: ClassVar[bool] = True
