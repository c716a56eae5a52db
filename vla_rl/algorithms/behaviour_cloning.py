"""Behaviour cloning: imitate every step of every episode, whoever acted and however it went. The floor of all."""

from dataclasses import dataclass, field
from typing import ClassVar

from vla_rl.algorithms.base import Algorithm
from vla_rl.algorithms.config import Learning
from vla_rl.credit import CreditConfig


@dataclass(frozen=True)
class BehaviourCloningLearning(Learning):
    """What behaviour cloning may be told. Credit decides where chunks end, and which dimensions a person commanded."""

    credit: CreditConfig = field(default_factory=CreditConfig)


class BehaviourCloning(Algorithm):
    """Uniform over steps: no outcome and no mixture decide what is imitated."""

    name = "bc"
    config_class: ClassVar[type] = BehaviourCloningLearning
